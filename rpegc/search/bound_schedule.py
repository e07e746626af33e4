"""The schedule of a bound plan, to ask of it what the plan says: its interval, and which cycle forces the period."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations

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
        self._graph = graph
        self._stages = stages
        self._meshes = {name: meshes[node] for name, node in choice.nodes.items()}
        self._milliseconds = choice.milliseconds
        self._windings = self._orders(choice, period_ms)

    def _orders(self, choice: Choice, period_ms: int) -> dict[tuple[str, str], int]:
        """Read the winding of each exclusive pair off the starts."""
        orders: dict[tuple[str, str], int] = {}
        for u, v in combinations([stage.name for stage in self._graph.stages], 2):
            if self._exclusive(u, v):
                gap = choice.start_ms[v] - choice.start_ms[u] - choice.milliseconds[u]
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

        The stage `measured` has the interval of a measurement.
        """
        seconds = {
            stage.name: Fraction(self._milliseconds[stage.name])
            * Fraction(1 if side is None else (MEASURED if stage.name == measured else stage.interval)[side])
            for stage in self._stages
        }
        return evaluate(self._graph, seconds, self._windings, None)

    def best_measurement(self) -> tuple[str, float, float] | None:
        """Return the stage whose measurement narrows the period's interval most, and high over low before and after.

        None where no measurement narrows it by a tenth.
        """
        low, high = self.interval_s()
        before = high / low if low > 0 else 1.0
        found: tuple[str, float, float] | None = None
        for stage in self._stages:
            ends = [self._at(side, stage.name) for side in (0, 1)]
            after = before
            if ends[0] is not None and ends[1] is not None and ends[0].period > 0:
                after = float(ends[1].period / ends[0].period)
            if after < 0.9 * before and (found is None or after < found[2]):
                found = (stage.name, before, after)
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
