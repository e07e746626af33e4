"""Every structure from its graph to a simulated plan: composites, streams, tails and carried samples are priced alike
by the search, the plan and the simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rpegc.compiler import Options, Setting, bound_plan, setting_of, structures, unrestricted, variant_of
from rpegc.cost.segments import cut_tokens, drawn_segments, segment
from rpegc.frontend.load import pipeline_from_text
from rpegc.ir.fusion import composites
from rpegc.lengths import Lengths
from rpegc.plan import Plan, plan_from_document
from rpegc.search.choose import Attempt, Outcome, Variant
from rpegc.search.solver import exhaustive, solve_ilp
from rpegc.search.solver.problem import Limit, Problem
from rpegc.search.tabulate import TableCache
from rpegc.simulate import simulate
from rpegc.target import ShardedLayout

PPO = """
name: structures
algorithm: ppo
models:
  actor: {config: Qwen/Qwen2.5-1.5B}
  critic: {config: Qwen/Qwen2.5-1.5B}
  reward: {like: critic}
  reference: {like: actor}
workload:
  prompts_per_step: 512
  samples_per_prompt: 1
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 1500, p99: 6000, max: 8192}
training: {kl: {coefficient: 0.01, where: reward}}
cluster: {hardware: gh200-alps, nodes: 2}
allow: {max_staleness: 1, partial_rollout: true, minimum_gain: 0.0, model_changes: [stream-rollout, quantize-rollout]}
"""
LIMIT = Limit(tolerance=0.02, follow_up_time=0.0)


@cache
def setting() -> Setting:
    return unrestricted(setting_of(pipeline_from_text(PPO), Options(space="quick")))


@cache
def variants() -> dict[str, Variant]:
    """Return one variant for each combination of passes that a test asks for, by the names of the passes."""
    cache = TableCache()
    made: dict[str, Variant] = {}
    for graph in structures(setting()):
        skipped = ("place", "insert-transitions", "drop-old-logprobs")
        name = " ".join(f"{r.name}:{r.semantics}" for r in graph.rewrites if r.name not in skipped)
        if name in CASES:
            made.setdefault(name, variant_of(setting(), graph, cache))
    return made


CASES = (
    "",
    "fuse-assessment:exact",
    "fuse-training:exact",
    "fuse-assessment:exact fuse-training:exact",
    "stream-rollout:exact",
    "stream-rollout:model",
    "stream-rollout:exact fuse-assessment:exact",
    "split-tail:exact",
    "split-tail:exact stream-rollout:exact",
    "partial-rollout:stale",
    "bounded-asynchrony:stale stream-rollout:exact",
    "quantize-rollout:model",
)


@cache
def plan_of(case: str) -> Plan:
    variant = variants()[case]
    solution = solve_ilp.solve(variant.problem, LIMIT)
    attempt = Attempt(variant, 1, solution, None)
    assert attempt.cost is not None
    return bound_plan(setting(), Outcome(attempt, solution.bound, (attempt,)))


@pytest.mark.parametrize("case", CASES)
def test_the_simulator_repeats_the_period_of_the_integer_program(case: str) -> None:
    plan = plan_of(case)
    trace = simulate(plan, steps=20, warm_up=6, sampled=False)
    assert trace.steps == 20
    assert trace.mean_s == pytest.approx(plan.period_s, rel=0.005)
    assert max(trace.staleness) <= plan.staleness.bound
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in trace.utilisation.values())
    assert sum(trace.critical_share.values()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("case", CASES)
def test_a_plan_adds_up_and_survives_its_own_json(case: str) -> None:
    import json

    plan = plan_of(case)
    assert plan_from_document(json.loads(plan.to_json()), case) == plan
    for members in composites(plan.graph).values():
        planned = [plan.stage(stage.name) for stage in members]
        assert len({(p.mesh, p.start_s, p.seconds, p.layout) for p in planned}) == 1
        terms = sum(term.seconds for p in planned for term in p.terms.values())
        assert terms == pytest.approx(planned[0].seconds, rel=1e-9)
    drawn = simulate(plan, steps=20)
    assert 0.5 * plan.period_s < drawn.mean_s < 2.0 * plan.period_s


def test_one_unit_is_never_dearer_than_its_members_one_by_one_in_the_same_layout() -> None:
    whole = variants()["fuse-assessment:exact fuse-training:exact"]
    single = variants()[""]
    compared = 0
    for members in composites(whole.graph).values():
        for mesh, table in whole.tables.cells[members[0].name].items():
            fused = sum(whole.tables.cells[stage.name][mesh].seconds for stage in members)
            for row in range(0, table.rows, 37):
                alone = 0.0
                for stage in members:
                    other = single.tables.cells[stage.name][mesh]
                    same = np.ones(other.rows, dtype=bool)
                    for name in ShardedLayout.__dataclass_fields__:
                        same &= other.layouts[name] == table.layouts[name][row]
                    alone += float(other.seconds[same][0])
                    computed = sum(float(t.seconds[same][0]) for t in other.times if t.name == "gemm")
                    assert fused[row] > computed
                assert fused[row] <= alone + 1e-9
                compared += 1
    assert compared > 20


def test_periods_follow_what_structures_relax() -> None:
    periods = {case: plan_of(case).period_s for case in CASES}
    slack = 1.0 + 2 * LIMIT.tolerance
    for relaxed, base in (
        ("stream-rollout:model", "stream-rollout:exact"),
        ("bounded-asynchrony:stale stream-rollout:exact", "stream-rollout:exact"),
        ("quantize-rollout:model", ""),
        ("partial-rollout:stale", ""),
    ):
        assert periods[relaxed] <= periods[base] * slack, (relaxed, base)


# --- segments of a generation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "share", "carries"), [("head", 0.125, 0), ("tail", 0.125, 0), ("head", 0.25, 0), ("", 0.0, 1)]
)
def test_segments_have_the_tokens_of_drawn_lengths(samples: str, share: float, carries: int) -> None:
    prompt, response = Lengths.from_mean(200, 1024), Lengths.from_mean_p99(3000, 11000, 16384)
    part = segment(prompt, response, samples, share, carries)
    cut = cut_tokens(response, samples, share, carries)
    drawn = response.sample(np.random.default_rng(1), 100_000, 1).reshape(-1).astype(np.float64)
    own = drawn_segments(drawn, cut, samples, carries)
    assert len(own) / len(drawn) == pytest.approx(part.share, rel=0.03)
    assert own.mean() == pytest.approx(part.response.mean, rel=0.03)
    assert own.max() <= part.response.max


def test_head_and_tail_together_generate_every_token_once() -> None:
    prompt, response = Lengths.from_mean(200, 1024), Lengths.from_mean_p99(3000, 11000, 16384)
    head, tail = (segment(prompt, response, samples, 0.125, 0) for samples in ("head", "tail"))
    assert tail.share == pytest.approx(0.125, abs=0.01)
    assert head.response.mean + tail.share * tail.response.mean == pytest.approx(response.mean, rel=0.02)
    assert tail.prompt.mean > prompt.mean + 3000
    carried = segment(prompt, response, "", 0.0, 1)
    assert carried.share * carried.response.mean == pytest.approx(response.mean, rel=0.02)
    assert carried.response.max <= response.max / 2 + 1


# --- own code against own code ----------------------------------------------------------------------------------------


def capped(problem: Problem, rng: np.random.Generator, rows: int) -> Problem:
    """Return the problem with a few random rows of each cell, on two mesh classes, and a tree of three nodes."""
    classes = [int(rng.integers(len(problem.mesh_classes) - 1)), len(problem.mesh_classes) - 1]
    stages = []
    for stage in problem.stages:
        if hasattr(stage, "cells"):
            cells = {}
            for m in classes:
                if m in stage.cells:
                    cell = stage.cells[m]
                    kept = np.sort(rng.choice(cell.rows, size=min(rows, cell.rows), replace=False))
                    cells[m] = cell.take(kept)
            stages.append(replace(stage, cells=cells))
        else:
            stages.append(stage)
    return replace(problem, stages=tuple(stages), ladder=(problem.ladder[0],))


@pytest.mark.parametrize("case", ["", "fuse-assessment:exact fuse-training:exact", "partial-rollout:stale"])
def test_the_integer_program_equals_exhaustive_search_on_real_tables(case: str) -> None:
    """A few problems of the comparison that `make exactness` makes on 500."""
    small = capped(variants()[case].problem, np.random.default_rng(0), rows=1)
    reference = exhaustive.solve(small, Limit(tolerance=0.0, follow_up_time=0.0))
    solution = solve_ilp.solve(small, Limit(tolerance=0.0, follow_up_time=0.0))
    assert solution.period_ms == reference.period_ms
