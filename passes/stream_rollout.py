"""Let stages begin on the samples that are done while generation goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import fired, per_sample
from rpegc.ir.graph import Edge, Graph, Op
from rpegc.ir.meaning import COMPLETION_ORDER
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class StreamRollout:
    """Pass samples on in `chunks` equal parts, in the order in which they are done.

    Law, into assessment: a forward pass and a function that judges each sample alone give every sample what they gave
    it, in whatever order samples come. Exact.

    Law, into training: gradients of one optimizer update add up in any order, so that accumulation may begin early.
    That is exact only if each update keeps its members (one update a step), groups stay whole (groups of one: a group
    is done with its longest sample, so larger ones leave nothing to gain), the loss has a global denominator (every
    target of rpegc divides by the tokens of the whole update) and nothing on the way looks at the whole batch
    (`scope`). Otherwise updates take samples as they complete, which favours short ones: class `model`, and only where
    the user allows it.
    """

    chunks: int = 4

    name: ClassVar[str] = "stream-rollout"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, the exactly streamed one and, if allowed, the one whose updates follow completion."""
        if self.name not in context.capabilities.structures or fired(graph, self.name) or self.chunks < 2:
            return (graph,)
        readers = [edge for edge in graph.edges if _assesses(graph, edge)]
        if not readers:
            return (graph,)
        where = ", ".join(dict.fromkeys(edge.target for edge in readers))
        assessed = self._streamed(graph, readers)
        onward = _onward(graph, {edge.target for edge in readers})
        whole_groups = context.workload.samples_per_prompt == 1
        if not onward or not whole_groups:
            return (graph, assessed.recorded(self.name, "exact", f"{where} in {self.chunks} chunks"))
        trained = self._streamed(assessed, onward)
        steps = ", ".join(dict.fromkeys(edge.target for edge in onward))
        if _keeps_membership(graph, onward, context):
            return (graph, trained.recorded(self.name, "exact", f"{where}, {steps} in {self.chunks} chunks"))
        exact = assessed.recorded(self.name, "exact", f"{where} in {self.chunks} chunks")
        if self.name not in context.allow.model_changes:
            return (graph, exact)
        for stage in trained.of_op(Op.TRAIN):
            trained = trained.replace_stage(stage.with_attributes(**{COMPLETION_ORDER: True}))
        return (graph, exact, trained.recorded(self.name, "model", f"{where}, {steps} in {self.chunks} chunks"))

    def _streamed(self, graph: Graph, readers: list[Edge]) -> Graph:
        chosen = set(readers)
        edges = (replace(edge, chunks=self.chunks) if edge in chosen else edge for edge in graph.edges)
        return replace(graph, edges=tuple(edges))


def _assesses(graph: Graph, edge: Edge) -> bool:
    """Whether an edge carries samples of this step from an engine to a stage that treats each alone."""
    source, target = graph.stage(edge.source), graph.stage(edge.target)
    if source.op is not Op.GENERATE or edge.distance or edge.chunks > 1:
        return False
    return target.op is Op.FORWARD or (target.op is Op.FUNCTION and per_sample(graph, target))


def _onward(graph: Graph, assessing: set[str]) -> list[Edge]:
    """Return the edges by which samples and what was made of them reach the train stages within the step."""
    through = set(assessing)
    found: list[Edge] = []
    grown = True
    while grown:
        grown = False
        for edge in graph.edges:
            source, target = graph.stage(edge.source), graph.stage(edge.target)
            engine = source.op is Op.GENERATE and target.op in (Op.TRAIN, Op.FUNCTION)
            made = edge.source in through and source.op in (Op.FORWARD, Op.FUNCTION)
            if edge.distance or edge in found or edge.target in assessing or not (engine or made):
                continue
            if target.op in (Op.FORWARD, Op.FUNCTION, Op.TRAIN):
                found.append(edge)
                through.add(edge.target)
                grown = True
    return found if any(graph.stage(edge.target).op is Op.TRAIN for edge in found) else []


def _keeps_membership(graph: Graph, onward: list[Edge], context: Context) -> bool:
    functions = [graph.stage(edge.target) for edge in onward if graph.stage(edge.target).op is Op.FUNCTION]
    one_update = context.workload.updates_per_step == 1
    return one_update and all(per_sample(graph, function) for function in functions)
