"""Process groups of a plan: one a mesh, and those of each layout's axes. Every rank builds all of them in one order.

Ranks are numbered pool by pool and node by node: GPU g of node n is rank n * gpus_per_node + g of its pool. Inside a
mesh the axes are, from the outside: pipeline, data (of which Ulysses groups are neighbours), tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rpegc.errors import InputError
from rpegc.plan import Plan
from rpegc.target import EngineLayout, Layout, Mesh, ShardedLayout


def mesh_ranks(plan: Plan, mesh: Mesh) -> tuple[int, ...]:
    """Return the ranks of a mesh, node by node."""
    first, width = plan.devices.numbering(mesh.pool)
    return tuple(
        first + node * width + gpu
        for node in range(mesh.first_node, mesh.first_node + mesh.nodes)
        for gpu in range(mesh.first_gpu, mesh.first_gpu + mesh.gpus_per_node)
    )


def new_group(ranks: Sequence[int], backend: str | None = None) -> Any:
    """Make a group; None for a rank outside. Every rank of the world calls this for every group, in one order."""
    group = dist.new_group(list(ranks), backend=backend)
    return group if dist.get_rank() in ranks else None


@dataclass(frozen=True, slots=True)
class Axes:
    """Where this rank stands in a layout, and the groups that it belongs to (None: not on this mesh).

    `data` joins ranks of equal pipeline and tensor place, `ulysses` those that share rows, `everyone` the whole mesh;
    `tensor` is the device mesh of tensor parallelism, `shard` that of FSDP (one or two dimensions).
    """

    ranks: tuple[int, ...]
    layout: ShardedLayout
    member: bool
    pipeline_place: int = 0
    data_place: int = 0
    tensor_place: int = 0
    everyone: Any = None
    data: Any = None
    ulysses: Any = None
    pipeline: Any = None
    tensor: Any = None
    shard: Any = None

    @property
    def data_ranks(self) -> int:
        """Ranks along the data axis: dp * ulysses."""
        return self.layout.dp * self.layout.ulysses

    @property
    def row_place(self) -> int:
        """Which share of the rows this rank works on, 0 to dp - 1."""
        return self.data_place // self.layout.ulysses

    @property
    def speaks(self) -> bool:
        """Whether this rank puts the results of its rows: one of those that hold them."""
        last = self.pipeline_place == self.layout.pp - 1
        return self.member and last and self.tensor_place == 0 and self.data_place % self.layout.ulysses == 0

    @property
    def owner(self) -> int:
        """The first rank of the mesh."""
        return self.ranks[0]


def sharded_axes(ranks: tuple[int, ...], layout: ShardedLayout, device: str) -> Axes:
    """Build the groups of a training or forward layout on some ranks."""
    width = layout.dp * layout.ulysses
    if len(ranks) != layout.pp * width * layout.tp:
        raise InputError(f"a layout of {layout.pp * width * layout.tp} ranks does not tile a mesh of {len(ranks)}")
    shards = layout.shard_size or width
    if layout.zero < 2:
        shards = 1
    grid = torch.tensor(ranks).view(layout.pp, width // shards, shards, layout.tp)
    mesh = DeviceMesh(device, grid, mesh_dim_names=("pipeline", "replicate", "shard", "tensor"))
    flat = grid.view(layout.pp, width, layout.tp)
    everyone = new_group(ranks)
    data = _mine(flat.permute(0, 2, 1).reshape(-1, width))
    ulysses = _mine(flat.permute(0, 2, 1).reshape(-1, layout.ulysses)) if layout.ulysses > 1 else None
    pipeline = _mine(flat.permute(1, 2, 0).reshape(-1, layout.pp)) if layout.pp > 1 else None
    rank = dist.get_rank()
    if rank not in ranks:
        return Axes(ranks, layout, member=False)
    place = ranks.index(rank)
    shard = None
    if layout.zero >= 2:
        shard = mesh["replicate", "shard"] if width // shards > 1 else mesh["shard"]
    return Axes(
        ranks,
        layout,
        member=True,
        pipeline_place=place // (width * layout.tp),
        data_place=place // layout.tp % width,
        tensor_place=place % layout.tp,
        everyone=everyone,
        data=data,
        ulysses=ulysses,
        pipeline=pipeline,
        tensor=mesh["tensor"] if layout.tp > 1 else None,
        shard=shard,
    )


def engine_layout(layout: EngineLayout) -> ShardedLayout:
    """Return the sharded layout that an engine's weights have: replicas along the data axis, tensor inside."""
    return ShardedLayout(dp=layout.replicas * layout.engine_dp, tp=layout.tp)


def _mine(rows: torch.Tensor) -> Any:
    """Make a group of every row of ranks; return this rank's."""
    found = None
    for row in rows.tolist():
        found = new_group(row) or found
    return found


def axes_of(ranks: tuple[int, ...], layout: Layout, device: str) -> Axes:
    """Build the groups of a layout of either kind."""
    return sharded_axes(ranks, engine_layout(layout) if isinstance(layout, EngineLayout) else layout, device)
