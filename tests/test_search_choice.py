"""How variants compete, what a floor promises, what is said when nothing fits, what a user may fix."""

from __future__ import annotations

from dataclasses import replace

import pytest
from solver_problems import random_problem  # type: ignore[import-not-found]

from rpegc.compiler import Options, compile_pipeline
from rpegc.errors import InputError
from rpegc.frontend.load import pipeline_from_text
from rpegc.ir.graph import Graph, Op, Rewrite, Stage
from rpegc.search.choose import Variant, choose
from rpegc.search.floor import floor_ms
from rpegc.search.meshes import mesh_menu
from rpegc.search.remedy import smallest_change, smallest_cluster
from rpegc.search.solver.problem import Limit, Status
from rpegc.search.solver.solve_ilp import solve
from rpegc.search.tabulate import Tables
from rpegc.target import MeshClass, ShardedLayout

LIMIT = Limit(tolerance=0.0, follow_up_time=0.0)
NO_TABLES = Tables((), {}, {}, 0)


def variant(seed: int, semantics: str = "exact") -> Variant:
    graph = Graph(f"g{seed}", (Stage("rollout", Op.GENERATE, "actor"),), ())
    graph = replace(graph, rewrites=(Rewrite("some-pass", semantics, ""),))
    return Variant(graph, NO_TABLES, random_problem(seed))


def solvable(count: int) -> list[int]:
    return [seed for seed in range(200) if solve(random_problem(seed), LIMIT).choice is not None][:count]


SEEDS = solvable(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_beats_the_floor(seed: int) -> None:
    solution = solve(random_problem(seed), LIMIT)
    assert solution.period_ms is not None
    assert floor_ms(random_problem(seed)) <= solution.period_ms


def test_the_best_exact_variant_wins_and_the_bound_covers_all() -> None:
    variants = tuple(variant(seed) for seed in SEEDS[:5])
    outcome = choose(variants, LIMIT, solve, 0.05)
    periods = [solve(v.problem, LIMIT).period_ms for v in variants]
    assert outcome.winner is not None
    assert outcome.winner.cost == min(p for p in periods if p is not None)
    assert outcome.bound_cost == outcome.winner.cost
    assert len(outcome.attempts) == len(variants)


@pytest.mark.parametrize("gain", [0.0, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("semantics", ["stale", "model"])
def test_a_rewrite_that_is_not_exact_must_gain_enough(gain: float, semantics: str) -> None:
    for one, other in zip(SEEDS[:6], SEEDS[6:], strict=True):
        exact, loose = variant(one), variant(other, semantics)
        outcome = choose((loose, exact), LIMIT, solve, gain)
        exact_period, loose_period = (solve(v.problem, LIMIT).period_ms for v in (exact, loose))
        assert outcome.winner is not None
        assert exact_period is not None
        assert loose_period is not None
        worth_it = loose_period <= int(exact_period * (1 - gain)) and loose_period < exact_period
        assert (outcome.winner.variant.semantics == semantics) == worth_it


def test_gpu_hours_weigh_the_period_by_the_nodes_it_takes() -> None:
    for seed in SEEDS[:4]:
        outcome = choose((variant(seed),), LIMIT, solve, 0.05, "gpu_hours")
        problem = random_problem(seed)
        width = problem.cluster.gpus_per_node
        costs = []
        for nodes in {m.nodes for m in problem.mesh_classes if m.gpus_per_node == width}:
            period = solve(replace(problem, cluster=MeshClass(nodes, width)), LIMIT).period_ms
            costs += [] if period is None else [nodes * period]
        assert outcome.winner is not None
        assert outcome.winner.cost == min(costs)


def test_an_interrupted_search_keeps_its_best_plan_and_claims_no_proof() -> None:
    calls = []

    def interrupted(problem, limit, cutoff):  # type: ignore[no-untyped-def]
        calls.append(cutoff)
        solution = solve(problem, limit, cutoff)
        return replace(solution, status=Status.INTERRUPTED) if len(calls) == 1 else solution

    outcome = choose(tuple(variant(seed) for seed in SEEDS[:3]), LIMIT, interrupted, 0.05)
    assert outcome.interrupted
    assert outcome.winner is not None
    floors = [floor_ms(random_problem(seed)) for seed in SEEDS[:3]]
    assert min(floors) <= outcome.bound_cost <= outcome.winner.cost  # type: ignore[operator]
    assert len(calls) == 1


def test_an_interrupt_between_variants_keeps_what_was_solved() -> None:
    calls = []

    def interrupted(problem, limit, cutoff):  # type: ignore[no-untyped-def]
        calls.append(cutoff)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return solve(problem, limit, cutoff)

    outcome = choose(tuple(variant(seed) for seed in SEEDS[:3]), LIMIT, interrupted, 0.05)
    assert outcome.interrupted
    assert outcome.winner is not None
    assert 0 < outcome.bound_cost <= outcome.winner.cost  # type: ignore[operator]


@pytest.mark.parametrize("enough", [2, 3, 5, 8, 13, 600, 1024])
def test_the_smallest_cluster_is_the_smallest(enough: int) -> None:
    assert smallest_cluster(lambda _, nodes: nodes >= enough, "m", 1) == enough


def test_another_machine_is_named_only_where_nodes_do_not_help() -> None:
    assert smallest_change(lambda m, n: n >= 3, "here", 1, ["there"]) == "cluster.nodes: 3"
    change = smallest_change(lambda m, n: m == "there" and n >= 4, "here", 1, ["elsewhere", "there"])
    assert "no number of here nodes" in change
    assert change.endswith("cluster.hardware: there, cluster.nodes: 4")
    assert "smaller model" in smallest_change(lambda m, n: False, "here", 1, ["there"])


def test_mesh_menus_hold_the_cluster_and_stay_small() -> None:
    for nodes in (1, 2, 3, 7, 16, 100, 2688):
        for counts in ("every", "powers"):
            menu = mesh_menu(nodes, 4, counts, slices=True)
            assert MeshClass(nodes, 4) in menu
            assert len(menu) <= 60
            assert all(mesh.nodes <= nodes and mesh.gpus_per_node <= 4 for mesh in menu)
    assert len(mesh_menu(16, 4, "every", slices=True)) >= 20


PIPELINE = """
name: pinned
algorithm: grpo
models: {actor: {config: Qwen/Qwen3-8B}}
workload:
  prompts_per_step: 128
  samples_per_prompt: 8
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 1000, max: 4096}
reward: {function: "reward.py:score"}
cluster: {hardware: gh200-alps, nodes: 2}
fix: FIX
"""


def test_fixed_fields_are_kept() -> None:
    text = PIPELINE.replace("FIX", "{rollout: {tp: 1, max_sequences: 64}, update_actor: {ulysses: 2, recompute: full}}")
    plan = compile_pipeline(pipeline_from_text(text), Options(space="quick"))
    rollout, update = plan.stage("rollout").layout, plan.stage("update_actor").layout
    assert (rollout.tp, rollout.max_sequences) == (1, 64)  # type: ignore[union-attr]
    assert (update.ulysses, update.recompute) == (2, "full")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ("{rollout: {tp: 3}}", "tp 3 must divide the 32 attention heads"),
        ("{rolout: {tp: 2}}", "did you mean `rollout`"),
        ("{rollout: {tensor: 2}}", "no such layout field"),
        ("{rollout: {replicas: 2}}", "follows from the mesh"),
        ("{update_actor: {zero: 0}}", "verl accepts 2, 3 here, not 0"),
        ("{update_actor: {recompute: partly}}", "none, full"),
        ("{update_actor: {offload_optimizer: 1}}", "must be like"),
        ("{update_actor: {ulysses: 0}}", "whole number of at least 1"),
        ("{update_actor: {token_budget: 5000.5}}", "whole number of at least 0"),
        ("{rollout: {memory_fraction: 1.5}}", "at most at 1"),
        ("{rollout: {max_sequences: many}}", "must be a number"),
        ("{update_actor: {ulysses: 4}, old_logprobs: {ulysses: 2}}", "the target runs both stages with one value"),
        ("{verify: {tp: 1}}", "no stage of that name has a layout"),
        ("{update_actor: {token_budget: 64}}", "must hold the longest sequence, 4608 tokens"),
    ],
)
def test_what_cannot_be_fixed_points_at_the_line(fix: str, words: str) -> None:
    text = PIPELINE.replace("FIX", fix)
    line = text.splitlines().index(f"fix: {fix}") + 1
    with pytest.raises(InputError) as caught:
        compile_pipeline(pipeline_from_text(text), Options(space="quick"))
    assert words in str(caught.value)
    assert f":{line}:" in str(caught.value)


def test_a_batch_smaller_than_the_cluster_leaves_nodes_unused() -> None:
    text = PIPELINE.replace("fix: FIX", "").replace("prompts_per_step: 128", "prompts_per_step: 2")
    text = text.replace("samples_per_prompt: 8", "samples_per_prompt: 2").replace("nodes: 2", "nodes: 64")
    plan = compile_pipeline(pipeline_from_text(text), Options(space="quick"))
    update = plan.stage("update_actor").layout
    assert isinstance(update, ShardedLayout)
    assert update.dp <= 4, "four sequences an update occupy at most four data-parallel ranks"
    assert plan.devices.nodes < 64
    assert any("of the 64 nodes are used" in line for line in plan.warnings)
