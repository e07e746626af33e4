"""Stop generation before the longest samples are done, and go on with them in the next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import fired
from rpegc.ir.graph import Edge, Graph, Op
from rpegc.ir.meaning import CARRIES, SAMPLES, UNFINISHED, staleness_bound
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class PartialRollout:
    """Interrupt samples after an equal share of the longest length, and carry them over, up to `carries` times.

    Law: a sample that was carried over m times holds tokens of m + 1 versions of the weights; the age of its oldest
    token counts. With at most `carries` segments after the first, samples are at most that many versions older than
    without, and the whole stays within `allow.max_staleness`. As many samples end in a step as begin in it, but not the
    same ones. KV caches are not kept: the next step reads a carried sample's tokens again. Needs old log-probs that
    training recomputes, since the engine's come from several versions.
    """

    carries: int = 1

    name: ClassVar[str] = "partial-rollout"
    semantics: ClassVar[str] = "stale"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph that carries samples over."""
        workload, allow = context.workload, context.allow
        trained = {stage.model for stage in graph.of_op(Op.TRAIN)}
        engines = [s for s in graph.of_op(Op.GENERATE) if s.model in trained and not s.attribute(SAMPLES)]
        if self.name not in context.capabilities.structures or not allow.partial_rollout or not engines:
            return (graph,)
        varies = workload.max_response_tokens > workload.mean_response_tokens
        rests_on_versions = any(fired(graph, name) for name in ("drop-old-logprobs", "reuse-rollout-logprobs"))
        within = staleness_bound(graph) + self.carries <= allow.max_staleness
        if not varies or not within or rests_on_versions or fired(graph, self.name):
            return (graph,)
        changed = graph
        for stage in engines:
            changed = changed.replace_stage(stage.with_attributes(**{CARRIES: self.carries}))
            changed = replace(changed, edges=(*changed.edges, Edge(stage.name, stage.name, UNFINISHED, distance=1)))
        where = ", ".join(f"{stage.name}: at most {self.carries} carried over" for stage in engines)
        return (graph, changed.recorded(self.name, self.semantics, where))
