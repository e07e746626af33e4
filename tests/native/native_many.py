"""Run several plans one after another in one set of processes: `native_many.py PLAN FOLDER [PLAN FOLDER ...]`.

Importing torch takes longer than a run of a tiny model.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    import torch.distributed as dist

    from rpegc.plan import read_plan
    from rpegc.runtime.run import Options, run

    dist.init_process_group("gloo")
    for plan, folder in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        run(read_plan(Path(plan)), Options(Path(folder)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
