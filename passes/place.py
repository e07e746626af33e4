"""Attach where stages may sit: one variant for each way in which the target can place them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from passes.homes import homes_of
from passes.vocabulary import fired, publications
from rpegc.ir.fusion import composites, units
from rpegc.ir.graph import Edge, Graph, Op
from rpegc.rewrite import Context
from rpegc.target import PlacementPattern


@dataclass(frozen=True, slots=True)
class Place:
    """Attach the mesh tree, the launch mode and each GPU stage's domain of meshes, once per pattern that fits.

    Law: only places are added and, where the target starts a step only when the last one has ended, the edges that
    say so. A graph that no pattern fits has no alternative; `misfits` says why. Patterns that differ only in meshes
    that no stage of this graph may use are one: the first is kept. In a cluster of two kinds of machine, each part of
    the tree below the whole cluster belongs to one of them, in every way that leaves each stage a mesh of its kind.
    """

    name: ClassVar[str] = "place"
    semantics: ClassVar[str] = "exact"

    def alternatives(self, graph: Graph, context: Context) -> tuple[Graph, ...]:
        """Return one placed graph for each pattern that fits, in the target's order."""
        placed: dict[object, Graph] = {}
        for pattern in context.capabilities.placements:
            if next(misfits(graph, pattern), None) is None:
                for alternative in (
                    _in_pools(self._placed(graph, pattern)) if context.pools else (self._placed(graph, pattern),)
                ):
                    placed.setdefault(_used_places(alternative), alternative)
        return tuple(placed.values())

    def _placed(self, graph: Graph, pattern: PlacementPattern) -> Graph:
        homes = common_homes(graph, pattern)
        stages = tuple(
            replace(stage, meshes=homes[stage.name]) if stage.op.on_gpus else stage for stage in graph.stages
        )
        edges = (*graph.edges, *_barrier(graph)) if pattern.barrier else graph.edges
        placed = replace(graph, stages=stages, edges=edges, tree=pattern.parents, mode=pattern.mode)
        return placed.recorded(self.name, self.semantics, pattern.name)


def common_homes(graph: Graph, pattern: PlacementPattern) -> dict[str, tuple[int, ...]]:
    """Return the tree nodes that each GPU stage may sit on; members of a composite sit where all of them may."""
    homes: dict[str, tuple[int, ...]] = {}
    for members in units(graph).values():
        allowed = [set(homes_of(pattern, stage)) for stage in members if stage.op.on_gpus]
        if allowed:
            homes |= dict.fromkeys((stage.name for stage in members), tuple(sorted(set.intersection(*allowed))))
    return homes


def _in_pools(graph: Graph) -> Iterator[Graph]:
    """Yield the graph with each stage's meshes cut down to those of its kind of machine, for each division."""
    tops = [node for node in range(1, len(graph.tree)) if graph.tree[node] == 0]

    def top_of(node: int) -> int:
        return node if graph.tree[node] == 0 else top_of(graph.tree[node])

    for chosen in product((False, True), repeat=len(tops)):
        generating = {top for top, generates in zip(tops, chosen, strict=True) if generates}
        kept = {
            stage.name: tuple(m for m in stage.meshes if m and (top_of(m) in generating) == (stage.op is Op.GENERATE))
            for stage in graph.stages
            if stage.op.on_gpus
        }
        if all(kept.values()):
            stages = tuple(replace(s, meshes=kept[s.name]) if s.name in kept else s for s in graph.stages)
            yield replace(graph, stages=stages)


STEP_END = "step_end"
"""What the last stages of a step give the first stages of the next, where the target runs steps one by one."""


def _barrier(graph: Graph) -> tuple[Edge, ...]:
    """Return edges of distance 1 from every stage that ends a step to every stage that starts one."""
    within = [edge for edge in graph.edges if edge.distance == 0]
    last = [stage.name for stage in graph.stages if not any(edge.source == stage.name for edge in within)]
    first = [stage.name for stage in graph.stages if not any(edge.target == stage.name for edge in within)]
    drawn = {(edge.source, edge.target) for edge in graph.edges if edge.distance == 1}
    return tuple(Edge(u, v, STEP_END, distance=1) for u in last for v in first if (u, v) not in drawn)


def _used_places(graph: Graph) -> tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the mode, the tree of meshes that stages may use (renumbered), and each stage's meshes in it."""
    used = {0}
    for stage in graph.stages:
        for node in stage.meshes:
            while node not in used:
                used.add(node)
                node = graph.tree[node]
    number = {node: place for place, node in enumerate(sorted(used))}
    tree = tuple(number[graph.tree[node]] for node in sorted(used))
    return graph.mode, tree, tuple(tuple(number[node] for node in stage.meshes) for stage in graph.stages)


def misfits(graph: Graph, pattern: PlacementPattern) -> Iterator[str]:
    """Yield, in sentences, what keeps a graph from a placement pattern; nothing if it fits."""
    low, high = pattern.weight_distance
    for edge, distance in publications(graph):
        if not low <= distance <= high:
            yield f"`{edge.target}` uses weights of distance {distance}, `{pattern.name}` supports {low} to {high}"
    for name in pattern.requires:
        if not fired(graph, name):
            yield f"`{pattern.name}` requires the rewrite {name}"
    for name in pattern.forbids:
        if fired(graph, name):
            yield f"`{pattern.name}` cannot express the rewrite {name}"
    for unit, members in composites(graph).items():
        if not common_homes(graph, pattern)[members[0].name] and all(homes_of(pattern, stage) for stage in members):
            yield f"`{pattern.name}` has no one place for all of `{unit}`"
    roles = {stage.model for stage in graph.stages}
    for value, role in pattern.refuses.items():
        if any(edge.value == value for edge in graph.edges) and (not role or role in roles):
            yield f"`{pattern.name}` cannot carry the value `{value}`" + (f" beside a model `{role}`" if role else "")
    for stage in graph.stages:
        if stage.op.on_gpus and not homes_of(pattern, stage):
            yield f"`{pattern.name}` has no place for `{stage.name}` ({stage.op.value} of {stage.model})"
