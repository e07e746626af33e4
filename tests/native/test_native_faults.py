"""A run that loses a process, its disk or its time goes on as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import HERE, PATIENCE_S, curve, environment, launch, lines, run_all, write
from native_model import make
from native_plans import apart, bind, colocated

from rpegc.target import ShardedLayout

pytestmark = pytest.mark.native

STEPS = 4
FSDP = ShardedLayout(dp=2, zero=3, shard_size=2, micro_batch=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    make(folder)
    return folder


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory) -> Path:
    """Runs that nothing interrupted."""
    runs = tmp_path_factory.mktemp("whole")
    plans = {"colocated": bind(folder, colocated(2), FSDP, steps=STEPS, save_every=2)}
    plans["apart"] = bind(folder, apart(1, 1), staleness=1, seconds={"period": 1.5}, steps=STEPS, save_every=2)
    run_all(2, plans, runs)
    return runs


def assert_same(run: Path, other: Path) -> None:
    assert lines(run, "ledger") == lines(other, "ledger")
    assert curve(run) == pytest.approx(curve(other), abs=2e-3)
    assert curve(run, "reward_mean") == pytest.approx(curve(other, "reward_mean"))


def kill(whole: Path, tmp_path: Path, placement: str, rank: int, stage: str, step: int) -> None:
    plan = whole / placement / "plan.json"
    run = tmp_path / "run"
    launch(2, str(HERE / "native_faulty.py"), str(plan), str(run), str(rank), stage, str(step), restarts=1)
    assert (run / "killed").exists(), "nobody was killed"
    assert_same(run, whole / placement)


def test_a_rank_that_is_killed_while_it_trains_costs_no_prompt(whole, tmp_path):
    kill(whole, tmp_path, "colocated", rank=1, stage="update_actor", step=3)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["rollout", "verify", "update_actor", "sync_actor_rollout", "checkpoint"])
@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_may_be_killed_in_any_stage(whole, tmp_path, rank, stage):
    kill(whole, tmp_path, "colocated", rank, stage, step=2 if stage == "checkpoint" else 3)


@pytest.mark.long
@pytest.mark.parametrize(("rank", "stage"), [(0, "update_actor"), (1, "rollout"), (1, "sync_actor_rollout")])
def test_an_asynchronous_run_that_loses_a_rank_goes_on_the_same(whole, tmp_path, rank, stage):
    kill(whole, tmp_path, "apart", rank, stage, step=3)


def test_a_checkpoint_of_one_layout_loads_in_another(folder, whole, tmp_path):
    plans = {"fsdp": bind(folder, colocated(2), FSDP, steps=2)}
    run_all(2, plans, tmp_path)
    others = {
        "tensor": ShardedLayout(tp=2, sequence_parallel=True, micro_batch=8),
        "zero1": ShardedLayout(dp=2, zero=1, micro_batch=4),
        "pipeline": ShardedLayout(pp=2, micro_batch=4),
    }
    plans = {}
    for name, layout in others.items():
        subprocess.run(["cp", "-r", str(tmp_path / "fsdp"), str(tmp_path / name)], check=True)
        plans[name] = bind(folder, colocated(2), layout, steps=STEPS)
    run_all(2, plans, tmp_path)
    for name in others:
        assert_same(tmp_path / name, whole / "colocated")


def test_a_full_disk_leaves_the_last_checkpoint_whole(whole, tmp_path):
    plan, run = whole / "colocated" / "plan.json", tmp_path / "run"
    text = launch(2, str(HERE / "native_faulty.py"), str(plan), str(run), "0", "disk", "4")
    assert "no checkpoint of step 4" in text
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]
    assert len(lines(run)) == STEPS  # the run itself went on
    launch(2, str(HERE / "native_many.py"), str(plan), str(run))
    assert (run / "checkpoints" / "step-000004" / "run.json").exists()
    assert_same(run, whole / "colocated")


def test_sigterm_ends_the_step_writes_a_checkpoint_and_exits_cleanly(folder, tmp_path):
    plan = write(bind(folder, colocated(1), steps=500), tmp_path / "long")
    run = tmp_path / "run"
    command = [sys.executable, "-m", "rpegc.runtime", str(plan), "--folder", str(run)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not ((run / "metrics.jsonl").exists() and len((run / "metrics.jsonl").read_text().splitlines()) >= 2):
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "the run makes no steps"
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    done = len(lines(run))
    assert 2 <= done < 500
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{done:06d}"]
    subprocess.run([*command, "--steps", str(done + 1)], env=environment(), check=True, stderr=subprocess.DEVNULL)
    assert [record["step"] for record in lines(run, "ledger")] == list(range(done + 1))
