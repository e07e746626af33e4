"""The problem that every solver gets and the solution that every solver returns. Integers only.

Times are whole milliseconds, memory is counted in units (512 MiB is a good one), rounded up where a plan is charged
and down where it is granted. `solve(problem, limit, cutoff) -> Solution` is one signature for the ILP (`solve_ilp`),
the exhaustive reference (`exhaustive`) and the greedy baseline (`greedy`).

**Meshes.** A template is a tree of meshes: node 0 is the whole cluster. A mesh that is in use has a mesh class, at
most as many nodes and as many GPUs per node as its parent. The children of one parent lie side by side, either cut
along nodes (their nodes add up to at most the parent's) or cut along GPUs (their GPUs per node do). So a slice is a
child of all nodes in a cut along GPUs; an in-node mesh takes one node of a larger parent, and shares the node with
its siblings where the parent is that node. What a cut leaves over is idle. A child of the very shape of its parent
would be the same mesh under a second name: it is refused if every stage that may sit on it may sit on the parent.

**Time.** Stage u of step i starts at s_u + iT. An edge of distance d asks s_v + dT >= s_u + t_u; in c chunks it asks
s_v + (j-1) t_v / c + dT >= s_u + a_j for j = 1..c, where a_j is the completion curve of u. The wait for a chunk is
rounded up to whole milliseconds. Every stage excludes itself in the next step. GPU stages exclude each other if their
meshes overlap, that is, if one is the other or an ancestor of it. A sync occupies the meshes of its source and of its
target.

**Memory.** A GPU of a mesh holds what is resident of every stage on that mesh and on its ancestors, plus the largest
working set of one of them. Host memory of a node counts every stage on it; meshes cut along GPUs share their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

import numpy as np

from rpegc.target import IntArray, MeshClass


@dataclass(frozen=True, slots=True)
class Cell:
    """The layouts of one GPU stage on one mesh class: one element per row.

    `completion` has shape (rows, parts): milliseconds until the j-th of `parts` equal parts of the samples is done;
    all are at least 1, the last column is `milliseconds`, and the chunks of each edge out of the stage divide `parts`.
    `weights` (shared between stages, see `Problem.sharing`), `resident` and `working` count units per GPU, `host`
    units per node. `signature` numbers (mesh class, what other stages can see), once for the whole problem: equal
    numbers mean equal bytes in equal places. `ties` has shape (rows, tie groups of the problem): the key that the
    stages of the group must agree on (ignored for stages outside of the group). `layout` is the row's index in its
    price table.
    """

    milliseconds: IntArray
    completion: IntArray
    weights: IntArray
    resident: IntArray
    working: IntArray
    host: IntArray
    signature: IntArray
    ties: IntArray
    layout: IntArray

    @property
    def rows(self) -> int:
        """Number of layouts."""
        return len(self.milliseconds)

    def take(self, rows: IntArray) -> Cell:
        """Return the cell with these rows only, in this order."""
        return Cell(
            self.milliseconds[rows],
            self.completion[rows],
            self.weights[rows],
            self.resident[rows],
            self.working[rows],
            self.host[rows],
            self.signature[rows],
            self.ties[rows],
            self.layout[rows],
        )


@dataclass(frozen=True, slots=True)
class GpuStage:
    """A stage that occupies a mesh; `cells[m]` holds its layouts on mesh class m. A missing class is not allowed."""

    name: str
    cells: Mapping[int, Cell]


@dataclass(frozen=True, slots=True)
class HostStage:
    """A function on host cores: its time depends on no mesh. It may not overlap in time with the stages it `excludes`.

    Exclusion is symmetric: naming it on one side is enough. Streamed edges out of it complete evenly.
    """

    name: str
    milliseconds: int
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncStage:
    """The move of weights from one GPU stage to another; its time depends on both signatures.

    `across[i, j]` milliseconds from `source_signatures[i]` to `target_signatures[j]` if the two stages sit on
    different meshes, `same[i, j]` if they share one mesh. Every signature in the cells of the two stages is listed.
    The edges source -> sync -> target are edges of the problem like any other.
    """

    name: str
    source: str
    target: str
    source_signatures: tuple[int, ...]
    target_signatures: tuple[int, ...]
    across: IntArray
    same: IntArray


Stage = GpuStage | HostStage | SyncStage


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` waits for `source` of `distance` steps before; in `chunks` parts if more than 1 (never into a sync)."""

    source: str
    target: str
    distance: int = 0
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class TieGroup:
    """Stages that must agree on column `ties[:, i]` of their rows, i being the group's place in `Problem.ties`."""

    stages: tuple[str, ...]
    same_mesh: bool = True


@dataclass(frozen=True, slots=True)
class Template:
    """A tree of meshes: `parents[g]` is the parent of node g, smaller than g; node 0 is the cluster, its own parent.

    `homes` maps a GPU stage to the nodes it may sit on; a stage that is not named may sit on any.
    """

    parents: tuple[int, ...]
    homes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def home(self, stage: str) -> tuple[int, ...]:
        """Nodes that a stage may sit on."""
        return self.homes.get(stage, tuple(range(len(self.parents))))

    def children(self, node: int) -> tuple[int, ...]:
        """Nodes cut directly out of a node."""
        return tuple(child for child in range(1, len(self.parents)) if self.parents[child] == node)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the node and its ancestors, from the node up to the cluster."""
        nodes = [node]
        while nodes[-1]:
            nodes.append(self.parents[nodes[-1]])
        return tuple(nodes)

    @property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children."""
        return tuple(node for node in range(len(self.parents)) if not self.children(node))


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a solver needs to know.

    `cluster` is the whole machine (nodes, GPUs per node) and the shape of tree node 0. `ladder` lists templates from
    simple to rich; the last one contains all others and alone defines what may be chosen: earlier rungs only speed
    up the search. `sharing` lists groups of GPU stages that hold one copy of their weights when they sit on one mesh
    with equal signatures; within a group, `weights` must be a function of the signature (put any excess of one stage
    into its `resident`). Capacities are in memory units, per GPU and per node.
    """

    cluster: MeshClass
    mesh_classes: tuple[MeshClass, ...]
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    ladder: tuple[Template, ...]
    device_capacity: int
    host_capacity: int
    sharing: tuple[tuple[str, ...], ...] = ()
    ties: tuple[TieGroup, ...] = ()

    @property
    def gpu_stages(self) -> tuple[GpuStage, ...]:
        """The stages with a mesh, in declared order."""
        return tuple(stage for stage in self.stages if isinstance(stage, GpuStage))

    @property
    def host_stages(self) -> tuple[HostStage, ...]:
        """The functions on host cores, in declared order."""
        return tuple(stage for stage in self.stages if isinstance(stage, HostStage))

    @property
    def syncs(self) -> tuple[SyncStage, ...]:
        """The weight moves, in declared order."""
        return tuple(stage for stage in self.stages if isinstance(stage, SyncStage))

    @property
    def rows(self) -> int:
        """Number of layout rows over all stages and mesh classes."""
        return sum(cell.rows for stage in self.gpu_stages for cell in stage.cells.values())

    def check(self) -> None:
        """Raise `ValueError` if the parts contradict each other: a fault of whoever built the problem."""
        for fault in _faults(self):
            raise ValueError(fault)


def _faults(problem: Problem) -> Iterator[str]:
    """Yield one sentence for each contradiction."""
    names = [stage.name for stage in problem.stages]
    gpu = {stage.name: stage for stage in problem.gpu_stages}
    if len(set(names)) != len(names):
        yield f"stage names repeat: {names}"
    for edge in problem.edges:
        for name in (edge.source, edge.target):
            if name not in names:
                yield f"edge {edge.source} -> {edge.target} names an unknown stage {name}"
        if edge.chunks > 1 and any(sync.name in (edge.source, edge.target) for sync in problem.syncs):
            yield f"edge {edge.source} -> {edge.target} streams a sync"
        for cell in gpu[edge.source].cells.values() if edge.source in gpu else ():
            if cell.completion.shape[1] % edge.chunks:
                yield f"{cell.completion.shape[1]} parts of {edge.source} do not divide into {edge.chunks} chunks"
    waiting = set(names)
    while free := waiting - {e.target for e in problem.edges if e.distance == 0 and e.source in waiting}:
        waiting -= free
    if waiting:
        yield f"one of {sorted(waiting)} waits for itself in the same step"
    for sync in problem.syncs:
        sides = ((sync.source, sync.source_signatures), (sync.target, sync.target_signatures))
        for name, listed in sides:
            if name not in gpu:
                yield f"{sync.name} moves weights of {name}, which is no GPU stage"
            elif not {int(i) for cell in gpu[name].cells.values() for i in cell.signature} <= set(listed):
                yield f"{sync.name} lists no cost for some signature of {name}"
        if sync.across.shape != sync.same.shape or sync.across.shape != tuple(len(side[1]) for side in sides):
            yield f"{sync.name}: cost matrices do not fit the lists of signatures"
    for group in problem.sharing:
        seen: dict[int, int] = {}
        for cell in (cell for name in group for cell in gpu[name].cells.values()):
            for signature, weights in zip(cell.signature.tolist(), cell.weights.tolist(), strict=True):
                if seen.setdefault(signature, weights) != weights:
                    yield f"{group} share signature {signature} with {seen[signature]} and {weights} units of weights"
    for template in problem.ladder:
        if template.parents[:1] != (0,) or any(p >= g for g, p in enumerate(template.parents) if g):
            yield f"{template.parents} is no tree with parents before children"
    for stage in problem.gpu_stages:
        for index, cell in stage.cells.items():
            if cell.rows and int(cell.completion.min()) < 1:
                yield f"{stage.name} on {problem.mesh_classes[index]} completes a part in less than 1 ms: round up"
            if cell.rows and not np.array_equal(cell.completion[:, -1], cell.milliseconds):
                yield f"the completion curve of {stage.name} on {problem.mesh_classes[index]} does not end at its time"


@dataclass(frozen=True, slots=True)
class Limit:
    """When to stop: counts and CP-SAT's deterministic time (a machine-independent unit, 1-7 s each), never seconds.

    `tolerance` is the relative gap at which a plan counts as proven. `master_time` caps one relaxation, `total_time`
    the search for the period, `follow_up_time` each of the objectives that come after it (0 skips them).
    """

    tolerance: float = 0.01
    iterations: int = 200
    master_time: float = 4.0
    total_time: float = 20.0
    follow_up_time: float = 1.0
    memory_mb: int = 2000
    seed: int = 1


class Status(StrEnum):
    """What a solver can say: proven within the tolerance; a plan but a larger gap; nothing below the cutoff; no plan.

    `LIMIT` without a choice means that the search stopped before it found any plan.
    """

    PROVEN = "proven"
    LIMIT = "limit"
    CUTOFF = "cutoff"
    INFEASIBLE = "infeasible"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Choice:
    """One plan: `mesh_classes[g]` of each tree node of `template` (None: unused; `along_gpus[g]`: how g is cut).

    `nodes` maps a GPU stage to its tree node, `layouts` to its index in the price table (`Cell.layout`).
    `milliseconds` and `start_ms` hold time and start of every stage, syncs and functions included, in a schedule
    that repeats with a whole number of milliseconds: the solution's period, rounded up.
    """

    template: Template
    mesh_classes: tuple[int | None, ...]
    along_gpus: tuple[bool, ...]
    nodes: Mapping[str, int]
    layouts: Mapping[str, int]
    milliseconds: Mapping[str, int]
    start_ms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Solution:
    """What a solver found.

    `period` is the exact cycle ratio of the choice in milliseconds (None without a choice); `bound` the proven lower
    bound: no plan of the problem has a period whose whole milliseconds (rounded up) lie below it. `limit_hit` names
    the objectives that were cut short, among "period", "fewest nodes", "headroom", "canonical order". `statistics`
    holds counts (rows, boxes, masters, variables, constraints) and `deterministic_time`.
    """

    choice: Choice | None
    period: Fraction | None
    bound: int
    status: Status
    limit_hit: tuple[str, ...] = ()
    statistics: Mapping[str, float] = field(default_factory=dict)

    @property
    def period_ms(self) -> int | None:
        """The period in whole milliseconds, rounded up."""
        return None if self.period is None else -(-self.period.numerator // self.period.denominator)

    @property
    def gap(self) -> float:
        """Relative distance of the plan from the bound (infinite without a plan)."""
        if self.period_ms is None:
            return float("inf")
        return max(0.0, 1 - self.bound / self.period_ms) if self.period_ms else 0.0
