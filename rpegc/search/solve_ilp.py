"""The integer program as a solver: rungs of a ladder of mesh trees, each refined by the box loop."""

from __future__ import annotations

from fractions import Fraction

from rpegc.search.box_loop import Search, first_boxes, refine
from rpegc.search.boxes import Splitter
from rpegc.search.problem import Choice, Limit, Problem, Solution, Status
from rpegc.search.prune import normalise, prune
from rpegc.search.schedule import exact_choice
from rpegc.search.timing import timing_of


def solve(problem: Problem, limit: Limit, cutoff: int | None = None) -> Solution:
    """Return the plan of least period (ms), with a lower bound that holds for every plan of the problem.

    With a `cutoff`, only plans with a period of less than `cutoff` milliseconds are wanted.
    """
    problem.check()
    raw = problem.rows
    problem = prune(normalise(problem))
    wanted = longest_period(problem) if cutoff is None else cutoff - 1
    search = Search(problem, timing_of(problem), limit, wanted, first_boxes(problem), Splitter(problem, wanted))
    bound, proven = 0, False
    for rung, template in enumerate(problem.ladder):
        share = (limit.total_time - search.spent) / (len(problem.ladder) - rung)
        bound, proven = refine(search, template, search.spent + share)
    boxes = sum(len(boxes) for boxes in search.boxes.values())
    statistics = {
        "raw_rows": raw,
        "rows": problem.rows,
        "boxes": boxes,
        "masters": search.masters,
        "variables": search.largest[0],
        "constraints": search.largest[1],
        "deterministic_time": search.spent,
    }
    if search.incumbent is None:
        status = Status.LIMIT if not proven else Status.INFEASIBLE if cutoff is None else Status.CUTOFF
        return Solution(None, None, bound, status, () if proven else ("period",), statistics)
    choice, period = _exact(problem, search)
    status = Status.PROVEN if proven else Status.LIMIT
    return Solution(choice, period, bound, status, () if proven else ("period",), statistics)


def longest_period(problem: Problem) -> int:
    """Return a period (ms) that no sensible plan exceeds: every stage at its slowest, one after the other."""
    slowest = [max((int(c.milliseconds.max()) for c in s.cells.values()), default=0) for s in problem.gpu_stages]
    functions = [stage.milliseconds for stage in problem.host_stages]
    syncs = [max(int(sync.across.max()), int(sync.same.max())) for sync in problem.syncs]
    return sum(slowest) + sum(functions) + sum(syncs)


def _exact(problem: Problem, search: Search) -> tuple[Choice, Fraction]:
    incumbent = search.incumbent
    assert incumbent is not None
    plan = incumbent.plan
    rows = {stage: (m, int(box.rows[0])) for stage, (m, box) in plan.boxes.items()}
    template = incumbent.template
    return exact_choice(problem, template, plan.meshes, rows, plan.milliseconds, plan.start_ms, plan.period)
