"""AdamW over whatever the layout holds: replicated, ZeRO-1 (states split by parameter) or sharded parameters.

Gradients hold sums over all tokens of an update; `step` reduces them along the data axis, divides by the denominator,
clips by the global norm and updates. Masters and states are fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rpegc.runtime.groups import Axes

BUCKET_BYTES = 64 * 2**20
"""Bytes that one all-reduce of gradients takes at once."""


class Optimizer:
    """AdamW of one rank. `named` maps names to the rank's parameters."""

    def __init__(
        self, named: dict[str, nn.Parameter], axes: Axes, learning_rate: float, options: dict[str, Any]
    ) -> None:
        self.named, self.axes, self.options = named, axes, options
        self.learning_rate, self.updates = learning_rate, 0
        self.owned = self._owned()
        self.adam = torch.optim.AdamW(
            [named[name] for name in self.owned],
            lr=learning_rate,
            weight_decay=options["weight_decay"],
        )
        for name in self.owned:
            parameter = named[name]
            self.adam.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def _owned(self) -> list[str]:
        """Return the names whose states this rank keeps: all of them, or with ZeRO-1 an even share."""
        if self.axes.layout.zero != 1 or self.axes.data_ranks == 1:
            return list(self.named)
        return [name for name, owner in self._owners().items() if owner == self.axes.data_place]

    def _owners(self) -> dict[str, int]:
        loads = [0] * self.axes.data_ranks
        owners = {}
        for name in sorted(self.named, key=lambda name: (-self.named[name].numel(), name)):
            owner = loads.index(min(loads))
            owners[name] = owner
            loads[owner] += self.named[name].numel()
        return owners

    def states(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (parameter, state, tensor) of the moments that this rank keeps."""
        for name in self.owned:
            for moment in ("exp_avg", "exp_avg_sq"):
                yield name, moment, self.adam.state[self.named[name]][moment]

    def step(self, denominator: float) -> float:
        """Make one update from the gradients and forget them; return the norm of the gradient before clipping."""
        with torch.no_grad():
            for parameter in self.named.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            if self.axes.layout.zero < 2 and self.axes.data_ranks > 1:
                self._reduce()
            for parameter in self.named.values():
                parameter.grad.div_(denominator)
            norm = self._norm()
            limit = self.options["gradient_clip"]
            if limit and norm > limit:
                for parameter in self.named.values():
                    parameter.grad.mul_(limit / norm)
        self.updates += 1
        rate = self.learning_rate * min(1.0, self.updates / max(self.options["warmup_steps"], 1))
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        with torch.no_grad():
            if len(self.owned) < len(self.named) or self.axes.layout.zero == 1:
                self._publish()
        for parameter in self.named.values():
            parameter.grad = None
        return norm

    def resume(self, updates: int) -> None:
        """Go on after that many updates: the bias correction of the moments needs the count."""
        self.updates = updates
        for name in self.owned:
            self.adam.state[self.named[name]]["step"].fill_(float(updates))

    def _reduce(self) -> None:
        """Sum gradients over the data axis, in buckets."""
        bucket: list[Tensor] = []
        filled = 0
        for parameter in self.named.values():
            bucket.append(local(parameter.grad))
            filled += bucket[-1].numel() * bucket[-1].element_size()
            if filled >= BUCKET_BYTES:
                _all_reduce(bucket, self.axes.data)
                bucket, filled = [], 0
        if bucket:
            _all_reduce(bucket, self.axes.data)

    def _publish(self) -> None:
        """Send the parameters that each rank has updated to the others (ZeRO-1)."""
        if self.axes.data_ranks == 1:
            return
        for name, owner in self._owners().items():
            dist.broadcast(
                local(self.named[name].data), dist.get_global_rank(self.axes.data, owner), group=self.axes.data
            )

    def _norm(self) -> float:
        """Return the norm of the whole gradient, however it is split: every copy counts with its share."""
        ranks = self.axes.data_ranks * self.axes.layout.tp
        total = torch.zeros((), dtype=torch.float64)
        for parameter in self.named.values():
            part = local(parameter.grad)
            total += part.double().square().sum().cpu() * (_shards(parameter.grad) / ranks)
        if dist.is_initialized() and dist.get_world_size(self.axes.everyone) > 1:
            moved = total.to(_device_of(self.named))
            dist.all_reduce(moved, group=self.axes.everyone)
            total = moved.cpu()
        return float(total.sqrt())


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def _shards(tensor: Any) -> int:
    """Return into how many different parts a tensor is split over the ranks of its mesh."""
    if not isinstance(tensor, DTensor):
        return 1
    count = 1
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            count *= tensor.device_mesh.size(axis)
    return count


def _all_reduce(parts: list[Tensor], group: Any) -> None:
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat, group=group)
    for part, summed in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(summed.view_as(part))


def _device_of(named: dict[str, nn.Parameter]) -> torch.device:
    for parameter in named.values():
        return local(parameter).device
    return torch.device("cpu")
