"""The emitted launch trains, with DeepSpeed and TRL themselves, on CPUs; run by `make proof-deepspeed`.

Not proven here: vLLM (generation is transformers' own), NCCL, SuperOffload, which needs a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deepspeed_plans import adapters, colocated, served
from deepspeed_proofs import CPU, HERE, STAND_INS, TINY, asked, inputs, logged, program, variables

from backends import backend
from rpegc.emit import write_files
from rpegc.plan import Plan

pytestmark = pytest.mark.proof

RUN_LIMIT_S = 300


def tiny(zero: int = 2, **changes: Any) -> Plan:
    """Return the plan of a tiny pipeline on one node of two processes."""
    layout = {"zero": zero, "micro_batch": 4, "recompute": "full" if zero == 3 else "none"}
    plan = colocated(1, gpus_per_node=2, hardware="h100-dgx", layout=layout, **{**TINY, **changes})
    for model in plan.pipeline["models"].values():
        model["weights"] = "./model"
    return plan


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of submission with a model, data and a reward function."""
    folder = tmp_path_factory.mktemp("work")
    inputs(folder)
    return folder


def train(plan: Plan, work: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the emitted start script of a node without SLURM."""
    compiled = work / f"out {name}"
    write_files(backend("deepspeed").emit(plan, "generic"), compiled)
    own = {"PATH": f"{STAND_INS}:{os.environ['PATH']}", "RPEGC_RUN_DIR": str(work / name), "RPEGC_MASTER_PORT": "29653"}
    return subprocess.run(
        ["bash", str(compiled / "launch" / "run_local.sh"), *CPU, *arguments],
        env=os.environ | variables(work) | own,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )


@pytest.fixture(scope="module")
def runs(work: Path) -> dict[int, subprocess.CompletedProcess[str]]:
    """Train at each ZeRO level."""
    return {zero: train(tiny(zero), work, f"zero{zero}") for zero in (0, 2, 3)}


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_it_trains_to_the_end(runs: dict[int, subprocess.CompletedProcess[str]], work: Path, zero: int) -> None:
    assert runs[zero].returncode == 0, runs[zero].stderr[-3000:]
    assert len(logged(work / f"zero{zero}", "loss")) == 4  # two RL steps of two updates
    assert (work / f"zero{zero}" / "model" / "model.safetensors").stat().st_size > 100_000  # gathered, also by ZeRO 3


def test_zero_levels_give_the_same_rewards(runs: dict[int, subprocess.CompletedProcess[str]], work: Path) -> None:
    rewards = {zero: logged(work / f"zero{zero}", "reward") for zero in runs}
    assert len(rewards[0]) == 2
    assert rewards[0] == rewards[2] == rewards[3]
    assert 0 < rewards[0][0] < 1


def test_the_reference_stands_still_while_the_actor_moves(
    runs: dict[int, subprocess.CompletedProcess[str]], work: Path
) -> None:
    for zero in runs:
        divergence = logged(work / f"zero{zero}", "kl")
        assert divergence[0] == pytest.approx(0.0, abs=1e-6)
        assert divergence[-1] > 1e-4


def test_nothing_is_left_in_the_compiled_folder(runs: dict[int, subprocess.CompletedProcess[str]], work: Path) -> None:
    emitted = {path.split("/")[-1] for path in backend("deepspeed").emit(tiny(2), "generic")}
    assert {path.name for path in (work / "out zero2" / "launch").iterdir()} == emitted


def test_a_job_goes_on_from_its_last_complete_checkpoint(
    runs: dict[int, subprocess.CompletedProcess[str]], work: Path
) -> None:
    checkpoints = work / "zero2" / "checkpoints"
    shutil.rmtree(checkpoints / "checkpoint-4")
    (checkpoints / "checkpoint-6").mkdir()  # one that was cut off
    (work / "zero2" / "metrics-local.jsonl").unlink()
    again = train(tiny(2), work, "zero2")
    assert again.returncode == 0, again.stderr[-3000:]
    assert logged(work / "zero2", "step") == [3, 4, 4]


def test_adapters_are_trained(work: Path) -> None:
    done = train(tiny(2, **{"training.lora_rank": 4, "training.save_every": None}), work, "lora")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (work / "lora" / "model" / "adapter_config.json").exists()
    assert logged(work / "lora", "kl")[-1] > 0


def test_a_rank_that_fails_ends_the_run_with_its_code(work: Path) -> None:
    (work / "leaving.py").write_text(
        "import os\ndef score(**_):\n    os._exit(7) if os.environ.get('RANK') == '1' else None\n    return 0.0\n"
    )
    failing = {"function": "leaving.py:score", "seconds_per_sample": 0.0, "workers_per_node": 1}
    done = train(tiny(0, reward=failing), work, "failing")
    assert done.returncode == 7, done.stderr[-3000:]


# What DeepSpeed and TRL make of the settings, for many ranks.

WRONG = colocated(16)
READ: dict[str, Plan] = {
    "64 ranks": colocated(16),
    "64 ranks, ZeRO 3 with everything offloaded": colocated(
        16, layout={"zero": 3, "offload_optimizer": True, "offload_parameters": True}
    ),
    "64 ranks, ZeRO 1, micro-batches of one": colocated(16, layout={"zero": 1, "micro_batch": 1}),
    "server": served(),
    "adapters": adapters(),
    "two epochs": colocated(4, **{"training.epochs_per_batch": 2}),
}


def request(plan: Plan) -> dict[str, Any]:
    files = backend("deepspeed").emit(plan, "alps")
    config = json.loads(files["launch/ds_config.json"].content)
    grpo = json.loads(files["launch/settings.json"].content)["grpo"]
    return {"ds_config": config, "grpo": grpo, "ranks": next(s for s in plan.stages if s.op == "train").layout.dp}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What DeepSpeed and TRL read from the files of each plan, and from files with planted mistakes."""
    requests = {name: request(plan) for name, plan in READ.items()}
    sound = requests["64 ranks"]
    for name, config, grpo in (
        ("a wrong batch", {"train_batch_size": 2000}, {}),
        ("a wrong key", {"zero_optimization": {"stage": 2, "overlap_com": True}}, {}),
        ("a wrong field of TRL", {}, {"epsilonn": 0.2}),
    ):
        requests[name] = sound | {"ds_config": sound["ds_config"] | config, "grpo": sound["grpo"] | grpo}
    found = asked("validate.py", list(requests.values()), tmp_path_factory.mktemp("read"))
    return dict(zip(requests, found, strict=True))


@pytest.mark.parametrize("name", READ)
def test_deepspeed_and_trl_read_what_was_planned(read: dict[str, dict[str, Any]], name: str) -> None:
    found, wanted = read[name], request(READ[name])
    layout = next(stage for stage in READ[name].stages if stage.op == "train").layout
    assert found["ok"], found
    assert found["world"] == layout.dp
    assert found["batch"] == [
        wanted["ds_config"]["train_batch_size"],
        layout.micro_batch,
        wanted["ds_config"]["gradient_accumulation_steps"],
    ]
    assert found["batch"][0] == found["batch"][1] * found["batch"][2] * found["world"]
    assert found["stage"] == layout.zero
    assert found["offload"] == [layout.offload_optimizer, layout.offload_parameters]


@pytest.mark.parametrize("name", ["a wrong batch", "a wrong key", "a wrong field of TRL"])
def test_the_reading_has_teeth(read: dict[str, dict[str, Any]], name: str) -> None:
    assert not read[name]["ok"], read[name]


def test_the_list_of_keys_is_that_of_the_models() -> None:
    """DeepSpeed passes over keys that it does not know: ours are checked against this list."""
    printed = program([str(HERE / "keys.py")], 200).splitlines()
    listed = (Path(__file__).parent.parent / "backends" / "deepspeed" / "keys-0.19.8.txt").read_text().splitlines()
    assert [line for line in printed if line in set(listed) or line.startswith(("#", "grpo.", "lora."))] == listed
