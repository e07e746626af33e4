"""Runs DeepSpeed, TRL and OpenRLHF's parser on emitted files, in an environment of their own, on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent / "deepspeed_environment"
STAND_INS = HERE.parent / "slurm" / "stand_ins" / "bin"
CACHE = Path(os.environ.get("RPEGC_CACHE", Path(__file__).parent.parent / ".cache"))
MAKE_LIMIT_S = 900
TINY = {
    "workload.prompts_per_step": 4,
    "workload.samples_per_prompt": 4,
    "workload.minibatches_per_step": 2,
    "workload.prompt_tokens": {"mean": 4, "max": 16},
    "workload.response_tokens": {"mean": 12, "max": 16},
    "training.learning_rate": 1.0e-3,
    "training.kl": {"coefficient": 0.04, "where": "loss", "estimator": "k3"},
    "training.total_steps": 2,
    "training.save_every": 1,
    "training.test_every": None,
    "data": {"train": "train.jsonl", "val": None, "prompt_key": "prompt", "answer_key": "answer"},
    "reward": {"function": "reward.py:score", "seconds_per_sample": 0.0, "workers_per_node": 4},
}
"""A pipeline that two processes train in seconds: two RL steps of 16 samples, two updates each."""

CPU = ("use_cpu=true", "use_vllm=false", "vllm_enable_sleep_mode=false")
"""What the emitted trainer is told on a machine without GPUs."""

REWARD = """
def score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": sum(c.isdigit() for c in solution_str) / max(len(solution_str), 1), "truth": ground_truth}
"""


def environment() -> Path:
    """Return the folder of the Python environment, made if need be; the test fails if it cannot be made."""
    folder = CACHE / "deepspeed"
    made = subprocess.run(
        ["bash", str(HERE / "make_environment.sh"), str(folder)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=MAKE_LIMIT_S,
    )
    if made.returncode:
        pytest.fail(f"the environment deepspeed cannot be made:\n{made.stderr[-2000:]}")
    return folder


def variables(folder: Path) -> dict[str, str]:
    """Return what a training process on CPUs needs; `folder` takes what it caches and poses as vLLM's installation."""
    extensions = environment() / "extensions"
    for lock in extensions.glob("**/lock"):  # of a compilation that was killed: the next would wait for it for ever
        lock.unlink()
    package = folder / "packages" / "vllm-0.30.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n")
    return {
        "RPEGC_VENV": str(environment()),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "huggingface"),
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "PYTHONPATH": str(folder / "packages"),
        "PYTHONWARNINGS": "ignore",
    }


def inputs(work: Path, reward: str = REWARD) -> None:
    """Write the model, the data and the reward function that `TINY` names into a folder of submission."""
    rows = [{"prompt": f"{n % 10}+{n % 7}", "answer": str(n % 10 + n % 7)} for n in range(64)]
    (work / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "reward.py").write_text(reward)
    program([str(HERE / "make_model.py"), str(work / "model")], 120)


def program(words: list[str], limit_s: float) -> str:
    """Run a program in the environment; return what it printed, or fail the test."""
    done = subprocess.run(
        [str(environment() / "bin" / "python"), *words],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    if done.returncode:
        pytest.fail(f"{words[0]} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def asked(name: str, requests: list[dict[str, Any]], folder: Path, limit_s: float = 200) -> list[dict[str, Any]]:
    """Run a program of `deepspeed_environment` on requests; return its findings, one a request."""
    file = folder / "requests.json"
    file.write_text(json.dumps(requests), encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(
        program([str(HERE / name), str(file), str(folder)], limit_s).splitlines()[-1]
    )
    return found


def logged(run: Path, key: str) -> list[float]:
    """Return a figure of each logged step that has it."""
    lines = [line for file in sorted(run.glob("metrics-*.jsonl")) for line in file.read_text().splitlines()]
    return [row[key] for row in map(json.loads, lines) if key in row]
