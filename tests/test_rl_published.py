"""Published RL steps through the planner's prices: bars on what is left out, pairs in their measured order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rpegc.cost.generation import price_generation
from rpegc.cost.training import price_training
from rpegc.ir.graph import Op
from rpegc.target import EngineLayout, MeshClass, ShardedLayout, columns_of
from rpegc.validate.families import FamilyResult
from rpegc.validate.report import validate
from rpegc.validate.rl import Priced, priced, seconds_of, shipped_constants
from rpegc.validate.rl_rows import log_runs, total_runs
from rpegc.validate.rl_runs import Run, pass_of, work_of
from rpegc.validate.table import Folder


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {run.row_id: run for run in [*log_runs(Folder())[0], *total_runs(Folder())[0]]}


@pytest.fixture(scope="module")
def results() -> dict[str, FamilyResult]:
    names = ("rl_step_h100", "rl_step_gb200", "rl_step_logs", "rl_generation", "rl_passes", "rl_step_class")
    return {name: validate(None, name)[0] for name in (*names, "rl_step_gpu")}


def step(run: Run) -> float:
    (one,), _ = priced([run])
    return seconds_of(one, "step", shipped_constants())


@pytest.mark.parametrize(
    "family", ["rl_step_h100", "rl_step_logs", "rl_generation", "rl_passes", "rl_step_class", "rl_step_gpu"]
)
def test_families_hold_their_bars_on_what_is_left_out(family: str, results: dict[str, FamilyResult]) -> None:
    assert results[family].holds


def test_gb200_holds_the_bar_of_its_tail_and_nearly_that_of_its_median(results: dict[str, FamilyResult]) -> None:
    median, p90 = results["rl_step_gb200"].figures(results["rl_step_gb200"].left_out)
    assert median < 0.16
    assert p90 < 0.26


@pytest.mark.parametrize("family", ["rl_older", "weight_sync"])
def test_older_engines_and_weight_syncs_hold_their_bars(family: str) -> None:
    (result,) = validate(None, family)
    assert result.holds


def test_the_features_of_a_row_are_the_planners_prices(runs: dict[str, Run]) -> None:
    """At the shipped constants, what validation assembles is what the planner would print."""
    run = runs["rlc-007"]
    (one,), _ = priced([run])
    known = shipped_constants()
    work = work_of(run, Op.GENERATE)
    columns = columns_of([run.generation_layout], run.generation_mesh)
    generation = price_generation(work, run.generation_mesh, columns, run.machine).seconds[0]
    assert seconds_of(one, "engine", known) == pytest.approx(generation, rel=2e-3)
    columns = columns_of([run.train_layout], run.train_mesh)
    update = price_training(work_of(run, Op.TRAIN), run.train_mesh, columns, run.machine).seconds[0]
    assert seconds_of(one, "actor", known) == pytest.approx(update, rel=2e-3)


@pytest.mark.parametrize(
    ("fewer", "more"), [("rl_nemo_rl-034", "rl_nemo_rl-035"), ("rl_nemo_rl-045", "rl_nemo_rl-046")]
)
def test_twice_the_gpus_cost_more_gpu_seconds_where_they_did(runs: dict[str, Run], fewer: str, more: str) -> None:
    """DeepSeek-V3 on 256 and 512 H100, on 128 and 256 GB200: the tail, the refit and fixed seconds do not shrink."""
    few, many = runs[fewer], runs[more]
    gpus = many.train_mesh.gpus / few.train_mesh.gpus
    measured = gpus * many.measured["step"] / few.measured["step"]
    predicted = gpus * step(many) / step(few)
    assert measured > 1.6
    assert predicted > 1.6


def test_asynchrony_wins_where_it_did_and_is_about_equal_where_it_was(runs: dict[str, Run]) -> None:
    def ratio(synchronous: str, asynchronous: str) -> tuple[float, float]:
        both = [runs[synchronous], runs[asynchronous]]
        gpus = [run.train_mesh.gpus + (0 if run.colocated else run.generation_mesh.gpus) for run in both]
        measured = gpus[1] * both[1].measured["step"] / (gpus[0] * both[0].measured["step"])
        return measured, gpus[1] * step(both[1]) / (gpus[0] * step(both[0]))

    measured, predicted = ratio("rl_nemo_rl-001", "rl_nemo_rl-002")  # Llama-3.1-8B
    assert measured < 0.8
    assert predicted < 0.95
    measured, predicted = ratio("rl_nemo_rl-034", "rl_nemo_rl-036")  # DeepSeek-V3, twice the GPUs
    assert measured == pytest.approx(0.96, abs=0.02)
    assert predicted == pytest.approx(1.0, abs=0.15)


def test_asynchrony_on_a_bad_split_is_slower_than_synchronous_steps(runs: dict[str, Run]) -> None:
    """The model can say no: with 2 of 16 GPUs to train on, running ahead does not pay."""
    colocated = runs["rl_nemo_rl-011"]
    layout = ShardedLayout(dp=2, zero=1, token_budget=4096, recompute="full")
    split = replace(
        colocated,
        asynchronous=True,
        colocated=False,
        engine_flags=frozenset({"async"}),
        train_mesh=MeshClass(1, 2),
        train_layout=layout,
        forward_layout=layout,
        generation_mesh=MeshClass(2, 7),
        generation_layout=EngineLayout(replicas=14, max_sequences=1024, memory_fraction=0.9),
    )
    assert step(split) > 1.5 * step(colocated)


def test_adapters_and_eager_engines_take_most_of_a_short_answers_generation(runs: dict[str, Run]) -> None:
    run = runs["rlc-012"]
    (one,), _ = priced([run])
    known = shipped_constants()
    bare = seconds_of(one, "engine", {**known, "common eager": 0.0, "common lora": 0.0, "common old": 0.0})
    assert seconds_of(one, "engine", known) > 4.0 * bare
    assert run.measured["engine"] > 4.0 * bare


def test_rows_that_state_too_little_are_skipped_with_what_is_missing() -> None:
    skipped = {one.row_id: one.reason for one in log_runs(Folder())[1]}
    assert "GPU is not named" in skipped["rlc-001"]
    assert "warm-up" in skipped["rlc-033"]
    assert "multi-turn" in skipped["rlc-034"]


def test_a_pass_is_taken_apart_without_losing_a_second(runs: dict[str, Run]) -> None:
    run = runs["rlc-011"]
    cost = pass_of(run, Op.TRAIN)
    assert cost.scaled > 0
    assert cost.per_micro_batch > 0
    assert cost.transfers == 2.0
    rest = [cost.scaled, cost.plain, cost.per_micro_batch, cost.copies]
    assert all(np.isfinite(rest))
    assert isinstance(priced([run])[0][0], Priced)
