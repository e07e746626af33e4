"""The maximum cycle ratio of a graph: the least period that a fixed order of execution allows. Exact rationals.

An arc (u, v, length, distance) asks s_v + distance * T >= s_u + length. The least T is the largest sum of lengths
over sum of distances round a cycle (Reiter 1968; Dasdan 2004 surveys the algorithms).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Arc = tuple[int, int, Fraction, int]


def least_period(nodes: int, arcs: Sequence[Arc]) -> Fraction | None:
    """Return the least T >= 0 for which starts exist, or None if no T does.

    Raises T to the ratio of a violated cycle until none is left: each step is exact and strictly upwards, so it ends
    at the largest ratio. A violated cycle of distance 0 or less stays violated for every larger T: no T exists.
    """
    period = Fraction(0)
    while True:
        cycle = _positive_cycle(nodes, arcs, period)
        if cycle is None:
            return period
        length = sum((arcs[index][2] for index in cycle), Fraction(0))
        distance = sum(arcs[index][3] for index in cycle)
        if distance <= 0:
            return None
        period = length / distance


def earliest_starts(nodes: int, arcs: Sequence[Arc], period: Fraction) -> list[Fraction]:
    """Return the earliest non-negative starts of all nodes for a feasible period."""
    start = [Fraction(0)] * nodes
    for _ in range(nodes):
        for u, v, length, distance in arcs:
            start[v] = max(start[v], start[u] + length - distance * period)
    return start


def _positive_cycle(nodes: int, arcs: Sequence[Arc], period: Fraction) -> list[int] | None:
    """Return the arcs of a cycle of positive length - distance * period, or None (Bellman and Ford)."""
    weight = [length - distance * period for _, _, length, distance in arcs]
    potential = [Fraction(0)] * nodes
    via = [-1] * nodes
    for _ in range(nodes):
        changed = -1
        for index, (u, v, _, _) in enumerate(arcs):
            if potential[u] + weight[index] > potential[v]:
                potential[v], via[v], changed = potential[u] + weight[index], index, v
        if changed < 0:
            return None
    node = changed
    for _ in range(nodes):
        node = arcs[via[node]][0]
    cycle, at = [via[node]], arcs[via[node]][0]
    while at != node:
        cycle.append(via[at])
        at = arcs[via[at]][0]
    return cycle
