"""The maximum cycle ratio: the least period T for which s_v + d T >= s_u + w holds on every arc u -> v.

Exact: weights are turned into fractions, so is T. A solution is a set of starts, one a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Number = int | float | Fraction
"""A number of seconds (or of any other unit): every float is itself a fraction, so nothing is rounded."""


@dataclass(frozen=True, slots=True)
class Arc:
    """s_target + distance * T >= s_source + weight. Weight and distance may be negative."""

    source: str
    target: str
    weight: Fraction
    distance: int


@dataclass(frozen=True, slots=True)
class CycleRatio:
    """The least T, one start a node (the earliest, none negative), and a cycle of arcs that forces T (if one does)."""

    period: Fraction
    starts: Mapping[str, Fraction]
    cycle: tuple[Arc, ...]


def maximum_cycle_ratio(arcs: Iterable[Arc], at_least: Fraction = Fraction(0)) -> CycleRatio | None:
    """Return the least T >= `at_least` that satisfies every arc, or None if no T does.

    T rises from cycle to cycle: a cycle that is violated at T, of weight W and total distance D, needs T >= W / D
    when D > 0, and rules out this and every larger T otherwise. Each round needs one Bellman-Ford search; the ratios
    strictly increase and there are finitely many cycles. Cuninghame-Green's iteration, started from below; see
    Dasdan, "Experimental analysis of the fastest optimum cycle ratio and mean algorithms", TODAES 2004.
    """
    listed = tuple(arcs)
    period, binding = at_least, tuple[Arc, ...]()
    while True:
        starts, cycle = _longest_paths(listed, period)
        if not cycle:
            return CycleRatio(period, starts, binding)
        distance = sum(arc.distance for arc in cycle)
        if distance <= 0:
            return None
        period, binding = sum((arc.weight for arc in cycle), Fraction(0)) / distance, cycle


def _longest_paths(arcs: Sequence[Arc], period: Fraction) -> tuple[dict[str, Fraction], tuple[Arc, ...]]:
    """Return the earliest starts (at least 0) at this period, and a cycle of positive length if there is one.

    Lengths w - d T are scaled to integers: comparing fractions would cost most of the time.
    """
    scale = math.lcm(period.denominator, *(arc.weight.denominator for arc in arcs))
    lengths = [int(arc.weight * scale) - arc.distance * int(period * scale) for arc in arcs]
    nodes = list(dict.fromkeys(name for arc in arcs for name in (arc.source, arc.target)))
    reach = dict.fromkeys(nodes, 0)
    last: dict[str, Arc] = {}
    for _ in range(len(nodes) + 1):
        changed = ""
        for arc, length in zip(arcs, lengths, strict=True):
            if reach[arc.source] + length > reach[arc.target]:
                reach[arc.target] = reach[arc.source] + length
                last[arc.target] = arc
                changed = arc.target
        if not changed:
            return {name: Fraction(reach[name], scale) for name in nodes}, ()
    return {}, _cycle_behind(changed, last)


def _cycle_behind(node: str, last: Mapping[str, Arc]) -> tuple[Arc, ...]:
    """Follow the arcs that set each node's start back into the cycle that they contain, and return it in order."""
    for _ in last:
        node = last[node].source
    cycle = [last[node]]
    while cycle[-1].source != node:
        cycle.append(last[cycle[-1].source])
    return tuple(reversed(cycle))
