"""Has DeepSpeed and TRL read emitted settings, for any number of ranks, in one process:  validate.py REQUESTS FOLDER

REQUESTS is a file with  [{"ds_config": {...}, "grpo": {...}, "ranks": n}, ...]; prints one JSON object each.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch.distributed as dist
from deepspeed.runtime.config import DeepSpeedConfig
from torch.testing._internal.distributed.fake_pg import FakeStore


def join(ranks: int) -> None:
    """Pose as rank 0 of a group of so many ranks, none of which exists."""
    if dist.is_initialized():
        dist.destroy_process_group()
    deepspeed.comm.comm.cdb = None
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", verbose=False)


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """Fill in what transformers fills in when it reads the GRPOConfig."""
    text = json.dumps(config).replace('"gradient_clipping": "auto"', '"gradient_clipping": 1.0')
    parameters = {"lr": 1e-6, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    found: dict[str, Any] = json.loads(text)
    for name, value in parameters.items():
        if found["optimizer"]["params"].get(name) == "auto":
            found["optimizer"]["params"][name] = value
    return found


def report(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read one pair of files; return what DeepSpeed and TRL made of them, or the error."""
    from trl import GRPOConfig

    try:
        join(request["ranks"])
        config = DeepSpeedConfig(filled(request["ds_config"]))
        os.environ.update({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"})
        changes = {"output_dir": str(folder), "use_cpu": True}
        grpo = GRPOConfig(**(request["grpo"] | changes))
    except Exception as error:  # every failure is a finding
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {
        "ok": True,
        "world": config.world_size,
        "batch": [config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps],
        "stage": config.zero_optimization_stage,
        "offload": [
            bool(config.zero_config.offload_optimizer and config.zero_config.offload_optimizer.device == "cpu"),
            bool(config.zero_config.offload_param and config.zero_config.offload_param.device == "cpu"),
        ],
        "loss": grpo.loss_type,
        "iterations": grpo.num_iterations,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    requests = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n" + json.dumps([report(request, Path(sys.argv[2])) for request in requests]))
