"""verl's own checks and dataclasses accept every emitted configuration (level validate: about 1.5 GB)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from verl_plans import (
    colocate_async,
    colocated_grpo,
    lora,
    megatron_grpo,
    megatron_ppo,
    one_step_off,
    ppo,
    separate_async,
)
from verl_proofs import DRIVER, ONE_STEP_OFF_DRIVER, environment, run

from backends import backend
from rpegc.emit import write_files
from rpegc.plan import Plan

pytestmark = pytest.mark.proof

PLANS: dict[str, Plan] = {
    "colocated GRPO": colocated_grpo(),
    "PPO, reward model apart": ppo(),
    "PPO, reward model among the others": ppo(own_pool=False),
    "one-step-off": one_step_off(),
    "LoRA": lora(),
    "GRPO on Megatron": megatron_grpo(),
    "PPO on Megatron": megatron_ppo(),
    "separate-async": separate_async(),
    "separate-async on Megatron": separate_async(engine="megatron"),
    "colocate-async": colocate_async(),
    "a field no dataclass has": colocated_grpo(target_overrides={"+actor_rollout_ref.actor.no_such_field": 1}),
    "a loss aggregation verl lacks": colocated_grpo(target_overrides={"actor_rollout_ref.actor.loss_agg_mode": "foo"}),
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Validate all plans in one process; what verl said of each, by name."""
    python = environment("validate", limit_s=900)
    folder = tmp_path_factory.mktemp("validate")
    requests = []
    for index, plan in enumerate(PLANS.values()):
        file = folder / f"{index}.txt"
        file.write_bytes(backend("verl").emit(plan)["launch/verl_overrides.txt"].content)
        module = ONE_STEP_OFF_DRIVER if plan.graph.mode == "one-step-off" else DRIVER
        requests.append({"module": module, "overrides": str(file)})
    return dict(zip(PLANS, run(python, "validate.py", requests, folder, limit_s=300), strict=True))


@pytest.mark.parametrize("name", list(PLANS)[:10])
def test_configuration_is_valid(findings: dict[str, dict[str, Any]], name: str) -> None:
    assert findings[name].get("error") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("a field no dataclass has", "no_such_field"), ("a loss aggregation verl lacks", "loss_agg_mode")],
)
def test_what_verl_lacks_is_refused(findings: dict[str, dict[str, Any]], name: str, words: str) -> None:
    assert words in findings[name]["error"]


def test_engines_read_what_was_planned(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["colocated GRPO"]["values"]
    assert values["actor_strategy"] == "fsdp2"
    assert values["actor_ulysses"] == 2
    assert values["actor_offload"] == [False, True]
    assert values["needs_reference"]
    assert not values["needs_critic"]


def test_critic_trains_with_the_planned_budget(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["PPO, reward model apart"]["values"]
    assert values["critic_strategy"] == "fsdp2"
    assert values["critic_budget"] == 32768
    assert values["rollout_tp"] == 2


def test_megatron_models_have_the_sizes_that_were_planned(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["GRPO on Megatron"]["values"]
    assert values["actor_strategy"] == "megatron"
    assert values["actor_sizes"] == [2, 4, None, 2, 4, 1, True]
    assert values["reference_sizes"] == [2, 4, None, 2, 4, 1, False]
    values = findings["PPO on Megatron"]["values"]
    assert values["actor_sizes"] == values["critic_sizes"] == [2, 3, 2, 1, 1, 1, False]
    assert values["reference_sizes"] == [2, 3, 2, 1, 1, 1, True]


def test_verl_s_own_buffer_never_exceeds_the_version_that_colocate_async_is_planned_for(tmp_path: Path) -> None:
    """Every step trains on the samples of the step before, whole; verl's defaults would let some grow older."""
    text = backend("verl").emit(colocate_async())["launch/verl_overrides.txt"].content
    lines = text.decode().splitlines(keepends=True)
    defaults = "".join(line for line in lines if not line.startswith("trainer.v1.sampler."))
    requests: list[dict[str, Any]] = []
    for index, content in enumerate((text.decode(), defaults)):
        file = tmp_path / f"{index}.txt"
        file.write_text(content)
        requests.append({"module": DRIVER, "overrides": str(file), "prompts": 8, "steps": 20})
    planned, default = run(environment("validate", limit_s=900), "replay.py", requests, tmp_path, limit_s=120)
    assert planned["ages"] == [[0] * 8] + [[1] * 8] * 19
    assert max(max(step) for step in default["ages"]) > 1


DATASET = """
import json, sys
import datasets
from omegaconf import OmegaConf
sys.path.insert(0, sys.argv[1])
from dataset import AnswerColumnDataset

class Tokenizer:
    def apply_chat_template(self, messages, **options):
        return [0] * sum(len(message["content"].split()) for message in messages)

config = OmegaConf.create({"prompt_key": "question", "answer_key": "answer", "max_prompt_length": 4,
                           "filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1})
rows = AnswerColumnDataset(sys.argv[2], Tokenizer(), config)
print()
print(json.dumps([[row["raw_prompt"], row["reward_model"]["ground_truth"], row["data_source"]]
                  for row in (rows[i] for i in range(len(rows)))]))
"""


def test_answer_column_becomes_what_the_reward_loop_reads(tmp_path: Path) -> None:
    """The emitted dataset class, run on verl's own: texts become chats, answers ground truths, long prompts go."""
    write_files(backend("verl").emit(colocated_grpo()), tmp_path)
    data = tmp_path / "rows.jsonl"
    rows = [{"question": "two plus two", "answer": "4"}, {"question": "a b c d e f g", "answer": "1"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    python = environment("validate", limit_s=900)
    done = subprocess.run(
        [str(python), "-c", DATASET, str(tmp_path / "launch"), str(data)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[[{"role": "user", "content": "two plus two"}], "4", "rpegc"]]


DRIVER_STUB = """#!/bin/bash
set -euo pipefail
source "$RPEGC_LAUNCH_DIR/environment.sh"
python3 -c 'import ray; ray.init(address="auto", log_to_driver=False); print("GPUS", ray.cluster_resources()["GPU"])'
exit 7
"""


def test_real_ray_starts_waits_and_stops_with_the_driver_status(tmp_path: Path) -> None:
    """The emitted one-node launch, with a real Ray that claims four GPUs; only preflight and driver are stand-ins."""
    write_files(backend("verl").emit(lora(), "generic"), tmp_path / "plan")
    launch, ray_folder = (
        tmp_path / "plan" / "launch",
        Path("/tmp") / f"rpegc-{os.getpid()}",
    )  # Ray's sockets need a short path
    (launch / "preflight.sh").write_text("exit 0\n")
    (launch / "train.sh").write_text(DRIVER_STUB)
    python = environment("validate", limit_s=900)
    done = subprocess.run(
        ["bash", str(launch / "run_local.sh")],
        env=os.environ
        | {"PATH": f"{python.parent}:{os.environ['PATH']}", "RPEGC_RAY_DIR": str(ray_folder), "RPEGC_RAY_PORT": "26379"}
        | {"RPEGC_OBJECT_STORE_BYTES": "100000000", "RPEGC_RAY_WAIT_S": "90", "RPEGC_CPUS_PER_NODE": "22"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "GPUS 4.0" in done.stdout, done.stdout[-1500:] + done.stderr[-3000:]
    assert done.returncode == 7
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 26379)) != 0, "Ray is still there"
    shutil.rmtree(ray_folder, ignore_errors=True)
