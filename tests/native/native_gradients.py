"""In two processes: loss, scores and gradients of every layout against plain data parallelism. Rank 0 prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

LAYOUTS = {
    "dp": {"dp": 2, "micro_batch": 3},
    "fsdp": {"dp": 2, "zero": 3, "shard_size": 2, "micro_batch": 2, "recompute": "full"},
    "selective": {"dp": 2, "zero": 2, "shard_size": 2, "token_budget": 32, "recompute": "selective"},
    "offload": {"dp": 2, "micro_batch": 2, "offload_activations": True},
    "tp": {"tp": 2, "micro_batch": 3},
    "sp": {"tp": 2, "sequence_parallel": True, "micro_batch": 3},
    "ulysses": {"ulysses": 2, "micro_batch": 3},
    "1f1b": {"pp": 2, "micro_batch": 2},
    "interleaved": {"pp": 2, "vpp": 2, "micro_batch": 2},
}


def main() -> None:
    import numpy as np
    import torch
    import torch.distributed as dist

    from rpegc.runtime.groups import axes_of
    from rpegc.runtime.model import load_model
    from rpegc.runtime.optimizer import local
    from rpegc.runtime.rows import Rows
    from rpegc.runtime.worker import Worker
    from rpegc.target import ShardedLayout

    dist.init_process_group("gloo")
    batch, draw = Rows(), np.random.default_rng(0)
    for row in range(9):
        length = int(draw.integers(6, 14))
        batch.put(row, tokens=draw.integers(2, 18, size=length), prompt_length=[3])
        batch.put(row, weight=np.full(length - 3, 1.0 + row, dtype=np.float32))

    def loss_of(logprobs, micro):
        return {"loss": -(logprobs * micro.fields["weight"]).sum()}

    def run(layout: ShardedLayout) -> tuple[float, float, dict[str, torch.Tensor]]:
        axes = axes_of((0, 1), layout, "cpu")
        device = torch.device("cpu")
        worker = Worker(load_model(Path(sys.argv[1]), "logits"), "logits", axes, "fp32", device, 0.7, True)
        sums = worker.accumulate(
            batch,
            batch.index,
            ("weight",),
            lambda logprobs, micro: {"loss": -(logprobs * micro.fields["weight"]).sum()},
        )
        scores = worker.score(batch, batch.index, "old_logprobs")
        mine = sum(
            float((value * batch.column("weight")[row]).sum())
            for row, value in scores.columns.get("old_logprobs", {}).items()
        )
        total = torch.tensor(float(mine))
        dist.all_reduce(total)
        found = {}
        for name, parameter in worker.named_parameters().items():
            gradient = parameter.grad
            if hasattr(gradient, "full_tensor"):
                gradient = gradient.full_tensor()
            elif layout.zero < 2 and axes.data_ranks > 1:
                dist.all_reduce(local(gradient), group=axes.data)
            found[name] = gradient
        return worker.total(sums, ("loss",))["loss"], -float(total), found

    plain_loss, _, plain = run(ShardedLayout(dp=2, micro_batch=1))
    report = {}
    for name, fields in LAYOUTS.items():
        layout = ShardedLayout(**fields)
        loss, score, gradients = run(layout)
        # FSDP averages over ranks after our scaling: its gradients are sums as well.
        missing = [key for key, gradient in gradients.items() if gradient is None]
        assert not missing, f"{name}: no gradient for {missing}"
        worst = max(float((gradient - plain[key]).abs().max()) for key, gradient in gradients.items())
        report[name] = {
            "loss": abs(loss - plain_loss),
            "score": abs(score - plain_loss),
            "gradient": worst,
            "names": len(gradients),
        }
    every: list[object] = [None, None]
    dist.all_gather_object(every, report)
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps({"scale": plain_loss, "names": len(plain), "ranks": every}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
