"""The launch folder for DeepSpeed: as reviewed, clean for linters, the same bytes every time, and right in its sums."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deepspeed_plans import adapters, colocated, served, served_on_one_node
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import backend
from backends.site import site_names
from rpegc.emit import Files, write_files
from rpegc.errors import InputError
from rpegc.plan import Plan

PLANS: dict[str, Plan] = {
    "colocated": colocated(),
    "server": served(),
    "one node": served_on_one_node(),
    "adapters": adapters(),
}
BIN = Path(sys.executable).parent


def files_of(plan: Plan, site: str = "alps") -> Files:
    return backend("deepspeed").emit(plan, site)


def text(files: Files, name: str) -> str:
    return files[f"launch/{name}"].content.decode()


def data(files: Files, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(files, name))
    return found


@pytest.mark.parametrize("name", PLANS)
def test_settings_are_as_reviewed(name: str, golden: Callable[[str, str], None]) -> None:
    files = files_of(PLANS[name])
    for file in ("settings.json", "ds_config.json", "submit.sbatch"):
        golden(f"deepspeed/{name.replace(' ', '-')}.{file}", text(files, file))


def test_other_files_are_as_reviewed(golden: Callable[[str, str], None]) -> None:
    files = files_of(PLANS["one node"], "generic")
    for file in ("run.sh", "run_local.sh", "environment.sh", "vllm_server.txt", "preflight.json", "README.md"):
        golden(f"deepspeed/shared.{file}", text(files, file))
    golden("deepspeed/alps.README.md", text(files_of(PLANS["colocated"]), "README.md"))


@pytest.mark.parametrize("site", site_names())
@pytest.mark.parametrize("name", PLANS)
def test_scripts_are_clean_for_bash_and_shellcheck(name: str, site: str, tmp_path: Path) -> None:
    write_files(files_of(PLANS[name], site), tmp_path)
    scripts = [str(p) for p in sorted((tmp_path / "launch").iterdir()) if p.suffix in (".sh", ".sbatch")]
    assert len(scripts) >= 5
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    found = subprocess.run([str(BIN / "shellcheck"), *scripts], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_python_files_are_clean(tmp_path: Path) -> None:
    write_files(files_of(PLANS["colocated"]), tmp_path)
    programs = [str(path) for path in sorted((tmp_path / "launch").glob("*.py"))]
    assert len(programs) == 5
    options = ["--isolated", "--line-length=120", "--select=E,F,B,I", "--ignore=B905"]  # zip as Python 3.9 has it
    checked = subprocess.run([str(BIN / "ruff"), "check", *options, *programs], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", PLANS)
def test_files_are_the_same_every_time(name: str) -> None:
    assert files_of(PLANS[name]) == files_of(PLANS[name])


@settings(deadline=None, max_examples=30)
@given(
    nodes=st.sampled_from([1, 2, 4, 16]),
    micro_batch=st.sampled_from([1, 2, 4]),
    minibatches=st.sampled_from([1, 2, 4, 8]),
    epochs=st.sampled_from([1, 2]),
)
def test_batches_add_up(nodes: int, micro_batch: int, minibatches: int, epochs: int) -> None:
    """DeepSpeed's triangle, and every sequence of a step in exactly one update of an epoch."""
    changes = {"workload.minibatches_per_step": minibatches, "training.epochs_per_batch": epochs}
    files = files_of(colocated(nodes, layout={"micro_batch": micro_batch}, **changes))
    ds, grpo = data(files, "ds_config.json"), data(files, "settings.json")["grpo"]
    ranks, sequences = 4 * nodes, 512 * 16
    assert ds["train_batch_size"] == sequences // minibatches
    assert ds["train_batch_size"] == micro_batch * ds["gradient_accumulation_steps"] * ranks
    assert grpo["per_device_train_batch_size"] == ds["train_micro_batch_size_per_gpu"] == micro_batch
    assert grpo["gradient_accumulation_steps"] == ds["gradient_accumulation_steps"]
    assert grpo["steps_per_generation"] * micro_batch * ranks == sequences
    assert grpo["num_iterations"] == epochs
    assert grpo["max_steps"] == 500 * minibatches * epochs
    assert grpo["save_steps"] == 20 * minibatches * epochs


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_levels_and_offload_are_written(zero: int) -> None:
    layout = {"zero": zero, "offload_optimizer": zero > 0, "offload_parameters": zero == 3}
    found = data(files_of(colocated(layout=layout, hardware="h100-dgx")), "ds_config.json")["zero_optimization"]
    assert found["stage"] == zero
    assert ("offload_optimizer" in found) == (zero > 0)
    assert ("offload_param" in found) == (zero == 3)
    assert "super_offload" not in found.get("offload_optimizer", {})


@pytest.mark.parametrize(("hardware", "zero", "fast"), [("gh200-alps", 3, True), ("gh200-alps", 2, False)])
def test_superoffload_needs_a_superchip_and_zero_3(hardware: str, zero: int, fast: bool) -> None:
    plan = colocated(layout={"zero": zero, "offload_optimizer": True}, hardware=hardware)
    found = data(files_of(plan), "ds_config.json")
    assert found["zero_optimization"]["offload_optimizer"].get("super_offload", False) is fast
    assert found["optimizer"]["params"]["torch_adam"] is False


def test_old_logprobs_are_never_weighed_by_those_of_the_engine() -> None:
    """TRL's default would recompute old log-probs in every step, and change the estimator."""
    for plan in PLANS.values():
        assert data(files_of(plan), "settings.json")["grpo"]["vllm_importance_sampling_correction"] is False


def test_one_node_is_split_between_trainer_and_server() -> None:
    script = text(files_of(PLANS["one node"]), "run.sh")
    assert "take_gpus 0 2" in script
    assert "take_gpus 2 2" in script
    assert "--nproc-per-node=2" in script


def test_users_settings_replace_free_ones_and_reach_their_files() -> None:
    wanted = {
        "grpo.top_p": 0.9,
        "grpo.loss_type": "dr_grpo",
        "deepspeed.zero_optimization.overlap_comm": True,
        "deepspeed.activation_checkpointing.cpu_checkpointing": False,
        "vllm.enable_prefix_caching": False,
    }
    files = files_of(served(target_overrides=wanted))
    grpo = data(files, "settings.json")["grpo"]
    assert (grpo["top_p"], grpo["loss_type"]) == (0.9, "dr_grpo")
    config = data(files, "ds_config.json")
    assert config["zero_optimization"]["overlap_comm"] is True
    assert config["activation_checkpointing"] == {"cpu_checkpointing": False}
    assert "--no-enable-prefix-caching" in text(files, "vllm_server.txt").splitlines()


def test_what_the_pipeline_leaves_open_is_named_by_preflight(tmp_path: Path) -> None:
    gaps = {"training.learning_rate": None, "training.total_steps": None, "data": None, "training.test_every": None}
    plan = colocated(**gaps)
    plan.pipeline["models"]["actor"]["weights"] = plan.pipeline["models"]["reference"]["weights"] = None
    files = files_of(plan)
    assert data(files, "preflight.json")["missing"] == [
        "data.train",
        "models.actor.weights",
        "training.learning_rate",
        "training.total_steps",
    ]
    write_files(files, tmp_path / "out")
    done = subprocess.run(
        ["bash", str(tmp_path / "out" / "launch" / "preflight.sh"), "--files"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "data.train is not set" in done.stderr


@pytest.mark.parametrize("updates", [1, 4])
def test_old_logprobs_must_be_there_exactly_if_trl_computes_them(updates: int) -> None:
    plan = colocated(**{"workload.minibatches_per_step": updates})
    other = colocated(**{"workload.minibatches_per_step": 5 - updates})
    wrong = replace(plan, stages=other.stages, graph=other.graph)
    with pytest.raises(InputError, match="recomputes old log-probs if and only if"):
        files_of(wrong)
