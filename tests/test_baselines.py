"""The baselines are solvers like the others: legal plans, never better than the optimum, never worse than greedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rpegc.search.solver import exhaustive, greedy, partitions
from rpegc.search.solver.mcmc import Chain
from rpegc.search.solver.measures import free_units, host_units
from rpegc.search.solver.problem import Limit, Problem, Solution
from rpegc.search.solver.schedule import exact_choice
from rpegc.search.solver.variables import Meshes
from tests.solver_problems import random_problem

SEEDS = range(24)


def checked(problem: Problem, found: Solution) -> None:
    """Work the plan out again from its choices: memory, ties, and the exact period of its own order."""
    choice = found.choice
    assert choice is not None
    assert found.period_ms is not None
    meshes = Meshes(choice.mesh_classes, choice.along_gpus, choice.nodes)
    rows = {}
    for stage in problem.gpu_stages:
        m = choice.mesh_classes[choice.nodes[stage.name]]
        assert m is not None
        rows[stage.name] = (m, stage.cells[m].layout.tolist().index(choice.layouts[stage.name]))
        assert choice.nodes[stage.name] in problem.ladder[-1].home(stage.name)
    assert free_units(problem, problem.ladder[-1], meshes, rows) >= 0
    assert host_units(problem, problem.ladder[-1], meshes, rows) <= problem.host_capacity
    for number, group in enumerate(problem.ties):
        cells = [
            problem.gpu_stages[[s.name for s in problem.gpu_stages].index(n)].cells[rows[n][0]] for n in group.stages
        ]
        assert len({int(c.ties[rows[n][1], number]) for c, n in zip(cells, group.stages, strict=True)}) == 1
    starts, period = choice.start_ms, found.period_ms
    again, exact = exact_choice(problem, problem.ladder[-1], meshes, rows, starts, period)
    assert exact == found.period
    assert again.milliseconds == choice.milliseconds


@pytest.mark.parametrize("seed", SEEDS)
def test_baselines_lie_between_greedy_and_the_optimum(seed: int) -> None:
    problem = random_problem(seed)
    limit = Limit(seed=seed + 1)
    best = exhaustive.solve(problem, limit)
    first = greedy.solve(problem, limit)
    for found in (Chain(moves=300)(problem, limit), partitions.solve(problem, limit)):
        if found.period is None:
            continue
        checked(problem, found)
        assert best.period is not None
        assert found.period >= best.period
    chain = Chain(moves=300)(problem, limit)
    assert first.period is None or (chain.period is not None and chain.period <= first.period)


def test_the_chain_finds_better_plans_than_it_starts_from_and_repeats_itself() -> None:
    pairs = []
    for seed in range(40, 70):
        problem = random_problem(seed, rows=4)
        first, found = greedy.solve(problem, Limit()), Chain(moves=400)(problem, Limit(seed=3))
        assert found == Chain(moves=400)(problem, Limit(seed=3))
        if first.period is not None and found.period is not None:
            pairs.append(found.period < first.period)
    assert sum(pairs) >= 5


def test_a_cutoff_leaves_nothing_that_is_not_below_it() -> None:
    problem = random_problem(41, rows=4)
    found = Chain(moves=200)(problem, Limit())
    assert found.period_ms is not None
    for solve in (Chain(moves=200), partitions.solve):
        assert solve(problem, Limit(), 1).period is None
        below = solve(problem, Limit(), found.period_ms)
        assert below.period_ms is None or below.period_ms < found.period_ms


def test_a_stop_ends_the_chain() -> None:
    seen: list[int] = []
    problem = replace(random_problem(41, rows=4))
    Chain(moves=10**6, stop=lambda tries, best: seen.append(tries) or tries >= 7)(problem, Limit())
    assert seen[-1] == 7
