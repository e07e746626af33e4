"""Around the search: knobs judged by simulation, searches that go on, conflicts, and what the target's limits cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from solver_problems import random_problem  # type: ignore[import-not-found]

from rpegc import compiler
from rpegc.compiler import (
    Options,
    _tuned,
    best_plan,
    bound_plan,
    compile_pipeline,
    search,
    setting_of,
    structures,
    unrestricted,
)
from rpegc.errors import InputError, NothingFits
from rpegc.frontend.load import pipeline_from_text
from rpegc.knobs import Knobs, knobs_of, tune
from rpegc.plan import Plan
from rpegc.search.checkpoint import digest, load, remembering
from rpegc.search.conflict import smallest_conflict
from rpegc.search.solver import solve_ilp
from rpegc.search.solver.problem import Limit, Status

DOMAIN: dict[str, tuple[int | float, ...]] = {"chunks": (1, 2, 4, 8), "tail_share": (0.0, 0.125, 0.25)}
PIPELINE = """
name: joint
algorithm: grpo
models: {actor: {config: Qwen/Qwen2.5-1.5B}}
workload:
  prompts_per_step: 64
  samples_per_prompt: 8
  prompt_tokens: {mean: 200, max: 512}
  response_tokens: {mean: 1000, p99: 4000, max: 8192}
reward: {seconds_per_sample: 0.01}
cluster: {hardware: gh200-alps, nodes: 1}
"""


@pytest.fixture(scope="module")
def start() -> Plan:
    return compile_pipeline(pipeline_from_text(PIPELINE), Options(space="quick", unrestricted=True))


class Landscape:
    """Simulated periods by knobs: best with 4 chunks and a tail of an eighth; no plan with 8 chunks and no tail."""

    def __init__(self, start: Plan, worst: float = 1.0) -> None:
        self.start, self.worst, self.asked = start, worst, []  # type: ignore[var-annotated]

    def __call__(self, knobs: Knobs) -> Plan | None:
        self.asked.append(knobs)
        if knobs == Knobs(8, 0.0):
            return None
        distance = abs(knobs.chunks - 4) / 8 + abs(knobs.tail_share - 0.125)
        period = (self.start.simulated_period_s or 0.0) * (self.worst - 0.2 + distance)
        named: dict[str, int | float | str] = {"staleness": 0, "chunks": knobs.chunks, "tail_share": knobs.tail_share}
        return replace(self.start, knobs=named, simulated_period_s=period)


def test_knobs_are_found_and_never_worse_than_the_start(start: Plan) -> None:
    found = tune(start, Landscape(start), DOMAIN, trials=40, seed=1)
    assert found.knobs == Knobs(4, 0.125)
    hopeless = tune(start, Landscape(start, worst=3.0), DOMAIN, trials=10, seed=1)
    assert hopeless.plan is start
    assert hopeless.knobs == knobs_of(start)


def test_a_loop_that_goes_on_from_its_storage_proposes_what_a_whole_one_does(start: Plan, tmp_path: Path) -> None:
    whole = tune(start, Landscape(start), DOMAIN, trials=12, seed=3, storage=tmp_path / "whole")
    tune(start, Landscape(start), DOMAIN, trials=5, seed=3, storage=tmp_path / "parts")
    rest = Landscape(start)
    resumed = tune(start, rest, DOMAIN, trials=12, seed=3, storage=tmp_path / "parts")
    assert resumed.trials == whole.trials
    assert resumed.knobs == whole.knobs
    assert len(rest.asked) < 12


def test_plans_that_are_not_acceptable_never_win(start: Plan) -> None:
    found = tune(start, Landscape(start), DOMAIN, trials=20, seed=1, acceptable=lambda plan: False)
    assert found.plan is start


def test_a_storage_that_is_none_is_named(start: Plan, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("not a journal\n")
    with pytest.raises(InputError, match="cannot be used as Optuna's storage"):
        tune(start, Landscape(start), DOMAIN, trials=1, seed=1, storage=tmp_path / "broken")


@pytest.mark.parametrize("text", ['{"op_code": 99, "worker_id": "x"}\n', "[]\n", '{"op_co'])
def test_a_damaged_storage_is_wrong_input(start: Plan, tmp_path: Path, text: str) -> None:
    storage = tmp_path / "storage"
    storage.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be used as Optuna's storage"):
        tune(start, Landscape(start), DOMAIN, trials=2, seed=1, storage=storage)


def test_trials_of_another_question_do_not_count(start: Plan, tmp_path: Path) -> None:
    tune(start, Landscape(start), DOMAIN, trials=3, seed=1, storage=tmp_path / "storage")
    other, narrow = Landscape(start), {"chunks": (1, 2)}
    tune(start, other, narrow, trials=3, seed=1, storage=tmp_path / "storage")
    assert other.asked


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_killed_search_goes_on_with_what_it_solved(tmp_path: Path) -> None:
    path, asked = tmp_path / "checkpoint", []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return solve_ilp.solve(*arguments)

    problems = [random_problem(seed) for seed in range(6)]
    first = [remembering(counted, path)(problem, Limit(), None) for problem in problems[:4]]
    path.write_text(path.read_text()[:-40])  # killed while it wrote the last line
    again = [remembering(counted, path)(problem, Limit(), None) for problem in problems]
    assert again[:4] == first
    assert len(asked) == 4 + 3
    assert len(load(path)) == 6


def test_another_file_is_never_taken_for_a_checkpoint_nor_added_to(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    with pytest.raises(InputError, match="is no checkpoint of rpegc"):
        remembering(solve_ilp.solve, path)
    assert path.read_text(encoding="utf-8") == PIPELINE


def test_a_line_that_was_edited_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    setting = setting_of(pipeline_from_text(PIPELINE), Options(space="quick", checkpoint=path))
    best_plan(setting)  # solves, and keeps each verdict
    kept = load(path)
    assert kept
    path.write_text(path.read_text(encoding="utf-8").replace('"bound": ', '"bound": 1'), encoding="utf-8")
    assert load(path) == {}


def test_an_interrupted_verdict_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"

    def interrupted(*arguments: Any) -> Any:
        return replace(solve_ilp.solve(*arguments), status=Status.INTERRUPTED)

    remembering(interrupted, path)(random_problem(1), Limit(), None)
    assert load(path) == {}


def test_other_questions_have_other_names() -> None:
    problem, other = random_problem(1), random_problem(2)
    named = {digest(problem, Limit(), None), digest(other, Limit(), None), digest(problem, Limit(), 100)}
    assert len(named | {digest(problem, Limit(tolerance=0.5), None)}) == 4
    assert digest(problem, Limit(), None) == digest(random_problem(1), Limit(), None)


# --- conflicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conflict", [("a",), ("b", "d"), ("a", "c", "d"), ("a", "b", "c", "d", "e")])
def test_the_smallest_conflict_is_found(conflict: tuple[str, ...]) -> None:
    others = ("a", "b", "c", "d", "e")
    assert smallest_conflict(others, lambda kept: not set(conflict) <= set(kept)) == conflict
    assert smallest_conflict(others, lambda kept: False) == ()


def test_a_smaller_conflict_beside_a_larger_one_is_preferred() -> None:
    def holds(kept: tuple[str, ...]) -> bool:
        return "c" not in kept and not {"a", "b"} <= set(kept)

    assert smallest_conflict(("c", "a", "b"), holds) == ("c",)
    assert smallest_conflict(("a", "b", "c"), holds) == ("c",)


def test_fixed_fields_that_do_not_fit_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_remedy", lambda setting: "")  # which larger cluster fits is another test's matter
    text = PIPELINE.replace("Qwen/Qwen2.5-1.5B", "Qwen/Qwen3-8B") + (
        "fix:\n  rollout: {offload: false, memory_fraction: 0.9}\n  update_actor: {recompute: full}\n"
    )
    with pytest.raises(NothingFits) as caught:
        compile_pipeline(pipeline_from_text(text), Options(space="quick"))
    assert caught.value.exit_code == 3
    assert caught.value.conflict == ("fix.rollout.offload: False",)
    assert "cannot hold together" in str(caught.value)


# --- without the target's limits --------------------------------------------------------------------------------------


def test_the_plan_says_what_the_limits_of_its_target_cost(start: Plan) -> None:
    free = start.unrestricted
    assert free is not None
    assert 0 < free.lower_bound_s <= free.period_s
    assert free.gain == pytest.approx(1 - free.period_s / start.period_s)
    without = compile_pipeline(pipeline_from_text(PIPELINE), Options(space="quick"))
    assert replace(start, unrestricted=None) == without


def test_tuning_an_able_target_ends_no_worse() -> None:
    setting = unrestricted(setting_of(pipeline_from_text(PIPELINE), Options(space="quick", trials=3)))
    outcome = search(setting, structures(setting))
    plan = bound_plan(setting, outcome)
    tuned = _tuned(setting, plan, lambda _: None)
    assert (tuned.simulated_period_s or 0.0) <= (plan.simulated_period_s or 0.0)
