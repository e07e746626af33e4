"""One model on one mesh in one layout: scores rows, accumulates gradients, updates. What `forward` and `train` run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rpegc.runtime.attention import Causal, Ulysses
from rpegc.runtime.batching import MicroBatch, lay_out, schedule, slice_of
from rpegc.runtime.groups import Axes
from rpegc.runtime.losses import logprobs_of
from rpegc.runtime.optimizer import Optimizer
from rpegc.runtime.parallel import apply_layout, build_parts
from rpegc.runtime.pipelining import forward_parts, train_parts
from rpegc.runtime.rows import Rows

LossOf = Callable[[Tensor, MicroBatch], dict[str, Tensor]]
"""From what the head gives for each token (log-probs or values, (B, S)) to token sums: `loss` and others to report."""


class Worker:
    """A role's model on a mesh. Build one on every rank of the mesh, with the same source model."""

    def __init__(
        self, source: Any, head: str, axes: Axes, precision: str, device: torch.device, temperature: float, train: bool
    ) -> None:
        self.axes, self.head, self.device, self.temperature = axes, head, device, temperature
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.parts = build_parts(source, head, axes)
        for part in self.parts:
            part.to(device)
            part.train(train)
            part.requires_grad_(train)
            apply_layout(part, axes, self.dtype)
        self.context = Ulysses(axes.ulysses) if axes.ulysses is not None else Causal()
        # Taken now, while FSDP's parameters are those that are sharded: after a pass they may be the gathered ones.
        self._named = {name: value for part in self.parts for name, value in part.named_parameters()}
        self.optimizer: Optimizer | None = None
        self.channels = int(self.parts[0].config.hidden_size)

    @property
    def multiple(self) -> int:
        """Tokens of a row are padded to a multiple of this."""
        layout = self.axes.layout
        return layout.ulysses * (layout.tp if layout.sequence_parallel else 1)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters by their checkpoint names (a tied head is the embedding)."""
        return dict(self._named)

    def score(self, batch: Rows, rows: Sequence[int], name: str) -> Rows:
        """Return the column `name` for this rank's share of rows: a number for each response token, or one a row.

        A `model_rewards` column takes the head's number at the last token.
        """
        result = Rows()
        with torch.no_grad(), self._precision():
            for micro in self._micro_batches(batch, rows, ()):
                values = self._per_token(self._forward(micro), micro)
                whole = _gathered(values, self.axes).float().cpu().numpy()
                for row, line, first, count in micro.rows:
                    result.put(row, response_length=[count])
                    if name == "model_rewards":
                        result.put(row, **{name: whole[line, first + count : first + count + 1].astype(np.float32)})
                    else:
                        result.put(row, **{name: whole[line, first : first + count].astype(np.float32)})
        self._reshard()
        return result if self.axes.speaks else Rows()

    def accumulate(self, batch: Rows, rows: Sequence[int], fields: Sequence[str], loss_of: LossOf) -> dict[str, float]:
        """Add the gradients of some rows to those of the update; return sums over this rank's tokens."""
        found: dict[int, dict[str, float]] = {}
        scale = float(self.axes.data_ranks) if self.axes.layout.zero >= 2 else 1.0  # FSDP averages, updates are sums

        def loss(output: Tensor, micro: MicroBatch) -> Tensor:
            parts = loss_of(self._per_token(output, micro), micro)
            # By micro-batch: a pipeline also calls this once on memory that holds nothing yet, to learn shapes.
            found[id(micro)] = {key: float(value.detach()) for key, value in parts.items()}
            return parts["loss"] * scale

        micros = list(self._micro_batches(batch, rows, fields))
        with self._precision():
            if self.axes.pipeline is not None:
                train_parts(self.parts, self.axes, micros, loss, self.device)
            else:
                for micro in micros:
                    loss(self._forward(micro), micro).backward()
        sums: dict[str, float] = {}
        for parts in found.values():
            for key, value in parts.items():
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def total(self, sums: dict[str, float], keys: Sequence[str]) -> dict[str, float]:
        """Add up sums of all ranks that hold different rows or tokens."""
        last = self.axes.pipeline_place == self.axes.layout.pp - 1
        counts = self.axes.tensor_place == 0 and last
        values = torch.tensor([sums.get(key, 0.0) if counts else 0.0 for key in keys], dtype=torch.float64)
        if len(self.axes.ranks) > 1:
            moved = values.to(self.device)
            dist.all_reduce(moved, group=self.axes.everyone)
            values = moved.cpu()
        return dict(zip(keys, values.tolist(), strict=True))

    def _reshard(self) -> None:
        """Free what FSDP gathered for a pass that no backward pass follows; ZeRO-2 would keep it, and keep it old."""
        for part in self.parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def _micro_batches(self, batch: Rows, rows: Sequence[int], fields: Sequence[str]) -> Iterator[MicroBatch]:
        lengths = {row: len(batch.column("tokens")[row]) for row in rows}
        shares = schedule(lengths, self.axes.layout)
        piped = self.axes.pipeline is not None  # its buffers have one shape
        shape = (0, 0)
        if piped:
            cuts = [cut for share in shares for cut in share]
            shape = (max(len(cut) for cut in cuts), max(lengths.values(), default=1))
        for cut in shares[self.axes.row_place]:
            micro = lay_out(batch, cut, fields, self.multiple, self.device, shape)
            if self.axes.ulysses is not None:
                micro = slice_of(micro, self.axes.data_place % self.axes.layout.ulysses, self.axes.layout.ulysses)
            yield micro

    def _forward(self, micro: MicroBatch) -> Tensor:
        if self.axes.pipeline is not None:
            return forward_parts(self.parts, self.axes, micro, self.channels, self.dtype, self.device)
        output: Tensor = self.parts[0](micro.tokens, micro.positions, self.context)
        return output

    def _per_token(self, output: Tensor, micro: MicroBatch) -> Tensor:
        if self.head == "scalar" or output.dim() == 2:
            return output.float()
        return logprobs_of(output, micro.targets, self.temperature)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32 or self.axes.layout.zero >= 2:  # FSDP casts by itself
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.device.type, dtype=self.dtype)
        return context


def _gathered(values: Tensor, axes: Axes) -> Tensor:
    """Return whole rows (B, S) from the slices of a Ulysses group."""
    if axes.ulysses is None:
        return values
    parts = [torch.empty_like(values) for _ in range(axes.layout.ulysses)]
    dist.all_gather(parts, values.contiguous(), group=axes.ulysses)
    return torch.cat(parts, dim=1)
