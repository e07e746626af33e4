"""The period of a pipeline: seconds per RL step in the steady state, with exclusion that wraps round.

    edge u -> v, distance d        s_v + d T >= s_u + t_u
    streamed edge, chunk j of c    s_v + (j-1) t_v / c + d T >= s_u + a_j,  and  s_v + t_v + d T >= s_u + t_u + t_v / c
    u and v share a resource       s_v >= s_u + t_u + k T  and  s_u + (k+1) T >= s_v + t_v  for one integer winding k
    every stage                    T >= t_u  (a stage does not overlap with itself)

Starts belong to one RL step; a stage's start may lie before 0 or beyond T relative to another's. The search over
windings is exact and meant for graphs of some ten stages; the ILP decides larger ones, and `evaluate` recomputes its
period without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import networkx

from rpegc.ir.cycles import Arc, CycleRatio, Number, maximum_cycle_ratio
from rpegc.ir.graph import Edge, Graph

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PeriodResult:
    """A period with its proof: starts that reach it, a winding for each exclusive pair, and the cycle that forces it.

    `windings[u, v] = k` means: v of step i runs after u of step i + k and before u of step i + k + 1. `critical`
    names the stages of a cycle that forces the period, in order; it is empty where the load of one resource does.
    """

    period: Fraction
    starts: Mapping[str, Fraction]
    windings: Mapping[Pair, int]
    critical: tuple[str, ...]


def evaluate(
    graph: Graph,
    seconds: Mapping[str, Number],
    windings: Mapping[Pair, int],
    curves: Mapping[str, Sequence[Number]] | None = None,
) -> PeriodResult | None:
    """Return the exact period at given windings, or None if no period admits them.

    `seconds` of each stage; `curves[stage]` lists a_1 .. a_c, the seconds until each part of its samples is done
    (without it parts are done at an even pace).
    """
    ratio = cycle_ratio(graph, seconds, windings, curves)
    return None if ratio is None else _result(ratio, dict(windings))


def cycle_ratio(
    graph: Graph,
    seconds: Mapping[str, Number],
    windings: Mapping[Pair, int],
    curves: Mapping[str, Sequence[Number]] | None = None,
) -> CycleRatio | None:
    """Return the maximum cycle ratio of a graph's arcs and of exclusive pairs in given order."""
    times = _times(graph, seconds)
    orders = [arc for pair, k in windings.items() for arc in order_arcs(pair, k, times)]
    return maximum_cycle_ratio([*edge_arcs(graph, times, curves or {}), *orders])


def period(
    graph: Graph,
    seconds: Mapping[str, Number],
    exclusive: Iterable[Sequence[str]],
    curves: Mapping[str, Sequence[Number]] | None = None,
) -> PeriodResult:
    """Return the least period over all windings.

    `exclusive` lists groups of stages that share a resource: any two of one group exclude each other. Otherwise as
    `evaluate`. Branch and bound: the period without an undecided pair bounds it from below, and only pairs that
    overlap in that schedule are branched on.
    """
    times = _times(graph, seconds)
    groups = [list(dict.fromkeys(group)) for group in exclusive]
    pairs = dict.fromkeys(pair for group in groups for pair in _pairs_of(group, graph))
    load = max((sum((times[name] for name in group), Fraction(0)) for group in groups), default=Fraction(0))
    return _Search(graph, times, tuple(pairs), load, curves or {}).solve()


def edge_arcs(graph: Graph, times: Mapping[str, Fraction], curves: Mapping[str, Sequence[Number]]) -> list[Arc]:
    """Return the arcs of all edges, chunk by chunk where streamed, and every stage's arc to itself."""
    arcs = [Arc(stage.name, stage.name, times[stage.name], 1) for stage in graph.stages]
    for edge in graph.edges:
        arcs += _streamed(edge, times, curves) if edge.chunks > 1 else [_plain(edge, times)]
    return arcs


def order_arcs(pair: Pair, k: int, times: Mapping[str, Fraction]) -> tuple[Arc, Arc]:
    """Return the two arcs of an exclusive pair at winding k."""
    first, second = pair
    return Arc(first, second, times[first], -k), Arc(second, first, times[second], k + 1)


def _plain(edge: Edge, times: Mapping[str, Fraction]) -> Arc:
    return Arc(edge.source, edge.target, times[edge.source], edge.distance)


def _streamed(edge: Edge, times: Mapping[str, Fraction], curves: Mapping[str, Sequence[Number]]) -> list[Arc]:
    done = completion(times[edge.source], edge.chunks, curves.get(edge.source))
    share = times[edge.target] / edge.chunks
    return [Arc(edge.source, edge.target, done[j] - j * share, edge.distance) for j in range(edge.chunks)]


def completion(seconds: Fraction, chunks: int, curve: Sequence[Number] | None) -> list[Fraction]:
    """Return when each of `chunks` equal parts of a stage's samples is done; the last is the end of the stage.

    A curve of n parts is read at the first listed part that contains chunk j: part ceil(j n / chunks).
    """
    parts = [Fraction(part) for part in curve] if curve else [seconds * j / chunks for j in range(1, chunks + 1)]
    done = [parts[-(-j * len(parts) // chunks) - 1] for j in range(1, chunks + 1)]
    done[-1] = max(seconds, done[-1])
    return done


def _times(graph: Graph, seconds: Mapping[str, Number]) -> dict[str, Fraction]:
    return {stage.name: Fraction(seconds[stage.name]) for stage in graph.stages}


def _pairs_of(group: Sequence[str], graph: Graph) -> list[Pair]:
    """Return the pairs of a group, each once and in the order of the graph's stages."""
    ordered = [stage.name for stage in graph.stages if stage.name in group]
    return [(first, second) for i, first in enumerate(ordered) for second in ordered[i + 1 :]]


def _result(ratio: CycleRatio, windings: dict[Pair, int]) -> PeriodResult:
    return PeriodResult(ratio.period, ratio.starts, windings, tuple(arc.source for arc in ratio.cycle))


class _Search:
    """Branch and bound over the windings of exclusive pairs."""

    def __init__(
        self,
        graph: Graph,
        times: Mapping[str, Fraction],
        pairs: tuple[Pair, ...],
        load: Fraction,
        curves: Mapping[str, Sequence[Number]],
    ) -> None:
        self._graph, self._times, self._load = graph, times, load
        self._all_arcs = edge_arcs(graph, times, curves)
        self._part = _parts(graph)
        # Edges between parts never bind: a part may start any number of periods later than what it waits for.
        self._arcs = [arc for arc in self._all_arcs if self._part[arc.source] == self._part[arc.target]]
        self._anchors = _anchors(pairs, self._part)
        self._ranges = self._winding_ranges(pairs)
        self._best: CycleRatio | None = None
        self._best_windings: dict[Pair, int] = {}

    def solve(self) -> PeriodResult:
        """Search, then shift the parts of the graph apart until the edges between them hold too."""
        fixed = dict.fromkeys(self._anchors, 0)
        self._branch(fixed)
        assert self._best is not None  # one stage after the other, in the order of the edges, is always a schedule
        windings = {pair: self._best_windings[pair] for pair in self._ranges}
        return self._shifted(self._best, windings)

    def _winding_ranges(self, pairs: tuple[Pair, ...]) -> dict[Pair, range]:
        """Return for each pair u, v the windings -D(u, v) .. D(v, u) - 1; D is the least distance of a path.

        s_v - s_u lies strictly between -D(u, v) T and D(v, u) T; inserted into the pair's inequalities this leaves
        those values and no others. An anchored pair counts as two edges, of distances 0 and 1.
        """
        distances: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
        distances.add_nodes_from(stage.name for stage in self._graph.stages)
        for arc in self._arcs:
            distances.add_edge(arc.source, arc.target, distance=arc.distance)
        for first, second in self._anchors:
            distances.add_edge(first, second, distance=0)
            distances.add_edge(second, first, distance=1)
        shortest = dict(networkx.all_pairs_dijkstra_path_length(distances, weight="distance"))
        return {(u, v): range(-int(shortest[u][v]), int(shortest[v][u])) for u, v in pairs}

    def _branch(self, windings: dict[Pair, int]) -> None:
        orders = [arc for pair, k in windings.items() for arc in order_arcs(pair, k, self._times)]
        ratio = maximum_cycle_ratio([*self._arcs, *orders], self._load)
        if ratio is None or (self._best is not None and ratio.period >= self._best.period):
            return
        settled = {pair: self._winding_in(ratio, pair) for pair in self._ranges if pair not in windings}
        overlapping = [pair for pair, k in settled.items() if k is None]
        if not overlapping:
            self._best = ratio
            self._best_windings = windings | {pair: k for pair, k in settled.items() if k is not None}
            return
        pair = min(overlapping, key=lambda candidate: len(self._ranges[candidate]))
        for k in sorted(self._ranges[pair], key=lambda k: (abs(k), k)):
            self._branch(windings | {pair: k})

    def _winding_in(self, ratio: CycleRatio, pair: Pair) -> int | None:
        """Return the winding that a schedule gives a pair, or None if the two overlap."""
        (u, v), period = pair, ratio.period
        gap = ratio.starts[v] - ratio.starts[u]
        k = math.floor((gap - self._times[u]) / period) if period else 0
        return k if gap <= (k + 1) * period - self._times[v] and gap >= self._times[u] + k * period else None

    def _shifted(self, best: CycleRatio, windings: dict[Pair, int]) -> PeriodResult:
        period = best.period
        shifts = dict.fromkeys(self._part.values(), 0)
        for arc in sorted(self._all_arcs, key=lambda arc: self._part[arc.target]):  # parts are numbered topologically
            source, target = self._part[arc.source], self._part[arc.target]
            if source != target and period:
                late = best.starts[arc.source] + arc.weight - best.starts[arc.target] - arc.distance * period
                shifts[target] = max(shifts[target], shifts[source] + math.ceil(late / period))
        starts = {name: start + shifts[self._part[name]] * period for name, start in best.starts.items()}
        moved = {(u, v): k + shifts[self._part[v]] - shifts[self._part[u]] for (u, v), k in windings.items()}
        return PeriodResult(period, starts, moved, tuple(arc.source for arc in best.cycle))


def _parts(graph: Graph) -> dict[str, int]:
    """Number the strongly connected parts of a graph so that edges lead from smaller to larger numbers."""
    links: networkx.DiGraph[str] = networkx.DiGraph()
    links.add_nodes_from(stage.name for stage in graph.stages)
    links.add_edges_from((edge.source, edge.target) for edge in graph.edges)
    condensed = networkx.condensation(links)
    order = networkx.lexicographical_topological_sort(condensed, key=lambda part: min(condensed.nodes[part]["members"]))
    numbers = {part: number for number, part in enumerate(order)}
    return {name: numbers[part] for name, part in condensed.graph["mapping"].items()}


def _anchors(pairs: tuple[Pair, ...], part: Mapping[str, int]) -> list[Pair]:
    """Return pairs that link parts into a forest: each may have winding 0, since a whole tree can be shifted."""
    trees = networkx.utils.UnionFind(part.values())
    anchors = []
    for first, second in pairs:
        if trees[part[first]] != trees[part[second]]:
            trees.union(part[first], part[second])
            anchors.append((first, second))
    return anchors
