"""Which variant wins: each is solved with the incumbent as cutoff; the certificate covers all of them.

A variant whose rewrites are all `exact` competes freely: it must beat the best plan so far by more than the tolerance
of the proof, so that variants that come out alike (two training engines of one target) are not told apart at great
effort; the bound counts what this leaves out. Any other must also beat the best exact plan by the user's
`minimum_gain`, so its cutoff lies that much below; what that cutoff excludes is proven not worth it.

The objective is a period times a weight: 1 for the step time, the number of nodes for GPU-hours and money. For those
each variant is solved on every smaller cluster of the menu, with the cheapest plan so far as cutoff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rpegc.ir.graph import Graph
from rpegc.search.floor import floor_ms
from rpegc.search.solver.problem import Limit, Problem, Solution, Status
from rpegc.search.tabulate import Tables
from rpegc.target import MeshClass

Solver = Callable[[Problem, Limit, int | None], Solution]
"""`solve(problem, limit, cutoff)`: only plans with a period of less than `cutoff` milliseconds are wanted."""

CLASSES = ("exact", "stale", "model")


@dataclass(frozen=True, slots=True)
class Variant:
    """One structure with its tables and integer problem."""

    graph: Graph
    tables: Tables
    problem: Problem

    @property
    def semantics(self) -> str:
        """The weakest class among the rewrites that made this variant."""
        return max((rewrite.semantics for rewrite in self.graph.rewrites), key=CLASSES.index, default="exact")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one variant on one cluster size.

    `weight` times the period in milliseconds is the cost; only plans cheaper than `cutoff_cost` were wanted. Plans from
    `passed_over` on, up to the best plan at that time, would have been acceptable too (None: none would).
    """

    variant: Variant
    weight: int
    solution: Solution
    cutoff_cost: int | None
    passed_over: int | None = None

    @property
    def cost(self) -> int | None:
        """Weight times period in milliseconds, or None without a plan."""
        period = self.solution.period_ms
        return None if period is None else period * self.weight

    @property
    def bound_cost(self) -> int | None:
        """No acceptable plan of this attempt costs less than this; None if there is none."""
        if self.solution.status is Status.INFEASIBLE:
            return None
        if self.solution.status is Status.CUTOFF:
            return self.passed_over
        bound = self.solution.bound * self.weight
        return bound if self.passed_over is None else min(bound, self.passed_over)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The winning attempt (None: nothing fits), the bound on the cost over all variants, every attempt in order."""

    winner: Attempt | None
    bound_cost: int
    attempts: tuple[Attempt, ...]
    interrupted: bool = False


def choose(
    variants: tuple[Variant, ...], limit: Limit, solve: Solver, minimum_gain: float, objective: str = "step_time"
) -> Outcome:
    """Solve the variants, exact ones first, and return the best plan with the bound that holds for all of them."""
    attempts: list[Attempt] = []
    exact: Attempt | None = None
    winner: Attempt | None = None
    tasks = _tasks(variants, objective)
    interrupted = False
    for variant, weight, floor in tasks:
        cutoff_cost, passed_over = _cutoff(variant, exact, winner, minimum_gain, limit.tolerance)
        cutoff_ms = None if cutoff_cost is None else -(-cutoff_cost // weight)
        try:
            solution = _beyond(floor, cutoff_ms) or solve(variant.problem, limit, cutoff_ms)
        except KeyboardInterrupt:
            interrupted = True
            break
        attempt = Attempt(variant, weight, solution, cutoff_cost, passed_over)
        attempts.append(attempt)
        if attempt.cost is not None:
            winner = _cheaper(attempt, winner)
            exact = _cheaper(attempt, exact) if variant.semantics == "exact" else exact
        interrupted = solution.status is Status.INTERRUPTED
        if interrupted:
            break
    untried = [weight * floor for _, weight, floor in tasks[len(attempts) :]]
    return Outcome(winner, _bound(attempts, untried, winner), tuple(attempts), interrupted)


def _tasks(variants: tuple[Variant, ...], objective: str) -> list[tuple[Variant, int, int]]:
    """Return (variant, weight, floor in ms) in the order of solving: exact structures first, then by floor of cost.

    Of equal class, those of fewer layouts come first: their plan is found soon, and cuts the larger spaces off.
    """
    tasks = []
    for variant in variants:
        for problem, weight in _clusters(variant.problem, objective):
            tasks.append((replace(variant, problem=problem), weight, floor_ms(problem)))
    return sorted(tasks, key=_order)


def _order(task: tuple[Variant, int, int]) -> tuple[int, int, int]:
    variant, weight, floor = task
    return CLASSES.index(variant.semantics), variant.tables.layouts, weight * floor


def _clusters(problem: Problem, objective: str) -> Iterator[tuple[Problem, int]]:
    """Yield the problem on the whole cluster, or on each number of nodes of the menu where GPUs cost."""
    if objective == "step_time":
        yield problem, 1
        return
    width = problem.cluster.gpus_per_node
    for nodes in sorted({mesh.nodes for mesh in problem.mesh_classes if mesh.gpus_per_node == width}):
        yield replace(problem, cluster=MeshClass(nodes, width)), nodes


def _beyond(floor: int, cutoff_ms: int | None) -> Solution | None:
    """Return the verdict on a problem whose floor already reaches the cutoff: nothing that is wanted."""
    if cutoff_ms is None or floor < cutoff_ms:
        return None
    return Solution(None, None, floor, Status.CUTOFF)


def _cutoff(
    variant: Variant, exact: Attempt | None, winner: Attempt | None, minimum_gain: float, tolerance: float
) -> tuple[int | None, int | None]:
    """Return the cost below which a plan is wanted, and from where on acceptable plans are passed over (or None)."""
    if winner is None or winner.cost is None:
        return None, None
    acceptable = winner.cost
    if exact is not None and exact.cost is not None and variant.semantics != "exact":
        acceptable = min(acceptable, int(exact.cost * (1 - minimum_gain)) + 1)
    better = winner.cost - int(winner.cost * tolerance)
    return (better, better) if better < acceptable else (acceptable, None)


def _cheaper(attempt: Attempt, other: Attempt | None) -> Attempt:
    if other is None or other.cost is None or attempt.cost is None:
        return attempt
    return attempt if attempt.cost < other.cost else other


def _bound(attempts: list[Attempt], untried: list[int], winner: Attempt | None) -> int:
    """Return the cost that no acceptable plan goes below; what an interrupt left untried counts with its floor."""
    if winner is None or winner.cost is None:
        return 0
    bounds = [attempt.bound_cost for attempt in attempts if attempt.bound_cost is not None]
    return max(0, min([winner.cost, *bounds, *untried]))
