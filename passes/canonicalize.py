"""Remove what no update depends on, and do equal work once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import networkx

from passes.vocabulary import ADVANTAGES, OLD_LOGPROBS, REFERENCE_LOGPROBS
from rpegc.ir.graph import Edge, Graph, Op, Stage
from rpegc.rewrite import Context


@dataclass(frozen=True, slots=True)
class Canonicalize:
    """Drop dead values, the KL penalty's inputs when its coefficient is 0, and all but one of equal stages.

    Law: every optimizer update reads the same samples, weights and signals as before. A penalty times 0 is 0. A stage
    is dead if no path leads from it to a train stage or to a function that ends its path (such a function may have an
    effect outside). Forward stages are deterministic: equal model, attributes and inputs give equal values. Generate
    stages sample, and functions are known by name only: neither is ever merged.
    """

    name: ClassVar[str] = "canonicalize"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return the one canonical graph."""
        effects = [s.name for s in graph.stages if s.op is Op.TRAIN or _ends_a_path(graph, s)]
        done: list[str] = []
        if context.workload.kl_coefficient == 0:
            penalty = _penalty_inputs(graph, context.workload.kl_where)
            graph = replace(graph, edges=tuple(edge for edge in graph.edges if edge not in penalty))
            done += [f"no {edge.value} for {edge.target}" for edge in penalty]
        dead = _dead_stages(graph, effects)
        if dead:
            graph = graph.without_stages(*dead)
            done += [f"dead {name}" for name in dead]
        while (pair := _equal_stages(graph)) is not None:
            graph = _merged(graph, *pair)
            done.append(f"{pair[1]} is {pair[0]}")
        return (graph.recorded(self.name, self.semantics, ", ".join(done)) if done else graph,)


def _ends_a_path(graph: Graph, stage: Stage) -> bool:
    return stage.op is Op.FUNCTION and not any(graph.out_of(stage.name))


def _penalty_inputs(graph: Graph, where: str) -> tuple[Edge, ...]:
    """Return the edges that only the KL penalty reads.

    In the loss that is the reference's log-probs at a train stage; in the reward, those and the old ones that they
    are compared with, at the function that makes advantages.
    """
    found: list[Edge] = []
    for stage in graph.stages:
        compared = list(graph.into(stage.name))
        if not any(edge.value == REFERENCE_LOGPROBS for edge in compared):
            continue
        makes_advantages = any(edge.value == ADVANTAGES for edge in graph.out_of(stage.name))
        if stage.op is Op.TRAIN and where != "reward":
            found += [edge for edge in compared if edge.value == REFERENCE_LOGPROBS]
        if stage.op is Op.FUNCTION and makes_advantages and where == "reward":
            found += [edge for edge in compared if edge.value in (REFERENCE_LOGPROBS, OLD_LOGPROBS)]
    return tuple(found)


def _dead_stages(graph: Graph, effects: list[str]) -> tuple[str, ...]:
    links: networkx.DiGraph[str] = networkx.DiGraph()
    links.add_nodes_from(stage.name for stage in graph.stages)
    links.add_edges_from((edge.source, edge.target) for edge in graph.edges)
    alive = set(effects).union(*(networkx.ancestors(links, name) for name in effects))
    return tuple(stage.name for stage in graph.stages if stage.name not in alive)


def _equal_stages(graph: Graph) -> tuple[str, str] | None:
    """Return the first two forward stages that differ in name alone."""
    seen: dict[tuple[Stage, frozenset[Edge]], str] = {}
    for stage in graph.of_op(Op.FORWARD):
        inputs = frozenset(replace(edge, target="") for edge in graph.into(stage.name))
        key = (replace(stage, name=""), inputs)
        if key in seen:
            return seen[key], stage.name
        seen[key] = stage.name
    return None


def _merged(graph: Graph, kept: str, dropped: str) -> Graph:
    moved = (replace(edge, source=kept) if edge.source == dropped else edge for edge in graph.edges)
    edges = dict.fromkeys(edge for edge in moved if edge.target != dropped)
    return replace(graph.without_stages(dropped), edges=tuple(edges))
