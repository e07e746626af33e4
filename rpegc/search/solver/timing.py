"""What the edges alone say about time: distances between stages, and which windings an exclusion may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rpegc.search.solver.problem import Edge, Problem

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Timing:
    """Shortest distances from stage to stage.

    `distance[u, v]` counts over all paths; `waiting[u, v]` over paths whose first edge waits for the end of u (is not
    streamed). `far` stands for "no path": large enough that no period depends on it.
    """

    distance: Mapping[Pair, int]
    waiting: Mapping[Pair, int]
    far: int

    def windings(self, u: str, v: str) -> range:
        """Return the k for which s_v >= s_u + t_u + kT and s_u + (k+1)T >= s_v + t_v can hold together.

        A path u -> v of distance D gives s_v - s_u > -DT, a path back of distance D' gives s_v - s_u < D'T; both
        inserted into the pair of inequalities leave k = -D .. D' - 1. Synchronous pairs have exactly one.
        """
        return range(-self.distance[u, v], self.distance[v, u])

    def follows(self, u: str, v: str, k: int) -> bool:
        """Whether the edges alone imply s_v >= s_u + t_u + kT."""
        return self.waiting[u, v] <= -k


def timing_of(problem: Problem) -> Timing:
    """Return all shortest distances (Floyd and Warshall; a dozen stages)."""
    names = [stage.name for stage in problem.stages]
    far = sum(edge.distance for edge in problem.edges) + 2
    distance = {(u, v): 0 if u == v else far for u in names for v in names}
    for edge in problem.edges:
        pair = (edge.source, edge.target)
        distance[pair] = min(distance[pair], edge.distance)
    for middle in names:
        for u in names:
            for v in names:
                through = distance[u, middle] + distance[middle, v]
                distance[u, v] = min(distance[u, v], through)
    waiting = {(u, v): _after_end(problem.edges, distance, u, v, far) for u in names for v in names}
    return Timing(distance, waiting, far)


def _after_end(edges: tuple[Edge, ...], distance: Mapping[Pair, int], u: str, v: str, far: int) -> int:
    """Return the shortest distance over paths u -> v whose first edge is not streamed."""
    lengths = [edge.distance + distance[edge.target, v] for edge in edges if edge.source == u and edge.chunks == 1]
    return min([*lengths, far])
