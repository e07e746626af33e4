"""The integer program as a solver: a ladder of mesh trees for the period, then fewest nodes, headroom, canonical order.

What is exact and what is fast: the program over all layout rows is exact but slow, so `box_loop` refines a relaxation
of it; deep mesh trees are slow without a good plan, so the ladder finds one on simple trees first.
"""

from __future__ import annotations

from rpegc.search.solver import greedy
from rpegc.search.solver.box_loop import Search, first_boxes, refine
from rpegc.search.solver.boxes import Splitter
from rpegc.search.solver.problem import Limit, Problem, Solution, Status, Template
from rpegc.search.solver.prune import normalise, prune
from rpegc.search.solver.timing import timing_of
from rpegc.search.solver.variables import Goal


def solve(problem: Problem, limit: Limit, cutoff: int | None = None) -> Solution:
    """Return the plan of least period, with a lower bound that holds for every plan of the problem.

    With a `cutoff`, only plans with a period of less than `cutoff` milliseconds are wanted. Among plans of the period
    that was found, takes one of the fewest nodes; on its meshes, one with the most headroom; of those the first in
    canonical order (smallest sum of layout indices among rows that no other row dominates). Ctrl-C ends the search
    with the best plan so far.
    """
    problem.check()
    raw_rows = problem.rows
    problem = prune(normalise(problem))
    wanted = longest_period(problem) if cutoff is None else cutoff - 1
    first = greedy.solve(problem, limit, wanted + 1)
    if first.period_ms is not None:
        wanted = first.period_ms
    search = Search(problem, timing_of(problem), limit, wanted, first_boxes(problem), Splitter(problem, wanted))
    proven, interrupted, limit_hit = False, False, ["period"]
    try:
        proven = climb(search, problem.ladder if cutoff is None else problem.ladder[-1:])
        limit_hit = [] if proven else ["period"]
        limit_hit += [goal.value for goal in follow_up(search)]
    except KeyboardInterrupt:
        interrupted = True
    statistics = {
        "raw_rows": raw_rows,
        "rows": problem.rows,
        "boxes": sum(len(boxes) for boxes in search.boxes.values()),
        "masters": search.masters,
        "variables": search.largest[0],
        "constraints": search.largest[1],
        "deterministic_time": round(search.spent, 6),  # a sum of floats: its last digits are noise
    }
    if search.incumbent is not None:
        status = Status.INTERRUPTED if interrupted else Status.PROVEN if proven else Status.LIMIT
        best = search.incumbent
        return Solution(best.choice, best.exact_period, search.bound, status, tuple(limit_hit), statistics)
    status = Status.INTERRUPTED if interrupted else Status.LIMIT
    if proven:
        status = Status.INFEASIBLE if cutoff is None else Status.CUTOFF
    return Solution(first.choice, first.period, search.bound, status, tuple(limit_hit), statistics)


def climb(search: Search, ladder: tuple[Template, ...]) -> bool:
    """Search the period rung by rung; return whether the last rung, which contains all others, is proven."""
    proven = False
    for rung, template in enumerate(ladder):
        share = (search.limit.total_time - search.spent) / (len(ladder) - rung)
        search.bound = 0
        proven = refine(search, template, search.spent + share, Goal.PERIOD)
    return proven


def follow_up(search: Search) -> list[Goal]:
    """Improve the plan of least period in the later goals, in order; return those that a limit cut short."""
    cut_short: list[Goal] = []
    for goal in (Goal.DEVICES, Goal.HEADROOM, Goal.ORDER):
        if search.incumbent is None or search.limit.follow_up_time <= 0:
            break
        stop_at = search.spent + search.limit.follow_up_time
        template, fixed = search.incumbent.choice.template, search.incumbent.meshes
        if goal is Goal.DEVICES:
            finished = refine(search, search.problem.ladder[-1], stop_at, goal)
        else:
            finished = refine(search, template, stop_at, goal, fixed)
        if not finished:
            cut_short.append(goal)
    return cut_short


def longest_period(problem: Problem) -> int:
    """Return a period (ms) that no sensible plan exceeds: every stage at its slowest, one after the other."""
    slowest = [max((int(c.milliseconds.max()) for c in s.cells.values()), default=0) for s in problem.gpu_stages]
    functions = [stage.milliseconds for stage in problem.host_stages]
    syncs = [max(int(sync.across.max()), int(sync.same.max())) for sync in problem.syncs]
    return sum(slowest) + sum(functions) + sum(syncs)
