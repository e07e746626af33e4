"""Weights from a training layout to another layout or mesh, by name, a bucket at a time.

Each tensor is put together on the ranks that train it, sent to the other mesh where that has ranks of its own, and cut
for the layout there. No rank ever holds more than a bucket of whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from rpegc.runtime.groups import Axes
from rpegc.runtime.parallel import layers_of_part

BUCKET_ELEMENTS = 32 * 2**20
"""Numbers that travel in one broadcast."""

Shapes = Mapping[str, torch.Size]


@dataclass(frozen=True, slots=True)
class Route:
    """Where the weights of a role go from and to. `union` joins the ranks of both meshes; `shapes` has every tensor.

    `source` are the axes of training, `layers` the model's.
    """

    source: Axes
    target_ranks: tuple[int, ...]
    union: Any
    shapes: Shapes
    layers: int

    def owner(self, name: str) -> int:
        """Return the first rank that holds a tensor in the training layout."""
        layout = self.source.layout
        part = part_of(name, self.layers, layout.pp * layout.vpp) % layout.pp
        return self.source.ranks[part * layout.dp * layout.ulysses * layout.tp]

    @property
    def local(self) -> bool:
        """Whether every rank of the target puts together all tensors by itself."""
        return self.source.layout.pp == 1 and set(self.target_ranks) <= set(self.source.ranks)


def part_of(name: str, layers: int, parts: int) -> int:
    """Return the part of the model that holds a tensor."""
    pieces = name.split(".")
    if "layers" in pieces:
        layer = int(pieces[pieces.index("layers") + 1])
        return next(part for part in range(parts) if layer in layers_of_part(layers, parts, part))
    return 0 if "embed_tokens" in pieces else parts - 1


def publish(
    route: Route, source: Mapping[str, Tensor], target: Mapping[str, Tensor], device: torch.device, check: bool
) -> None:
    """Write the trained weights `source` (this rank's parameters, empty off the mesh) into `target` (likewise).

    Every rank of the union calls it. With `check`, every tensor is put together again on the target's side and compared
    bit for bit. Raises RuntimeError if it differs.
    """
    with torch.no_grad():
        for names in _buckets(route):
            whole = {name: _whole(source[name]) for name in names if name in source}
            if not route.local:
                whole = _broadcast(route, names, whole, device)
            for name in names:
                if name in target:
                    _write(target[name], whole[name])
                    if check:
                        _compare(name, target[name], whole[name])


def _buckets(route: Route) -> Iterator[list[str]]:
    """Yield names in order, cut where the owner changes or the bucket is full."""
    names: list[str] = []
    filled, owner = 0, -1
    for name, shape in route.shapes.items():
        if names and (route.owner(name) != owner or filled + shape.numel() > BUCKET_ELEMENTS):
            yield names
            names, filled = [], 0
        names.append(name)
        owner, filled = route.owner(name), filled + shape.numel()
    if names:
        yield names


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def _broadcast(route: Route, names: list[str], whole: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    owner, total = route.owner(names[0]), sum(route.shapes[name].numel() for name in names)
    if dist.get_rank() == owner:
        flat = torch.cat([whole[name].reshape(-1).float() for name in names]).to(device)
    else:
        flat = torch.empty(total, device=device)
    dist.broadcast(flat, owner, group=route.union)
    pieces = flat.split([route.shapes[name].numel() for name in names])
    return {name: piece.view(route.shapes[name]) for name, piece in zip(names, pieces, strict=True)}


def _write(target: Tensor, whole: Tensor) -> None:
    converted = whole.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        part = distribute_tensor(converted, target.device_mesh, target.placements, src_data_rank=None)
        target.to_local().copy_(part.to_local())
    else:
        target.copy_(converted)


def _compare(name: str, target: Tensor, whole: Tensor) -> None:
    again = _whole(target)
    if not torch.equal(again, whole.to(again.device, again.dtype)):
        raise RuntimeError(f"weights of {name} changed while they were resharded")
