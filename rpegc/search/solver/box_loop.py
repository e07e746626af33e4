"""The lazy refinement of boxes: solve the relaxed problem, price its plan with real rows, split the boxes it chose.

Bound and plan are valid at every step, and the loop ends because at worst every box is one row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from rpegc.search.solver.boxes import Box, CellKey, Splitter, box_of, cells_of
from rpegc.search.solver.master import Answer, Relaxed, solve_master
from rpegc.search.solver.measures import devices_used, free_units, order_of
from rpegc.search.solver.problem import Choice, Limit, Problem, Template
from rpegc.search.solver.schedule import exact_choice
from rpegc.search.solver.timing import Timing
from rpegc.search.solver.variables import Data, Goal, Meshes

FEW_ROWS = 100
"""Boxes with more rows than this together are split before their rows are tried one by one."""


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best plan so far, and its rank: whole milliseconds, devices, free units, layout order."""

    choice: Choice
    exact_period: Fraction
    meshes: Meshes
    period: int
    devices: int
    headroom: int
    order: int


@dataclass(slots=True)
class Search:
    """The state that lives from rung to rung: boxes, the best plan and the effort spent.

    `wanted` is the largest period of interest (ms) before any plan is known. `bound` is the lower bound of the rung
    in progress. `spent` counts deterministic time, `largest` the variables and constraints of the largest program.
    """

    problem: Problem
    timing: Timing
    limit: Limit
    wanted: int
    boxes: dict[CellKey, tuple[Box, ...]]
    splitter: Splitter
    incumbent: Incumbent | None = None
    bound: int = 0
    spent: float = 0.0
    masters: int = 0
    largest: tuple[int, int] = (0, 0)

    @property
    def progress(self) -> tuple[int, ...]:
        """Numbers of which one changes whenever a box is split or a better plan is found."""
        best = self.incumbent
        rank = () if best is None else (best.period, best.devices, best.headroom, best.order)
        return (sum(len(boxes) for boxes in self.boxes.values()), *rank)

    def better_than_incumbent(self, data: Data, tolerance: float) -> Data:
        """Restrict an integer program to plans that beat the incumbent in its goal and match it in earlier goals."""
        best = self.incumbent
        if best is None:
            return replace(data, cutoff=self.wanted)
        if data.goal is Goal.PERIOD:
            return replace(data, cutoff=proven_from(best.period, tolerance) - 1)
        data = replace(data, cutoff=best.period, devices=best.devices)
        if data.goal is Goal.DEVICES:
            return replace(data, devices=best.devices - 1)
        if data.goal is Goal.HEADROOM:
            return replace(data, headroom=best.headroom + 1)
        return replace(data, headroom=best.headroom, order=best.order - 1)

    def ask(self, data: Data, stop_at: float, gap: float) -> Answer:
        """Solve one integer program within what is left of the budget, and count its effort."""
        time = min(max(0.0, stop_at - self.spent), self.limit.master_time)
        answer = solve_master(data, time, gap, self.limit.memory_mb, self.limit.seed)
        self.spent += answer.deterministic_time
        self.masters += 1
        self.largest = max(self.largest, (answer.variables, answer.constraints))
        return answer

    def adopt(self, template: Template, plan: Relaxed) -> None:
        """Make a plan of single rows the incumbent."""
        rows = {stage: (m, int(box.rows[0])) for stage, (m, box) in plan.boxes.items()}
        choice, exact = exact_choice(self.problem, template, plan.meshes, rows, plan.start_ms, plan.period)
        self.incumbent = Incumbent(
            choice=choice,
            exact_period=exact,
            meshes=plan.meshes,
            period=-(-exact.numerator // exact.denominator),
            devices=devices_used(self.problem, template, plan.meshes),
            headroom=free_units(self.problem, template, plan.meshes, rows),
            order=order_of(self.problem, rows),
        )


def proven_from(period: int, tolerance: float) -> int:
    """Return the least bound that proves a period within the tolerance."""
    return period - int(period * tolerance)


def refine(search: Search, template: Template, stop_at: float, goal: Goal, fixed: Meshes | None = None) -> bool:
    """Run the box loop for one goal on one template; return whether the incumbent is proven within the tolerance.

    Over all meshes, each relaxed plan is settled by the same loop with its meshes `fixed`: either its real rows hold a
    better plan, or its boxes end up so small that no relaxed plan on these meshes is of interest any more. Ends when
    `search.spent` reaches `stop_at`. Without an incumbent, "proven" means that there is no plan below what is wanted.
    """
    tolerance = search.limit.tolerance if goal is Goal.PERIOD else 0.0
    for _ in range(search.limit.iterations):
        data = Data(search.problem, template, search.timing, search.boxes, cutoff=search.wanted, goal=goal, fixed=fixed)
        relaxed = search.better_than_incumbent(data, tolerance)
        if goal is Goal.PERIOD and fixed is None and search.bound > relaxed.cutoff:
            return True
        if search.spent >= stop_at:
            return False
        answer = search.ask(relaxed, stop_at, tolerance / 4)
        if goal is Goal.PERIOD and fixed is None:
            search.bound = max(search.bound, answer.bound)
        if answer.infeasible:
            return True
        if answer.plan is None:
            return False
        before = search.progress
        if fixed is None:
            _split(search, answer.plan)
            refine(search, template, stop_at, goal, answer.plan.meshes)
        else:
            _price(search, search.better_than_incumbent(data, 0.0), answer.plan, stop_at)
            _split(search, answer.plan)
        if search.progress == before:
            return False
    return False


def _price(search: Search, data: Data, relaxed: Relaxed, stop_at: float) -> None:
    """Solve over the real rows of a relaxed plan's boxes, unless they are many; keep the plan if there is one."""
    if sum(len(box.rows) for _, box in relaxed.boxes.values()) > FEW_ROWS:
        return
    rows = {(stage, m): _single_rows(search, (stage, m), box) for stage, (m, box) in relaxed.boxes.items()}
    tolerance = search.limit.tolerance / 4 if data.goal is Goal.PERIOD else 0.0
    answer = search.ask(replace(data, boxes=rows), stop_at, tolerance)
    if answer.plan is not None:
        search.adopt(data.template, answer.plan)


def _single_rows(search: Search, key: CellKey, box: Box) -> tuple[Box, ...]:
    """Return one box for each row of a box."""
    cell = search.splitter.cells[key]
    return tuple(box_of(cell, box.rows[i : i + 1]) for i in range(len(box.rows)))


def _split(search: Search, relaxed: Relaxed) -> None:
    """Split the boxes that a relaxed plan chose, where their rows differ."""
    for stage, (m, box) in relaxed.boxes.items():
        halves = search.splitter.halves((stage, m), box)
        others = [other for other in search.boxes[stage, m] if other is not box]
        search.boxes[stage, m] = (*others, *halves)


def first_boxes(problem: Problem) -> dict[CellKey, tuple[Box, ...]]:
    """Return one box for each cell."""
    return {key: (box_of(cell, np.arange(cell.rows)),) for key, cell in cells_of(problem).items()}
