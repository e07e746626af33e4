"""Run a plan that loses a rank: `native_faulty.py PLAN FOLDER RANK STAGE STEP`; STAGE may be `checkpoint` or `disk`.

The rank kills itself with SIGKILL in that stage of that step, once: a mark in the folder says that it has. With `disk`
no file may grow beyond a few bytes while the checkpoint of that step is written.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path


def main() -> None:
    import torch.distributed as dist

    from rpegc.plan import read_plan
    from rpegc.runtime import checkpoint, functions, stages
    from rpegc.runtime.run import Options, run

    folder, rank, stage, step = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "killed"

    def fall(name: str, at: int) -> None:
        if name == stage and at == step and dist.get_rank() == rank and not mark.exists():
            mark.write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)

    run_stage, run_function, save = (
        stages.StageRunner.run,
        functions.FunctionLane._function,
        checkpoint.Checkpoints.save,
    )

    def faulty_stage(self, instance):
        if self.takes_part(instance.stage):
            fall(instance.stage, instance.step)
        run_stage(self, instance)

    def faulty_function(self, instance):
        fall(instance.stage, instance.step)
        run_function(self, instance)

    def faulty_save(self, saved, workers):
        fall("checkpoint", saved.step)
        if stage == "disk" and saved.step == step:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            try:
                return save(self, saved, workers)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return save(self, saved, workers)

    stages.StageRunner.run = faulty_stage
    functions.FunctionLane._function = faulty_function
    checkpoint.Checkpoints.save = faulty_save
    run(read_plan(Path(sys.argv[1])), Options(folder))


if __name__ == "__main__":
    main()
