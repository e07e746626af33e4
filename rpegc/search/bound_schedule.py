"""The schedule of a bound plan, to ask of it what the plan says: its interval, and which cycle forces the period."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations

from rpegc.ir.fusion import contracted, units
from rpegc.ir.graph import Graph, Op
from rpegc.ir.period import PeriodResult, evaluate
from rpegc.plan import PlannedStage
from rpegc.search.solver.problem import Choice
from rpegc.target import Mesh

MEASURED = (0.9, 1.1)
"""Interval of a stage that was timed on the machine itself: steps of one run vary by about a tenth."""


class BoundSchedule:
    """A plan's order of stages, whose period can be evaluated again at other stage times."""

    def __init__(
        self, graph: Graph, choice: Choice, stages: tuple[PlannedStage, ...], meshes: Mapping[int, Mesh], period_ms: int
    ) -> None:
        self._graph = contracted(graph)
        members = units(graph)
        first = {names[0].name: unit for unit, names in members.items()}
        self._stages = {first[stage.name]: stage for stage in stages if stage.name in first}
        of = {unit: names[0].name for unit, names in members.items()}
        self._meshes = {unit: meshes[choice.nodes[name]] for unit, name in of.items() if name in choice.nodes}
        self._milliseconds = {unit: choice.milliseconds[name] for unit, name in of.items()}
        self._starts = {unit: choice.start_ms[name] for unit, name in of.items()}
        self._windings = self._orders(period_ms)

    def _orders(self, period_ms: int) -> dict[tuple[str, str], int]:
        """Read the winding of each exclusive pair off the starts."""
        orders: dict[tuple[str, str], int] = {}
        for u, v in combinations([stage.name for stage in self._graph.stages], 2):
            if self._exclusive(u, v):
                gap = self._starts[v] - self._starts[u] - self._milliseconds[u]
                orders[u, v] = gap // period_ms
        return orders

    def _exclusive(self, u: str, v: str) -> bool:
        return any(a.overlaps(b) for a in self._occupies(u) for b in self._occupies(v))

    def _occupies(self, name: str) -> tuple[Mesh, ...]:
        if name in self._meshes:
            return (self._meshes[name],)
        stage = self._graph.stage(name)
        if stage.op is not Op.SYNC:
            return ()
        ends = [edge.source for edge in self._graph.into(name)] + [edge.target for edge in self._graph.out_of(name)]
        return tuple(self._meshes[end] for end in ends if end in self._meshes)

    def _at(self, side: int | None, measured: str = "") -> PeriodResult | None:
        """Evaluate the period with every stage at one side of its interval, or at its own time (None).

        The unit `measured` has the interval of a measurement.
        """
        scale = {
            unit: Fraction(1 if side is None else (MEASURED if unit == measured else stage.interval)[side])
            for unit, stage in self._stages.items()
        }
        seconds = {unit: Fraction(self._milliseconds[unit]) * factor for unit, factor in scale.items()}
        curves = {
            unit: [Fraction(math.ceil(done * 1000.0 - 1e-6)) * scale[unit] for done in stage.completion]
            for unit, stage in self._stages.items()
            if stage.completion
        }
        return evaluate(self._graph, seconds, self._windings, curves)

    def best_measurement(self) -> tuple[str, float, float] | None:
        """Return the stage whose measurement narrows the period's interval most, and high over low before and after.

        None where no measurement narrows it by a tenth.
        """
        low, high = self.interval_s()
        before = high / low if low > 0 else 1.0
        found: tuple[str, float, float] | None = None
        for unit in self._stages:
            ends = [self._at(side, unit) for side in (0, 1)]
            after = before
            if ends[0] is not None and ends[1] is not None and ends[0].period > 0:
                after = float(ends[1].period / ends[0].period)
            if after < 0.9 * before and (found is None or after < found[2]):
                found = (unit, before, after)
        return found

    def interval_s(self) -> tuple[float, float]:
        """Return the period with every stage at the low end of its interval, and at the high end (fully correlated)."""
        low, high = self._at(0), self._at(1)
        assert low is not None, "the order of the plan is feasible at any stage times"
        assert high is not None, "the order of the plan is feasible at any stage times"
        return float(low.period) / 1000.0, float(high.period) / 1000.0

    def bottleneck(self, period_s: float) -> str:
        """Return a sentence that names the cycle that forces the period, largest stage first."""
        result = self._at(None)
        names = result.critical if result else ()
        shares = sorted(((self._milliseconds[name], name) for name in names), reverse=True)
        parts = [f"{name} {time / 10 / period_s:.0f} %" for time, name in shares if time * 20 >= period_s * 1000]
        return "the cycle of " + ", ".join(parts) if parts else "the load of one mesh"
