"""Finish the longest samples on a few GPUs, so that the others go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import fired, per_sample
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.ir.meaning import CARRIES, SAMPLES, UNFINISHED
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class SplitTail:
    """Move the samples that are among the longest `share` to an engine of their own (a second generate stage).

    Law: each sample is continued from its own tokens with the same version of the weights, and every update reads all
    of the step's samples, those of both engines: membership, groups and denominators stay. Forward passes and functions
    that treat each sample alone begin with the samples that are done; everything else waits for both engines.
    `share` is 1 over the number of chunks in which such readers wait. Fires where lengths vary.
    """

    share: float = 0.125

    name: ClassVar[str] = "split-tail"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph with a tail stage beside each engine."""
        workload = context.workload
        varies = workload.max_response_tokens > workload.mean_response_tokens
        engines = [s for s in graph.of_op(Op.GENERATE) if not s.attribute(SAMPLES) and not s.attribute(CARRIES)]
        if self.name not in context.capabilities.structures or not varies or not engines or fired(graph, self.name):
            return (graph,)
        split = graph
        for stage in engines:
            split = self._split(split, stage)
        where = ", ".join(f"the longest {self.share:.3g} of {stage.name}" for stage in engines)
        return (graph, split.recorded(self.name, self.semantics, where))

    def _split(self, graph: Graph, stage: Stage) -> Graph:
        name = f"{stage.name}_tail"
        while graph.has(name):
            name += "_"
        tail = replace(stage, name=name).with_attributes(samples="tail", tail_share=self.share)
        head = stage.with_attributes(samples="head", tail_share=self.share)
        stages: list[Stage] = []
        for other in graph.stages:
            stages += [head, tail] if other.name == stage.name else [other]
        edges = [*graph.edges, Edge(stage.name, name, UNFINISHED)]
        for edge in graph.edges:
            if edge.source == stage.name:
                edges.append(replace(edge, source=name, chunks=self._chunks(graph, edge)))
            if edge.target == stage.name and edge.source != stage.name:
                edges.append(replace(edge, target=name))
        return replace(graph, stages=tuple(stages), edges=tuple(edges))

    def _chunks(self, graph: Graph, edge: Edge) -> int:
        """Return in how many parts a reader of the tail waits: its last part is the tail."""
        target = graph.stage(edge.target)
        alone = target.op is Op.FORWARD or (target.op is Op.FUNCTION and per_sample(graph, target))
        return round(1 / self.share) if alone and edge.distance == 0 else 1
