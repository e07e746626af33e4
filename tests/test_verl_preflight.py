"""The emitted preflight: all findings at once, on a node or on a login node; and the emitted dataset."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verl_launches import emitted
from verl_plans import colocated_grpo, lora, one_step_off

from rpegc.plan import Plan


def preflight(launch: Path, folder: Path, installed: dict[str, str], *options: str, **variables: str) -> list[str]:
    """Run the emitted checks with only these packages installed; return the reasons not to start."""
    site, tools = folder / "site", folder / "tools"
    for package, version in installed.items():
        info = site / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (site / package.lower()).mkdir(exist_ok=True)
    tools.mkdir(exist_ok=True)
    stubs = {
        "nvidia-smi": 'for i in 0 1 2 3; do echo "GPU $i: NVIDIA GH200 120GB"; done',
        "ray": "exit 0",
        "python3": f'exec {sys.executable} -S "$@"',
    }
    for name, body in stubs.items():
        if "--files" in options and name != "python3":
            continue
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": str(site), "RPEGC_OBJECT_STORE_BYTES": "1"}
    done = subprocess.run(
        ["bash", str(launch / "preflight.sh"), *options],
        env=environment | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    reasons = done.stderr.splitlines()
    assert done.returncode == bool(reasons), done.stderr
    where = "" if "--files" in options else f" on {os.uname().nodename}"
    return [reason.removeprefix(f"preflight{where}: ") for reason in reasons]


INSTALLED = {"verl": "0.9.1", "vllm": "0.24.0", "ray": "2.60.0", "TransferQueue": "0.1.11", "tensordict": "0.10.0"}


DATA = Path(__file__).parent / "data" / "verl"
MANY = [f"column_{number}" for number in range(20)]


def local_plan_pipeline(**changes: Any) -> dict[str, Any]:
    """Return the pipeline of `local_plan`."""
    models = {role: {"config": "x", "weights": "./weights", "tokenizer": None} for role in ("actor", "reference")}
    data = {"train": "train.jsonl", "prompt_key": "prompt", "answer_key": "answer"}
    return colocated_grpo(models=models, data=data, **changes).pipeline


def local_plan(folder: Path) -> Plan:
    """Return a plan whose inputs exist below a folder."""
    for name in ("weights", "rewards"):
        (folder / name).mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "?", "answer": "!"}\n')
    (folder / "rewards" / "math.py").write_text("def score(data_source, solution_str, ground_truth):\n    return 1.0\n")
    return replace(colocated_grpo(), pipeline=local_plan_pipeline())


def test_preflight_lets_a_complete_node_start(tmp_path: Path) -> None:
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "generic")
    assert preflight(launch, tmp_path, INSTALLED) == []


def test_preflight_names_everything_that_is_missing(tmp_path: Path) -> None:
    plan = colocated_grpo(data=None, **{"training.learning_rate": None})
    wrong = INSTALLED | {"verl": "0.9.0", "ray": "2.9.0"}
    del wrong["vllm"]
    reasons = preflight(emitted(plan, tmp_path / "out"), tmp_path, wrong, NCCL_NET="Socket")
    assert "data.train is not set: add it to the pipeline and compile again" in reasons
    assert "training.learning_rate is not set: add it to the pipeline and compile again" in reasons
    assert "verl is 0.9.0, these files were written for 0.9.1" in reasons
    assert "ray is 2.9.0, too old: >=2.41" in reasons
    assert "the package vllm is not installed (set RPEGC_VENV or enter the container)" in reasons
    assert "models.actor.weights: /models/Qwen3-8B does not exist" in reasons
    assert "NCCL_NET must be 'AWS Libfabric', it is 'Socket'" in reasons


def test_preflight_looks_for_the_reward_function_and_enough_gpus(tmp_path: Path) -> None:
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "generic")
    (tmp_path / "rewards" / "math.py").write_text("def scores():\n    pass\n")
    facts = json.loads((launch / "preflight.json").read_text())
    (launch / "preflight.json").write_text(json.dumps(facts | {"gpus_per_node": 8}))
    reasons = preflight(launch, tmp_path, INSTALLED)
    assert "rewards/math.py defines no function 'score'; it defines scores" in reasons
    assert "the node shows 4 GPUs, the plan uses 8" in reasons


def test_preflight_reports_everything_at_once(tmp_path: Path) -> None:
    """What keeps one check from working hides none of the others."""
    wrong = {"training.learning_rate": None, "data.train": "broken.parquet", "reward.function": "b.py:f"}
    plan = colocated_grpo(**wrong)
    launch = emitted(plan, tmp_path / "out", "generic")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing that makes sense \x30\x00\x00\x00PAR1")
    (tmp_path / "b.py").write_text("def f(:\n")
    facts = json.loads((launch / "preflight.json").read_text())
    (launch / "preflight.json").write_text(json.dumps(facts | {"versions": {"verl": None}}))
    reasons = preflight(launch, tmp_path, INSTALLED, RPEGC_VENV="/no/venv", RPEGC_RUN_DIR="/proc/1/runs")
    found = "\n".join(reasons)
    for words in (
        "RPEGC_VENV is /no/venv, which is no virtual environment",
        "training.learning_rate is not set",
        "broken.parquet cannot be read",
        "b.py cannot be read",
        "models.actor.weights: /models/Qwen3-8B does not exist",
        "data.val: /data/aime.parquet does not exist",
        "wrong_versions could not be looked for",
        "checkpoints would go to /proc/1/runs, but nothing can be written",
    ):
        assert words in found


def test_preflight_of_files_needs_nothing_that_a_login_node_lacks(tmp_path: Path) -> None:
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "alps")
    assert preflight(launch, tmp_path, {}, "--files", RPEGC_VENV="/no/venv") == []
    (tmp_path / "train.jsonl").write_text('{"question": "?", "answer": "!"}\n')
    (tmp_path / "rewards" / "math.py").unlink()
    facts = json.loads((launch / "preflight.json").read_text())
    (launch / "preflight.json").write_text(json.dumps(facts | {"missing": ["training.learning_rate"]}))
    assert preflight(launch, tmp_path, {}, "--files") == [
        "training.learning_rate is not set: add it to the pipeline and compile again",
        "reward.function: rewards/math.py does not exist",
        "train.jsonl has no column prompt; it has question, answer",
    ]


@pytest.mark.parametrize("options", [(), ("--files",)])
def test_preflight_leaves_nothing_in_the_folder(options: tuple[str, ...], tmp_path: Path) -> None:
    """`rpegc compile` replaces a folder only while it holds nothing but its own files."""
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "generic")
    before = sorted(launch.rglob("*"))
    assert preflight(launch, tmp_path, INSTALLED, *options) == []
    assert sorted(launch.rglob("*")) == before


def test_preflight_on_the_login_node_refuses_the_compiled_folder(tmp_path: Path) -> None:
    launch = emitted(local_plan(tmp_path), tmp_path / "out", "alps")
    (reason,) = preflight(launch, tmp_path, {}, "--files", RPEGC_RUN_DIR=str(launch / "runs"))
    assert "inside the compiled folder" in reason


def test_preflight_has_one_option(tmp_path: Path) -> None:
    launch = emitted(lora(), tmp_path)
    done = subprocess.run(["bash", str(launch / "preflight.sh"), "--fils"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is --files" in done.stderr


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"data_source": "openai/gsm8k"}, {"data_source": "aime2024"}], None),
        ([{"data_source": "openai/gsm8k"}, {"data_source": "mine"}, {}], "knows no data_source None, mine;"),
        ([{"source": "x"}], "train.jsonl has no column data_source"),
    ],
)
def test_verls_own_verifier_needs_sources_that_it_knows(
    rows: list[dict[str, str]], reason: str | None, tmp_path: Path
) -> None:
    plan = replace(local_plan(tmp_path), pipeline=local_plan_pipeline(reward={"function": None}))
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"prompt": "?", "answer": "!"} | row) + "\n" for row in rows)
    )
    launch = emitted(plan, tmp_path / "out", "generic")
    reasons = preflight(launch, tmp_path, {}, "--files")
    assert len(reasons) == (reason is not None)
    assert reason is None or reason in reasons[0]


def test_a_dataset_class_of_the_users_own_needs_no_answer_column(tmp_path: Path) -> None:
    asked = {"data.custom_cls.path": "mine.py", "data.custom_cls.name": "Mine"}
    plan = replace(local_plan(tmp_path), pipeline=local_plan_pipeline(target_overrides=asked, reward={}))
    (tmp_path / "train.jsonl").write_text('{"prompt": "?"}\n')
    assert preflight(emitted(plan, tmp_path / "out", "generic"), tmp_path, {}, "--files") == []


def test_parquet_columns_are_read_without_packages(tmp_path: Path) -> None:
    """A file written by pyarrow 26 with flat, nested and list columns, as verl's own data have them."""
    launch = emitted(lora(), tmp_path)
    names = runpy.run_path(str(launch / "parquet_columns.py"))["columns_of_parquet"]
    assert names(DATA / "verl_rows.parquet") == ["data_source", "prompt", "reward_model", "extra", "füße", *MANY]
    for content in (b"", b"PAR1", b"x" * 100, b"PAR1\xff\xff\xff\x7fPAR1"):
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(ValueError, match="no parquet file"):
            names(tmp_path / "bad.parquet")


DATASET = """
import sys
sys.path[:0] = sys.argv[1:]
from dataset import AnswerColumnDataset
rows = AnswerColumnDataset()
rows.prompt_key, rows.config = "prompt", type("Config", (), {"answer_key": "answer"})
print(rows._complete({"prompt": "?", "answer": "4"}))
print(rows._complete({"prompt": [], "answer": "4", "data_source": "math", "reward_model": {"ground_truth": "5"}}))
print(rows._complete({"prompt": [], "answer": "4", "data_source": ""}))
"""


def test_the_dataset_leaves_the_columns_of_the_data_alone(tmp_path: Path) -> None:
    launch = emitted(colocated_grpo(), tmp_path / "out")
    package = tmp_path / "stub" / "verl" / "utils" / "dataset"
    package.mkdir(parents=True)
    (package / "rl_dataset.py").write_text("class RLHFDataset:\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-S", "-c", DATASET, str(launch), str(tmp_path / "stub")], capture_output=True, text=True
    )
    judged = "'reward_model': {'style': 'rule', 'ground_truth': '4'}"
    assert done.stdout.splitlines() == [
        f"{{'prompt': [{{'role': 'user', 'content': '?'}}], 'data_source': 'rpegc', {judged}}}",
        "{}",
        f"{{{judged}}}",
    ], done.stderr


def test_preflight_of_one_step_off_wants_the_checkpoint_engine(tmp_path: Path) -> None:
    reasons = preflight(emitted(one_step_off(), tmp_path / "out"), tmp_path, INSTALLED)
    assert "the Python module cupy cannot be found" in reasons
