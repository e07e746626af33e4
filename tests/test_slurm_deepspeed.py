"""A real SLURM runs the emitted DeepSpeed job on two nodes of four ranks to its end; run by `make proof-slurm`.

The ranks train a tiny model with gloo on CPUs; nothing but nvidia-smi and vLLM's entry in the list of packages is made
up. The server's job runs with stand-ins for vLLM and Python.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepspeed_plans import colocated, served
from deepspeed_proofs import CPU, TINY, environment, inputs, logged, variables
from slurm_cluster import Cluster, Job, cluster

from backends import backend
from rpegc.emit import write_files
from rpegc.plan import Plan

pytestmark = pytest.mark.proof

JOB_LIMIT_S = 500.0
SMALL = {**TINY, "workload.prompts_per_step": 8, "training.total_steps": 1}
HOSTILE = "o $(touch HACKED) `touch HACKED` ;x & 'q' ü"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """The cluster; a SIGTERM ends the tests as an interrupt does, so that the daemons are stopped."""
    environment()  # made before SLURM starts
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster() as running:
        yield running
    signal.signal(signal.SIGTERM, before)


def two_nodes(**changes: Any) -> Plan:
    """Return the plan of a tiny pipeline on two nodes of four GPUs: 32 samples a step, two updates."""
    plan = colocated(2, layout={"zero": 2, "micro_batch": 2}, **{**SMALL, **changes})
    for model in plan.pipeline["models"].values():
        model["weights"] = "./model"
    return plan


def submitted(slurm: Cluster, plan: Plan, work: Path, reward: str | None = None) -> Job:
    work.mkdir()
    inputs(work, reward) if reward else inputs(work)
    write_files(backend("deepspeed").emit(plan, "alps"), work / HOSTILE)
    needed = variables(work.parent / "needed")
    address = {"RPEGC_MASTER_ADDRESS": "127.0.0.1", "RPEGC_VENV": needed.pop("RPEGC_VENV")}
    return slurm.submit(work / HOSTILE / "launch" / "submit.sbatch", work, JOB_LIMIT_S, *CPU, **needed, **address)


@pytest.fixture(scope="module")
def good(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    work = tmp_path_factory.mktemp("good") / "work"
    return submitted(slurm, two_nodes(), work), work


def test_the_job_trains_to_its_end(slurm: Cluster, good: tuple[Job, Path]) -> None:
    job, work = good
    run = work / "runs" / "qwen3-8b-grpo"
    assert job.status == 0, job.log[-4000:]
    assert logged(run, "step") == [1, 2, 2]
    assert 0 < logged(run, "reward")[0] < 1
    assert (run / "model" / "model.safetensors").exists()
    assert (run / f"metrics-{job.number}.jsonl").exists()
    assert slurm.jobs_left() == []


def test_a_hostile_folder_name_does_not_execute(good: tuple[Job, Path]) -> None:
    assert not list(good[1].parent.rglob("HACKED"))


def test_a_rank_that_fails_fails_the_job_with_its_code(slurm: Cluster, tmp_path: Path) -> None:
    reward = "import os\ndef score(**_):\n    os._exit(7) if os.environ.get('RANK') == '5' else None\n    return 0.0\n"
    failing = {"function": "reward.py:score", "seconds_per_sample": 0.0, "workers_per_node": 1}
    job = submitted(slurm, two_nodes(reward=failing), tmp_path / "work", reward)
    assert job.status == 7, job.log[-4000:]
    assert slurm.jobs_left() == []


PLANS = {
    "4 nodes": lambda: colocated(4),
    "64 nodes": lambda: colocated(64, **{"workload.prompts_per_step": 1024}),
    "server": served,
}


@pytest.mark.parametrize("name", PLANS)
def test_slurm_would_start_every_script(slurm: Cluster, name: str, tmp_path: Path) -> None:
    write_files(backend("deepspeed").emit(PLANS[name](), "alps"), tmp_path)
    answer = slurm.test_only(tmp_path / "launch" / "submit.sbatch")
    assert answer.returncode == 0, answer.stderr


def test_slurm_refuses_a_planted_mistake(slurm: Cluster, tmp_path: Path) -> None:
    write_files(backend("deepspeed").emit(PLANS["64 nodes"](), "alps"), tmp_path)
    script = tmp_path / "launch" / "submit.sbatch"
    script.write_text(re.sub("--nodes=64", "--nodes=65", script.read_text()))
    assert slurm.test_only(script).returncode != 0
