"""How sure a choice is: periods under drawn errors of the prices, shared between plans as far as they share stages.

A stage's seconds are multiplied by a lognormal factor whose 10 % and 90 % quantiles are the ends of its 80 % interval.
Part of the error is the model's for that kind of stage, the same in every plan; the rest belongs to the layout, the
same only where two plans run a stage with one layout on one shape of mesh.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from rpegc.explain.why import unit_stages, windings_of
from rpegc.ir.fusion import contracted
from rpegc.ir.graph import Graph
from rpegc.plan import Plan, PlannedStage
from rpegc.reasons import Odds
from rpegc.target import FloatArray

DRAWS = 1000
SHARED = 0.5
"""Share of the variance of an error that is common to all layouts of a kind of stage (assumed: no published rows price
the same work under many layouts on one machine)."""
QUANTILE = 1.2815515655446004
"""Standard deviations from the mean to the 90 % quantile."""
HALVINGS = 40
"""Steps of the bisection of the period: it ends at a relative error of 1e-9 or so."""


def odds(plans: Sequence[Plan], seed: int) -> tuple[Odds, ...]:
    """Return the expected period of each plan, and how often the first is faster; in the order given."""
    drawn = [periods(plan, factors(plan, seed)) for plan in plans]
    rows = []
    for place, (plan, values) in enumerate(zip(plans, drawn, strict=True)):
        low, high = np.quantile(values, (0.1, 0.9))
        faster = float(np.mean(drawn[0] < values) + 0.5 * np.mean(drawn[0] == values)) if place else None
        rows.append(Odds(plan, float(values.mean()), float(low), float(high), faster))
    return tuple(rows)


def factors(plan: Plan, seed: int, draws: int = DRAWS) -> dict[str, FloatArray]:
    """Return drawn multipliers of each stage's seconds; equal stages of two plans get equal ones."""
    return {stage.name: _factor(plan, stage, seed, draws) for stage in plan.stages}


def _factor(plan: Plan, stage: PlannedStage, seed: int, draws: int) -> FloatArray:
    low, high = (math.log(bound) for bound in stage.interval)
    if high <= low:
        return np.ones(draws)
    shape = plan.mesh(stage.mesh).mesh_class if stage.mesh else ""
    own = f"{stage.name} {shape} {plan.target.name} {plan.graph.engine} {stage.layout}"
    common, particular = _normal(seed, stage.op, draws), _normal(seed, own, draws)
    deviation = math.sqrt(SHARED) * common + math.sqrt(1 - SHARED) * particular
    return np.exp((low + high) / 2 + (high - low) / (2 * QUANTILE) * deviation)


def _normal(seed: int, key: str, draws: int) -> FloatArray:
    return np.random.default_rng([seed, zlib.crc32(key.encode())]).standard_normal(draws)


def periods(plan: Plan, multipliers: Mapping[str, FloatArray]) -> FloatArray:
    """Return the period of a plan's order for each draw of its stages' multipliers, in seconds.

    Bisection of the period over all draws at once: one is long enough if no cycle of waits gets longer round by round
    (Bellman and Ford).
    """
    stages = unit_stages(plan)
    seconds = {name: stage.seconds * multipliers[stage.name] for name, stage in stages.items()}
    curves = {
        name: [done * multipliers[stage.name] for done in stage.completion]
        for name, stage in stages.items()
        if stage.completion
    }
    arcs = _arcs(contracted(plan.graph), seconds, curves)
    for (u, v), k in windings_of(plan).items():
        arcs += [(u, v, seconds[u], -k), (v, u, seconds[v], k + 1)]
    low = np.max(list(seconds.values()), axis=0)
    high = np.sum(list(seconds.values()), axis=0)
    while not np.all(feasible := _feasible(arcs, list(seconds), high)):
        high = np.where(feasible, high, 2 * high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        long_enough = _feasible(arcs, list(seconds), middle)
        low, high = np.where(long_enough, low, middle), np.where(long_enough, middle, high)
    return np.asarray(high, dtype=np.float64)


Arc = tuple[str, str, FloatArray, int]
"""From, to, seconds to wait, distance in periods."""


def _arcs(graph: Graph, seconds: Mapping[str, FloatArray], curves: Mapping[str, Sequence[FloatArray]]) -> list[Arc]:
    arcs: list[Arc] = []
    for edge in graph.edges:
        c = edge.chunks
        for j in range(c):
            curve = curves.get(edge.source)
            even = seconds[edge.source] * (j + 1) / c
            done = curve[-(-(j + 1) * len(curve) // c) - 1] if curve and j < c - 1 else even
            wait = done - seconds[edge.target] * (j / c)
            arcs.append((edge.source, edge.target, wait, edge.distance))
    return arcs


def _feasible(arcs: Sequence[Arc], names: Sequence[str], period: FloatArray) -> np.ndarray:
    """Return for each draw whether starts exist at that period."""
    start = {name: np.zeros_like(period) for name in names}
    weights = [(u, v, wait - distance * period) for u, v, wait, distance in arcs]
    for _ in names:
        before = dict(start)
        for u, v, weight in weights:
            start[v] = np.maximum(start[v], start[u] + weight)
    settled = np.ones(period.shape, dtype=bool)
    for name in names:
        settled &= start[name] <= before[name] + 1e-9 * period
    return settled
