"""The RPEG on one page: stages, edges with distances, and the graph that holds them. Everything is frozen.

    s_v + d T >= s_u + t_u      for an edge u -> v of distance d

An edge of distance 0 is used in the same RL step; weights travel from `train` to the next `generate` at distance 1.
Passes build new graphs with `dataclasses.replace`; nothing here is ever mutated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rpegc.errors import SourcePosition

Scalar = str | int | float | bool

WEIGHTS = "weights"
"""The value of every edge that carries weights; whose they are is the model of the stage that it leaves."""


class Op(StrEnum):
    """What a stage does."""

    GENERATE = "generate"
    FORWARD = "forward"
    TRAIN = "train"
    FUNCTION = "function"
    SYNC = "sync"

    @property
    def on_gpus(self) -> bool:
        """Whether the stage occupies a mesh of GPUs with a layout (a function occupies host cores)."""
        return self in (Op.GENERATE, Op.FORWARD, Op.TRAIN)


@dataclass(frozen=True, slots=True)
class Stage:
    """One unit of work of the RL step.

    `model` is the role whose weights it uses ("" for functions; for a sync, the role that it moves). `attributes` are
    sorted (name, scalar) pairs: what pricing needs and the model does not say, such as `cpu_seconds_per_sample` of a
    function, `head` of a forward ("logits" or "scalar"), `adapter` of a forward ("on", "off").
    `meshes` is the domain that `place` attached (tree nodes of the graph's `tree`), `layouts` the domain that
    `parallelize` attached: sorted (field, allowed values). Both are empty before those passes.
    """

    name: str
    op: Op
    model: str = ""
    attributes: tuple[tuple[str, Scalar], ...] = ()
    meshes: tuple[int, ...] = ()
    layouts: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()
    position: SourcePosition | None = field(default=None, compare=False)

    def attribute(self, name: str, default: Scalar = "") -> Scalar:
        """Return an attribute's value, or the default."""
        return dict(self.attributes).get(name, default)

    def with_attributes(self, **changes: Scalar) -> Stage:
        """Return the stage with attributes added or replaced."""
        merged = dict(self.attributes) | changes
        return replace(self, attributes=tuple(sorted(merged.items())))


@dataclass(frozen=True, slots=True)
class Edge:
    """`value` of `source` is used by `target`, `distance` RL steps later, in `chunks` parts (1 = not streamed)."""

    source: str
    target: str
    value: str
    distance: int = 0
    chunks: int = 1

    @property
    def carries_weights(self) -> bool:
        """Whether the edge publishes a role's weights (which role: the model of its source)."""
        return self.value == WEIGHTS


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A record of one pass that fired: its name, its semantics class, where."""

    name: str
    semantics: str
    where: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole pipeline. Stages and edges keep the order in which they were declared; names are unique.

    `tree` holds the parent of each mesh-tree node once `place` ran (node 0 is the whole cluster). `mode` is the
    target's word for the launch mode that this variant needs, `engine` its word for the training engine (empty where
    it has one only). `rewrites` are the passes that fired, in order.
    """

    name: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    tree: tuple[int, ...] = ()
    mode: str = ""
    rewrites: tuple[Rewrite, ...] = ()
    engine: str = ""

    def stage(self, name: str) -> Stage:
        """Return the stage of this name; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def has(self, name: str) -> bool:
        """Whether a stage of this name exists."""
        return any(stage.name == name for stage in self.stages)

    def into(self, name: str) -> Iterator[Edge]:
        """Yield the edges that end at a stage."""
        return (edge for edge in self.edges if edge.target == name)

    def out_of(self, name: str) -> Iterator[Edge]:
        """Yield the edges that start at a stage."""
        return (edge for edge in self.edges if edge.source == name)

    def of_op(self, op: Op) -> tuple[Stage, ...]:
        """Return the stages of one op, in declared order."""
        return tuple(stage for stage in self.stages if stage.op is op)

    def replace_stage(self, stage: Stage) -> Graph:
        """Return the graph with the stage of the same name replaced."""
        return replace(self, stages=tuple(stage if old.name == stage.name else old for old in self.stages))

    def without_stages(self, *names: str) -> Graph:
        """Return the graph without these stages and every edge that touches them."""
        return replace(
            self,
            stages=tuple(stage for stage in self.stages if stage.name not in names),
            edges=tuple(e for e in self.edges if e.source not in names and e.target not in names),
        )

    def recorded(self, name: str, semantics: str, where: str) -> Graph:
        """Return the graph with one more fired rewrite on record."""
        return replace(self, rewrites=(*self.rewrites, Rewrite(name, semantics, where)))
