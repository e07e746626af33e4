"""Two ways to save the forward pass that recomputes the log-probs of the actor before its update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import (
    BEHAVIOUR_LOGPROBS,
    OLD_LOGPROBS,
    forbidden_somewhere,
    is_synchronous,
    old_logprob_stages,
)
from rpegc.ir.graph import Graph, Op, Stage
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class DropOldLogprobs:
    """Take the old log-probs from the update's own forward pass, detached.

    Law: with one update a step the weights have not moved between the old pass and the update, so both passes compute
    the same numbers; the ratio is 1 and its gradient is unchanged. It fails with several updates a step (the old
    log-probs stay while the weights move), with an importance correction (which compares old with behaviour
    log-probs), and asynchronously (where the old pass marks the proximal policy of that correction); hence it fires
    only where none of these holds and only train stages of the same model read the value.
    """

    name: ClassVar[str] = "drop-old-logprobs"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph without the pass; beside it the old graph, if asynchrony or a placement needs that."""
        workload = context.workload
        holds = workload.updates_per_step == 1 and not workload.importance_correction and is_synchronous(graph)
        stages = [stage.name for stage in old_logprob_stages(graph) if _only_own_updates_read(graph, stage)]
        if not holds or not stages or self.name not in context.capabilities.structures:
            return (graph,)
        dropped = graph.without_stages(*stages).recorded(self.name, self.semantics, ", ".join(stages))
        needed = context.allow.max_staleness > 0 or forbidden_somewhere(self.name, context)
        return (graph, dropped) if needed else (dropped,)


def _only_own_updates_read(graph: Graph, stage: Stage) -> bool:
    readers = (graph.stage(edge.target) for edge in graph.out_of(stage.name))
    return all(reader.op is Op.TRAIN and reader.model == stage.model for reader in readers)


@dataclass(frozen=True, slots=True)
class ReuseRolloutLogprobs:
    """Use the generating engine's log-probs as the old ones.

    Law: another estimator. Engines never agree to the bit, so the ratio starts away from 1; under asynchrony the
    trust region is centred on the behaviour policy instead of the proximal one. Fires only if the user allows it.
    """

    name: ClassVar[str] = "reuse-rollout-logprobs"
    semantics: ClassVar[str] = "model"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph that reads the engine's log-probs instead."""
        if self.name not in context.capabilities.structures or self.name not in context.allow.model_changes:
            return (graph,)
        changed, where = graph, []
        for stage in old_logprob_stages(graph):
            engines = [engine for engine in graph.of_op(Op.GENERATE) if engine.model == stage.model]
            if len(engines) == 1:
                changed = _read_from(changed, stage.name, engines[0].name)
                where.append(f"{engines[0].name} for {stage.name}")
        return (graph, changed.recorded(self.name, self.semantics, ", ".join(where))) if where else (graph,)


def _read_from(graph: Graph, stage: str, engine: str) -> Graph:
    """Return the graph whose readers of a stage's old log-probs read the engine's own instead."""
    edges = []
    listed = {(edge.source, edge.target, edge.value) for edge in graph.edges}
    for edge in graph.edges:
        if edge.source == stage and edge.value == OLD_LOGPROBS:
            if (engine, edge.target, BEHAVIOUR_LOGPROBS) in listed:
                continue  # the reader has the engine's log-probs already
            edge = replace(edge, source=engine, value=BEHAVIOUR_LOGPROBS)
        edges.append(edge)
    return replace(graph, edges=tuple(edges)).without_stages(stage)
