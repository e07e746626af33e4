"""Pipeline parallelism: 1F1B and its interleaved form from torch.distributed.pipelining, and a plain forward pass.

Every micro-batch has one shape (B, S). Virtual part v of rank r is part v * pp + r of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rpegc.runtime.batching import MicroBatch
from rpegc.runtime.groups import Axes
from rpegc.runtime.model import LanguageModel


def train_parts(
    parts: Sequence[LanguageModel],
    axes: Axes,
    micros: Sequence[MicroBatch],
    loss: Callable[[Tensor, MicroBatch], Tensor],
    device: torch.device,
) -> None:
    """Run forward and backward of all micro-batches; gradients add up in the parameters."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    layout = axes.layout
    count = layout.pp * layout.vpp
    stages = [
        PipelineStage(part, axes.pipeline_place + turn * layout.pp, count, device, group=axes.pipeline)
        for turn, part in enumerate(parts)
    ]

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return loss(output, micros[int(target[0])])

    options: dict[str, Any] = {"n_microbatches": len(micros), "loss_fn": loss_of, "scale_grads": False}
    several = layout.vpp > 1
    runner = ScheduleInterleaved1F1B(stages, **options) if several else Schedule1F1B(stages[0], **options)
    lines = micros[0].tokens.shape[0]
    numbers = torch.arange(len(micros), device=device).repeat_interleave(lines)
    positions = torch.cat([micro.positions for micro in micros])
    first, last = axes.pipeline_place == 0, axes.pipeline_place == layout.pp - 1
    inputs = (torch.cat([micro.tokens for micro in micros]),) if first else ()
    runner.step(*inputs, target=numbers if last else None, positions=positions, return_outputs=False)


def forward_parts(
    parts: Sequence[LanguageModel],
    axes: Axes,
    micro: MicroBatch,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Run one micro-batch forward; the last rank returns the head's output, the others zeros of shape (B, S)."""
    layout, place = axes.layout, axes.pipeline_place
    before = dist.get_global_rank(axes.pipeline, (place - 1) % layout.pp)
    after = dist.get_global_rank(axes.pipeline, (place + 1) % layout.pp)
    lines, width = micro.tokens.shape
    split = layout.tp if layout.sequence_parallel else 1
    output = torch.zeros(lines, width, device=device)
    for part in parts:
        states = micro.tokens
        if not part.first:
            states = torch.empty(lines, width // split, channels, dtype=dtype, device=device)
            dist.recv(states, before, group=axes.pipeline)
        output = part(states, micro.positions)
        if not part.last:
            dist.send(output.to(dtype).contiguous(), after, group=axes.pipeline)
            output = torch.zeros(lines, width, device=device)
    return output
