"""Run several passes over the same sequences as one unit of time: assessment, and training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import networkx

from passes.vocabulary import fired
from rpegc.ir.fusion import FUSED
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class FuseAssessment:
    """Run the forward passes over the same sequences together: one mesh, one layout, micro-batches taking turns.

    Law: each pass computes what it computed, of the same sequences with the same weights; only when and where changes.
    Fires on the largest set of forward stages that read the same values and do not wait for each other.
    """

    name: ClassVar[str] = "fuse-assessment"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph with one assessment."""
        if self.name not in context.capabilities.structures or fired(graph, self.name):
            return (graph,)
        groups: dict[frozenset[Edge], list[Stage]] = {}
        for stage in graph.of_op(Op.FORWARD):
            groups.setdefault(_data_into(graph, stage), []).append(stage)
        members = _unordered(graph, max(groups.values(), key=len, default=[]))
        return (graph,) if len(members) < 2 else (graph, _fused(graph, members, "assessment", self))


@dataclass(frozen=True, slots=True)
class FuseTraining:
    """Interleave the training of several models on one mesh, so that each fills the other's pipeline bubbles.

    Law: each model keeps its minibatches, its gradients and its optimizer steps; only their micro-batches take turns.
    Source: intra-stage fusion of RLHFuse, arXiv 2409.13221. Fires on train stages that do not wait for each other.
    """

    name: ClassVar[str] = "fuse-training"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph with one training."""
        if self.name not in context.capabilities.structures or fired(graph, self.name):
            return (graph,)
        members = _unordered(graph, list(graph.of_op(Op.TRAIN)))
        return (graph,) if len(members) < 2 else (graph, _fused(graph, members, "training", self))


def _data_into(graph: Graph, stage: Stage) -> frozenset[Edge]:
    """Return what a stage reads besides weights, whoever reads it."""
    return frozenset(
        Edge(edge.source, "", edge.value, edge.distance, edge.chunks)
        for edge in graph.into(stage.name)
        if not edge.carries_weights
    )


def _unordered(graph: Graph, stages: list[Stage]) -> list[Stage]:
    """Return the stages, without those that another of them depends on within the step."""
    links: networkx.DiGraph[str] = networkx.DiGraph()
    links.add_nodes_from(stage.name for stage in graph.stages)
    links.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.distance == 0)
    names = {stage.name for stage in stages}
    before = {stage.name: networkx.ancestors(links, stage.name) for stage in stages}
    return [stage for stage in stages if not any(stage.name in before[name] for name in names)]


def _fused(graph: Graph, members: list[Stage], unit: str, rewrite: FuseAssessment | FuseTraining) -> Graph:
    while graph.has(unit):
        unit += "_"
    for stage in members:
        graph = graph.replace_stage(stage.with_attributes(**{FUSED: unit}))
    return graph.recorded(rewrite.name, rewrite.semantics, ", ".join(stage.name for stage in members))
