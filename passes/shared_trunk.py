"""One model in place of two: what two roles compute becomes two heads on one trunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from passes.vocabulary import VALUES
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class ShareActorCritic:
    """Give the actor's trunk a value head, and drop the critic.

    Law: another model. Values come from the actor's hidden states, and one update moves the trunk for both losses.
    Values read weights of the step before, as the critic's did. [PF] names it the shared actor-critic. Fires where a
    role that generates and another that makes values are both trained.
    """

    name: ClassVar[str] = "share-actor-critic"
    semantics: ClassVar[str] = "model"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph with one trunk."""
        if self.name not in context.capabilities.structures or self.name not in context.allow.model_changes:
            return (graph,)
        trained = {stage.model for stage in graph.of_op(Op.TRAIN)}
        actors = dict.fromkeys(s.model for s in graph.of_op(Op.GENERATE) if s.model in trained)
        critics = dict.fromkeys(s.model for s in _makers(graph, VALUES) if s.model in trained and s.model not in actors)
        if len(actors) != 1 or len(critics) != 1:
            return (graph,)
        (actor,), (critic,) = actors, critics
        return (graph, one_trunk(graph, actor, critic).recorded(self.name, self.semantics, f"{critic} on {actor}"))


@dataclass(frozen=True, slots=True)
class MergeCriticReward:
    """Give the critic's trunk a reward head, and drop the reward model.

    Law: another model. Fires only where both are learned, as [PF] has it: a frozen reward model on a trunk that moves
    would drift with it.
    """

    name: ClassVar[str] = "merge-critic-reward"
    semantics: ClassVar[str] = "model"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the graph, and the graph with one trunk."""
        if self.name not in context.capabilities.structures or self.name not in context.allow.model_changes:
            return (graph,)
        trained = {stage.model for stage in graph.of_op(Op.TRAIN)}
        acting = {stage.model for stage in graph.of_op(Op.GENERATE)}
        critics = dict.fromkeys(s.model for s in _makers(graph, VALUES) if s.model in trained - acting)
        scalar = [s for s in graph.of_op(Op.FORWARD) if s.attribute("head") == "scalar"]
        rewards = dict.fromkeys(s.model for s in scalar if s.model in trained - acting and s.model not in critics)
        if len(critics) != 1 or len(rewards) != 1:
            return (graph,)
        (critic,), (reward,) = critics, rewards
        return (graph, one_trunk(graph, critic, reward).recorded(self.name, self.semantics, f"{reward} on {critic}"))


def _makers(graph: Graph, value: str) -> list[Stage]:
    names = {edge.source for edge in graph.edges if edge.value == value}
    return [stage for stage in graph.of_op(Op.FORWARD) if stage.name in names]


def one_trunk(graph: Graph, kept: str, absorbed: str) -> Graph:
    """Return the graph in which the role `kept` computes what `absorbed` did.

    A stage of the absorbed role becomes a second head of the kept role's stage of the same op that reads the same
    sequences; without such a stage it becomes a stage of the kept role.
    """
    while (pair := _next_pair(graph, kept, absorbed)) is not None:
        graph = _joined(graph, *pair)
    trainer = next(stage.name for stage in graph.of_op(Op.TRAIN) if stage.model == kept)
    for stage in graph.stages:
        if stage.model == absorbed:
            moved = replace(stage, model=kept)
            weights = Edge(trainer, stage.name, "weights", 1)
            edges = (edge for edge in graph.edges if not (edge.target == stage.name and edge.carries_weights))
            graph = replace(graph.replace_stage(moved), edges=(*edges, weights))
    return graph


def _next_pair(graph: Graph, kept: str, absorbed: str) -> tuple[Stage, Stage] | None:
    for stage in graph.stages:
        if stage.model != absorbed:
            continue
        for other in graph.stages:
            if (other.model, other.op) != (kept, stage.op):
                continue
            if stage.op is Op.TRAIN or _sequences_into(graph, stage) == _sequences_into(graph, other):
                return other, stage
    return None


def _sequences_into(graph: Graph, stage: Stage) -> frozenset[tuple[str, str, int]]:
    return frozenset((e.source, e.value, e.distance) for e in graph.into(stage.name) if not e.carries_weights)


def _joined(graph: Graph, kept: Stage, absorbed: Stage) -> Graph:
    """Return the graph in which one stage makes what both made, and reads what both read."""
    edges: dict[tuple[str, str, str], Edge] = {}
    for edge in graph.edges:
        if edge.target == absorbed.name and edge.carries_weights:
            continue
        moved = replace(
            edge,
            source=kept.name if edge.source == absorbed.name else edge.source,
            target=kept.name if edge.target == absorbed.name else edge.target,
        )
        if edge.source == absorbed.name and edge.carries_weights:
            continue  # stages of the absorbed role get the kept role's weights when they are moved
        edges.setdefault((moved.source, moved.target, moved.value), moved)
    stages = tuple(stage for stage in graph.stages if stage.name != absorbed.name)
    heads = {str(kept.attribute("heads", kept.attribute("head", "logits"))), str(absorbed.attribute("head", "scalar"))}
    graph = replace(graph, stages=stages, edges=tuple(edges.values()))
    return graph.replace_stage(kept.with_attributes(heads="_and_".join(sorted(heads))))
