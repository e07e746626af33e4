"""The lazy refinement of boxes: solve the relaxed problem, price its plan with real rows, split the boxes it chose.

Bound and plan are valid at every step, and the loop ends because at worst every box is one row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import numpy as np

from rpegc.search.boxes import Box, CellKey, Splitter, box_of, cells_of
from rpegc.search.master import Answer, Relaxed, solve_master
from rpegc.search.problem import Limit, Problem, Template
from rpegc.search.timing import Timing
from rpegc.search.variables import Data, Goal, Meshes


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best plan so far: every box is one row; `template` is the tree that its meshes belong to."""

    template: Template
    plan: Relaxed


@dataclass(slots=True)
class Search:
    """The state that lives from rung to rung: boxes, the best plan, the cutoff that it sets, and the effort spent.

    `wanted` is the largest period of interest (ms) before any plan is known.
    """

    problem: Problem
    timing: Timing
    limit: Limit
    wanted: int
    boxes: dict[CellKey, tuple[Box, ...]]
    splitter: Splitter
    incumbent: Incumbent | None = None
    spent: float = 0.0
    masters: int = 0
    largest: tuple[int, int] = (0, 0)
    log: list[str] = field(default_factory=list)

    @property
    def progress(self) -> tuple[int, int]:
        """A pair that changes whenever a box is split or a better plan is found."""
        best = self.wanted + 1 if self.incumbent is None else self.incumbent.plan.period
        return best, sum(len(boxes) for boxes in self.boxes.values())

    def ask(self, data: Data, time: float, gap: float) -> Answer:
        """Solve one integer program within what is left of the budget, and count its effort."""
        answer = solve_master(data, time, gap, self.limit.memory_mb)
        self.spent += answer.deterministic_time
        self.largest = max(self.largest, (answer.variables, answer.constraints))
        return answer


def proven_from(period: int, tolerance: float) -> int:
    """Return the least bound that proves a period within the tolerance."""
    return period - int(period * tolerance)


def refine(search: Search, template: Template, stop_at: float, fixed: Meshes | None = None) -> tuple[int, bool]:
    """Run the box loop for the period on one template; return (lower bound, whether it proves the incumbent).

    The loop of `fixed` meshes settles one relaxed plan of the loop over all meshes: either its real rows hold a better
    plan, or its boxes end up so small that no relaxed plan on these meshes is worth a look. Ends when
    `search.spent` reaches `stop_at`. Without an incumbent, "proven" means that there is no plan below what is wanted.
    """
    bound, gap = 0, search.limit.tolerance / 4
    for _ in range(search.limit.iterations):
        best = search.wanted + 1 if search.incumbent is None else search.incumbent.plan.period
        goal = best if search.incumbent is None else proven_from(best, search.limit.tolerance)
        if bound >= goal:
            return bound, True
        left = stop_at - search.spent
        if left <= 0:
            return bound, False
        data = Data(search.problem, template, search.timing, search.boxes, cutoff=goal - 1, fixed=fixed)
        answer = search.ask(data, min(left, search.limit.master_time), gap)
        bound = max(bound, answer.bound)
        _log(search, template, "master" if fixed is None else "  inner", answer, bound)
        if answer.infeasible:
            return bound, True
        if answer.plan is None:
            return bound, False
        if fixed is None:
            before = search.progress
            refine(search, template, stop_at, answer.plan.meshes)
            progress = search.progress != before
        else:
            few = sum(len(box.rows) for _, box in answer.plan.boxes.values()) <= FEW_ROWS
            progress = few and _price(search, replace(data, cutoff=best - 1), answer.plan, stop_at)
            progress = _split(search, answer.plan) or progress
        if not progress:
            return bound, False
    return bound, False


FEW_ROWS = int(os.environ.get("R", "200"))
"""Boxes with more rows than this together are split before their rows are tried one by one."""


def _price(search: Search, data: Data, relaxed: Relaxed, stop_at: float) -> bool:
    """Solve with the meshes of a relaxed plan and the real rows of its boxes; keep the plan if it is better."""
    time = min(max(0.05, stop_at - search.spent), search.limit.master_time)
    rows = {(stage, m): _rows(search, (stage, m), box) for stage, (m, box) in relaxed.boxes.items()}
    answer = search.ask(replace(data, boxes=rows, fixed=relaxed.meshes), time, search.limit.tolerance / 4)
    _log(search, data.template, "  rows", answer, 0)
    if answer.plan is not None:
        search.incumbent = Incumbent(data.template, answer.plan)
    return answer.plan is not None


def _rows(search: Search, key: CellKey, box: Box) -> tuple[Box, ...]:
    cell = search.splitter.cells[key]
    return tuple(box_of(cell, box.rows[i : i + 1]) for i in range(len(box.rows)))


def _split(search: Search, relaxed: Relaxed) -> bool:
    """Split the boxes that a relaxed plan chose; return whether any could be split."""
    any_split = False
    for stage, (m, box) in relaxed.boxes.items():
        halves = search.splitter.halves((stage, m), box)
        if len(halves) > 1:
            any_split = True
            others = [other for other in search.boxes[stage, m] if other is not box]
            search.boxes[stage, m] = (*others, *halves)
    return any_split


def first_boxes(problem: Problem) -> dict[CellKey, tuple[Box, ...]]:
    """Return one box for each cell."""
    cells = cells_of(problem)
    return {key: (box_of(cell, np.arange(cell.rows)),) for key, cell in cells.items()}


def _log(search: Search, template: Template, what: str, answer: Answer, bound: int) -> None:
    best = search.incumbent.plan.period if search.incumbent else None
    boxes = sum(len(boxes) for boxes in search.boxes.values())
    got = answer.plan.period if answer.plan else None
    search.log.append(
        f"{template.parents} {what} {answer.variables}v {answer.constraints}c det {answer.deterministic_time:.3f} "
        f"plan {got} bound {bound}/{answer.bound} infeasible {answer.infeasible} boxes {boxes} incumbent {best}"
    )
    import os
    if os.environ.get("SHOW"):
        import time
        print(f"{time.perf_counter():.2f}", search.log[-1])


__all__ = ["Goal", "Incumbent", "Search", "first_boxes", "refine"]
