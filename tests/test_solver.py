"""The ILP against the exhaustive reference, and what must hold of any solver's answer."""

from __future__ import annotations

import _thread
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from solver_problems import random_problem

from rpegc.search.solver import exhaustive, greedy, solve_ilp
from rpegc.search.solver.boxes import Box, CellKey, box_of, cells_of
from rpegc.search.solver.cycle_ratio import least_period
from rpegc.search.solver.geometry import rectangles
from rpegc.search.solver.measures import free_units
from rpegc.search.solver.problem import Edge, HostStage, Limit, Problem, Solution, Status, Template
from rpegc.search.solver.prune import normalise, prune
from rpegc.search.solver.variables import Meshes

EXACT = Limit(tolerance=0.0, follow_up_time=0.0)
SEEDS = range(200)
FEW = range(0, 200, 8)


def accept(problem: Problem, solution: Solution) -> None:
    """Check a plan from first principles: GPUs, edges and exclusion in time. Memory is the exhaustive search's word."""
    choice, period = solution.choice, solution.period_ms
    assert choice is not None
    assert period is not None
    start, times = choice.start_ms, choice.milliseconds
    for edge in problem.edges:
        if edge.chunks == 1:
            assert start[edge.target] + edge.distance * period >= start[edge.source] + times[edge.source], edge
    meshes = rectangles(problem, choice)
    held = {name: [meshes[node]] for name, node in choice.nodes.items()}
    held |= {sync.name: held[sync.source] + held[sync.target] for sync in problem.syncs}
    for u, ours in held.items():
        assert times[u] <= period
        for v, theirs in held.items():
            if u < v and any(a.overlaps(b) for a in ours for b in theirs if a and b):
                gap = (start[v] - start[u]) % period
                touches = gap == 0 and 0 in (times[u], times[v])
                assert touches or times[u] <= gap <= period - times[v]
    for node, mesh in enumerate(meshes):
        for other in meshes[:node]:
            if mesh and other:
                inside = other.first_node <= mesh.first_node and other.first_gpu <= mesh.first_gpu
                assert inside or not mesh.overlaps(other)
        assert mesh is None or mesh.first_node + mesh.nodes <= problem.cluster.nodes
        assert mesh is None or mesh.first_gpu + mesh.gpus_per_node <= problem.cluster.gpus_per_node


@pytest.mark.parametrize("first", range(0, len(SEEDS), 50))
def test_ilp_equals_exhaustive_search_to_the_millisecond(first: int) -> None:
    infeasible = 0
    for seed in SEEDS[first : first + 50]:
        problem = random_problem(seed)
        reference, solution = exhaustive.solve(problem, EXACT), solve_ilp.solve(problem, EXACT)
        assert solution.period_ms == reference.period_ms, f"seed {seed}"
        if reference.choice is None:
            infeasible += 1
            assert solution.status is Status.INFEASIBLE
            continue
        assert solution.status is Status.PROVEN
        assert solution.bound == solution.period_ms
        accept(problem, solution)
        accept(problem, reference)
    assert infeasible < 20


@pytest.mark.parametrize(
    ("stages", "rows", "seeds"), [(4, 2, range(1000, 1060)), (6, 1, range(1000, 1060)), (2, 6, range(500, 520))]
)
def test_ilp_equals_exhaustive_search_with_more_stages_or_more_layouts(stages: int, rows: int, seeds: range) -> None:
    """Up to 4 stages of 4 to 8 layouts (2 on each mesh class), 6 of 2 to 4, 2 of up to 24."""
    for seed in seeds:
        problem = random_problem(seed, stages=stages, rows=rows)
        assert solve_ilp.solve(problem, EXACT).period_ms == exhaustive.solve(problem, EXACT).period_ms, f"seed {seed}"


def test_random_problems_cover_what_a_problem_can_say() -> None:
    problems = [random_problem(seed) for seed in SEEDS]
    assert sum(any(edge.chunks > 1 for edge in p.edges) for p in problems) > 20
    assert sum(any(edge.distance > 1 for edge in p.edges) for p in problems) > 50
    assert sum(bool(p.syncs) for p in problems) > 50
    assert sum(bool(p.ties) for p in problems) > 20
    assert sum(bool(p.sharing) for p in problems) > 20
    assert sum(bool(p.host_stages) for p in problems) > 50
    plans = [solve_ilp.solve(p, EXACT).choice for p in problems[::4]]
    assert any(choice and any(choice.along_gpus) for choice in plans)
    assert any(choice and len(set(choice.nodes.values())) > 1 for choice in plans)


def test_dominated_rows_never_matter() -> None:
    dropped = 0
    for seed in FEW:
        problem = random_problem(seed, stages=3, rows=3)
        smaller = prune(normalise(problem))
        dropped += problem.rows - smaller.rows
        assert exhaustive.solve(smaller, EXACT).period == exhaustive.solve(problem, EXACT).period
    assert dropped > 20


def test_boxes_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in FEW:
        problem = random_problem(seed, rows=4)
        lazily = solve_ilp.solve(problem, EXACT).period_ms
        with monkeypatch.context() as patch:
            patch.setattr(solve_ilp, "first_boxes", _single_rows)
            assert solve_ilp.solve(problem, EXACT).period_ms == lazily


def _single_rows(problem: Problem) -> dict[CellKey, tuple[Box, ...]]:
    cells = cells_of(problem)
    return {key: tuple(box_of(cell, np.array([row])) for row in range(cell.rows)) for key, cell in cells.items()}


def test_bound_is_below_every_plan_and_proves_the_tolerance() -> None:
    for seed in FEW:
        problem = random_problem(seed)
        best = exhaustive.solve(problem, EXACT)
        solution = solve_ilp.solve(problem, Limit(tolerance=0.1, follow_up_time=0.0))
        if best.period_ms is not None and solution.period_ms is not None:
            assert solution.bound <= best.period_ms <= solution.period_ms
            assert solution.gap <= 0.1


def test_a_search_that_is_cut_short_still_gives_a_plan_and_a_valid_bound() -> None:
    for seed in FEW:
        problem = random_problem(seed)
        best = exhaustive.solve(problem, EXACT)
        solution = solve_ilp.solve(problem, Limit(tolerance=0.0, iterations=1, total_time=0.001))
        if solution.period_ms is not None:
            assert best.period_ms is not None
            assert solution.bound <= best.period_ms <= solution.period_ms
            assert solution.status is Status.PROVEN or "period" in solution.limit_hit


def test_greedy_plans_are_valid_and_no_better_than_the_optimum() -> None:
    found = 0
    for seed in FEW:
        problem = random_problem(seed)
        solution = greedy.solve(problem, EXACT)
        if solution.choice is not None:
            found += 1
            accept(problem, solution)
            best = exhaustive.solve(problem, EXACT).period_ms
            assert best is not None
            assert best <= (solution.period_ms or 0)
    assert found > len(FEW) // 3


def test_cutoff_asks_for_strictly_better_plans() -> None:
    problem = random_problem(1)
    best = exhaustive.solve(problem, EXACT).period_ms
    assert best is not None
    for solver in (exhaustive, solve_ilp):
        assert solver.solve(problem, EXACT, best + 1).period_ms == best
        refused = solver.solve(problem, EXACT, best)
        assert refused.status is Status.CUTOFF
        assert refused.choice is None
        assert refused.bound >= best


def test_two_processes_with_different_hash_seeds_give_the_same_plan() -> None:
    program = (
        "from solver_problems import random_problem\n"
        "from rpegc.search.solver import solve_ilp\n"
        "from rpegc.search.solver.problem import Limit\n"
        "for seed in (2, 7, 11): print(solve_ilp.solve(random_problem(seed, rows=4), Limit()))\n"
    )
    root = Path(__file__).parent
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{root.parent}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert "Choice(" in outputs[0]


def unhurried(seed: int) -> Problem:
    """A problem whose period is set by a function, so that every plan that fits has the same one."""
    problem = random_problem(seed, rows=3)
    slow = HostStage("slow", 2000)
    edges = (*problem.edges, Edge("stage0", "slow"), Edge("slow", "stage0", 9))
    return replace(problem, stages=(*problem.stages, slow), edges=edges, host_capacity=1000, ties=())


def test_among_plans_of_one_period_the_one_on_the_fewest_nodes_is_taken() -> None:
    improved = 0
    for seed in FEW:
        problem = unhurried(seed)
        plain, polished = solve_ilp.solve(problem, EXACT), solve_ilp.solve(problem, Limit(tolerance=0.0))
        if plain.choice is None or polished.choice is None:
            continue
        assert polished.period_ms == plain.period_ms == 2000
        assert not polished.limit_hit
        accept(problem, polished)
        nodes = [_nodes_used(problem, solution) for solution in (plain, polished)]
        assert nodes[1] <= nodes[0]
        improved += nodes[1] < nodes[0]
    assert improved


def _nodes_used(problem: Problem, solution: Solution) -> int:
    choice = solution.choice
    assert choice is not None
    meshes = rectangles(problem, choice)
    used = [meshes[node] for node in choice.nodes.values()]
    return len({node for mesh in used if mesh for node in range(mesh.first_node, mesh.first_node + mesh.nodes)})


def test_then_the_one_with_most_headroom_then_the_first_in_canonical_order() -> None:
    compared = 0
    for seed in FEW:
        problem = replace(unhurried(seed), ladder=(Template((0,)),))
        choice = solve_ilp.solve(problem, Limit(tolerance=0.0)).choice
        if choice is None:
            continue
        compared += 1
        smaller = prune(normalise(problem))
        stages = smaller.gpu_stages
        meshes = Meshes(choice.mesh_classes, choice.along_gpus, choice.nodes)
        ranks = []
        for rows in product(*(range(stage.cells[0].rows) for stage in stages)):
            picked = {stage.name: (0, row) for stage, row in zip(stages, rows, strict=True)}
            order = sum(int(stage.cells[0].layout[row]) for stage, row in zip(stages, rows, strict=True))
            ranks.append((-free_units(smaller, choice.template, meshes, picked), order))
        chosen = {name: (0, layout) for name, layout in choice.layouts.items()}
        free = free_units(problem, choice.template, meshes, chosen)
        assert (-free, sum(choice.layouts.values())) == min(ranks)
    assert compared > len(FEW) // 2


def test_interrupt_gives_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(1)
    optimum = exhaustive.solve(problem, EXACT).period_ms
    real, calls = solve_ilp.refine, []

    def interrupted(*arguments: object, **options: object) -> bool:
        calls.append(arguments)
        if len(calls) > 1:
            _thread.interrupt_main()
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(solve_ilp, "refine", interrupted)
    solution = solve_ilp.solve(problem, EXACT)
    assert solution.status is Status.INTERRUPTED
    assert solution.choice is not None
    assert optimum is not None
    assert solution.bound <= optimum <= (solution.period_ms or 0)


def test_contradictions_in_a_problem_are_named() -> None:
    problem = random_problem(1)
    with pytest.raises(ValueError, match="unknown stage nowhere"):
        replace(problem, edges=(*problem.edges, Edge("stage0", "nowhere"))).check()
    with pytest.raises(ValueError, match="no tree"):
        replace(problem, ladder=(Template((0, 2, 1)),)).check()
    with pytest.raises(ValueError, match="names repeat"):
        replace(problem, stages=(*problem.stages, HostStage("stage0", 1))).check()
    with pytest.raises(ValueError, match="waits for itself"):
        replace(problem, edges=(*problem.edges, Edge("stage1", "stage0"), Edge("stage0", "stage1"))).check()


def test_cycle_ratio_of_known_graphs() -> None:
    # generate 5 and train 5 exclude each other, a judge of 10 sits between them; weights return after two steps.
    pipeline = [(0, 1, Fraction(5), 0), (1, 2, Fraction(10), 0), (2, 0, Fraction(5), 2)]
    assert least_period(3, pipeline) == 10
    first_winding = [*pipeline, (0, 2, Fraction(5), 0), (2, 0, Fraction(5), 1)]
    assert least_period(3, first_winding) == 20
    second_winding = [*pipeline, (0, 2, Fraction(5), -1), (2, 0, Fraction(5), 2)]
    assert least_period(3, second_winding) == 10
    assert least_period(2, [(0, 1, Fraction(1), 0), (1, 0, Fraction(1), 3)]) == Fraction(2, 3)
    assert least_period(2, [(0, 1, Fraction(1), 0), (1, 0, Fraction(0), 0)]) is None
