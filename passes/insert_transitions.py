"""Make the move of weights to another place or layout a stage of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.homes import homes_of
from rpegc.ir.graph import WEIGHTS, Edge, Graph, Op, Stage
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class InsertTransitions:
    """Put a `sync` stage on each weight edge that leaves a train stage for another engine or another mesh.

    That is: on those into generate stages, and on those into forward stages that some placement of the target lets
    sit on another mesh than the train stage.

    Law: total distances stay. The sync belongs to the RL step whose update it publishes: train -> sync has distance 0,
    sync -> target the distance that the edge had. Where nothing moves its duration is 0.
    """

    name: ClassVar[str] = "insert-transitions"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph with its syncs; each stands behind the train stage that it follows."""
        stages: dict[str, list[Stage]] = {stage.name: [stage] for stage in graph.stages}
        edges: list[Edge] = []
        added: list[str] = []
        for edge in graph.edges:
            if not _needs_sync(edge, graph, context):
                edges.append(edge)
                continue
            source, target = graph.stage(edge.source), graph.stage(edge.target)
            name = _free_name(f"sync_{source.model}_{target.name}", graph)
            sync = Stage(name, Op.SYNC, source.model, position=source.position)
            stages[source.name].append(sync)
            added.append(sync.name)
            edges += [Edge(source.name, sync.name, WEIGHTS), replace(edge, source=sync.name)]
        if not added:
            return (graph,)
        ordered = tuple(stage for group in stages.values() for stage in group)
        rewritten = replace(graph, stages=ordered, edges=tuple(edges))
        return (rewritten.recorded(self.name, self.semantics, ", ".join(added)),)


def _free_name(name: str, graph: Graph) -> str:
    while graph.has(name):
        name += "_"
    return name


def _needs_sync(edge: Edge, graph: Graph, context: Context) -> bool:
    source, target = graph.stage(edge.source), graph.stage(edge.target)
    if not edge.carries_weights or source.op is not Op.TRAIN:
        return False
    if target.op is Op.FORWARD:
        return any(
            _apart(homes_of(pattern, source), homes_of(pattern, target)) for pattern in context.capabilities.placements
        )
    return target.op is Op.GENERATE


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two domains of meshes let their stages sit on different meshes."""
    return bool(one) and bool(other) and (one != other or len(one) > 1)
