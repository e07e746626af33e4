"""verl's own Hydra files accept every emitted configuration, and each value arrives as it was meant."""

from __future__ import annotations

import ast
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

import backends.verl
from backends import backend
from backends.verl.keys import problem_of
from backends.verl.launch import CPUS_PER_GPU, DATA_QUEUE_UNITS, ONE_STEP_DRIVER_CPUS
from backends.verl.preflight import KNOWN_SOURCES
from rpegc.plan import Plan

pytestmark = pytest.mark.verl_compose

HOSTILE = '/da ta/it\'s "$(id)" `id` a=b,c {x} [y] #z \\ ü 模型.parquet'
HOSTILE_RELATIVE = "-rf/$HOME 'q' \\"

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
    "hostile texts": colocated_grpo(
        **{
            "data.train": HOSTILE,
            "data.val": HOSTILE_RELATIVE,
            "data.prompt_key": "null",
            "target_overrides": {"trainer.rollout_data_dir": HOSTILE, "trainer.max_actor_ckpt_to_keep": 3},
        }
    ),
    "nothing but a plan": colocated_grpo(
        data=None, **{"training.learning_rate": None, "training.total_steps": None, "training.save_every": None}
    ),
    "added and forced keys": colocated_grpo(
        target_overrides={
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_partial_prefills": 4,
            "++trainer.balance_batch": False,
            "++trainer.not_in_any_file": "x",
        }
    ),
    "the user's own loggers": colocated_grpo(
        target_overrides={"trainer.logger": ["console", "wandb"], "+trainer.rollout_data_dir": "/dumps"}
    ),
}

APPENDED = (
    "trainer.no_such_key=1",
    "trainer.logger=[console,wandb]",
    "+trainer.balance_batch=True",
    "+trainer.balance_batch=[a,b]",
    "++trainer.balance_batch=True",
    "+trainer.rollout_data_dir=x",
    "+actor_rollout_ref.rollout.limit_images=3",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.x=1",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.x=1",
    "+actor_rollout_ref.actor.optim.betas=[0.8,0.9]",
    "actor_rollout_ref.rollout.limit_images.x=1",
    "+actor_rollout_ref.model.lora_alpha=3",
)
"""Overrides that a user might add, for Hydra and for us to judge."""

SELECT = [
    "data.train_files",
    "data.val_files",
    "data.prompt_key",
    "data.custom_cls.path",
    "data.train_batch_size",
    "trainer.rollout_data_dir",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.balance_batch",
    "trainer.not_in_any_file",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_partial_prefills",
    "trainer.logger",
    "trainer.default_local_dir",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "actor_rollout_ref.ref.fsdp_config.model_dtype",
    "actor_rollout_ref.rollout.response_length",
    "actor_rollout_ref.hybrid_engine",
    "algorithm.rollout_correction.bypass_mode",
    "critic.ppo_infer_max_token_len_per_gpu",
    "reward.custom_reward_function.path",
    "rollout.nnodes",
]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Compose all plans in one process; what came of each, by name."""
    python = environment("compose", limit_s=300)
    folder = tmp_path_factory.mktemp("compose")
    requests = []
    texts = {name: backend("verl").emit(plan)["launch/verl_overrides.txt"].content for name, plan in PLANS.items()}
    texts |= {f"and {line}": texts["colocated GRPO"] + f"{line}\n".encode() for line in APPENDED}
    for index, (name, text) in enumerate(texts.items()):
        file = folder / f"{index}.txt"
        file.write_bytes(text)
        module = ONE_STEP_OFF_DRIVER if name == "one-step-off" else DRIVER
        requests.append({"module": module, "overrides": str(file), "select": SELECT})
    return dict(zip(texts, run(python, "compose.py", requests, folder, limit_s=300), strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_configuration_composes(findings: dict[str, dict[str, Any]], name: str) -> None:
    assert findings[name].get("error") is None


@pytest.mark.parametrize("line", APPENDED)
def test_hydra_refuses_what_the_backend_refuses(findings: dict[str, dict[str, Any]], line: str) -> None:
    """The proof has teeth, and an override is refused before the search only if Hydra would refuse it."""
    key, _, text = line.partition("=")
    value = tuple(text.strip("[]").split(",")) if text.startswith("[") else text
    assert findings[f"and {line}"]["ok"] == (problem_of(key, value) is None)


def test_arguments_of_the_job_win_over_the_file(findings: dict[str, dict[str, Any]]) -> None:
    assert findings["and trainer.logger=[console,wandb]"]["values"]["trainer.logger"] == ["console", "wandb"]


def test_the_users_own_loggers_replace_ours(findings: dict[str, dict[str, Any]]) -> None:
    assert findings["the user's own loggers"]["values"]["trainer.logger"] == ["console", "wandb"]


@pytest.mark.parametrize("engine", ["", "megatron"])
def test_the_shipped_keys_are_those_of_the_wheel(request: pytest.FixtureRequest, engine: str) -> None:
    python = environment("compose", limit_s=300)
    program = Path(__file__).parent / "verl_environment" / "keys.py"
    made = subprocess.run([str(python), str(program), engine], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    shipped = Path(backends.verl.__file__).parent / f"keys-0.9.1{'-' if engine else ''}{engine}.txt"
    if request.config.getoption("--update-golden"):
        shipped.write_text(made.stdout, encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == made.stdout, "--update-golden rewrites it"


def test_the_known_sources_are_those_of_verls_verifier() -> None:
    """What `default_compute_score` compares `data_source` with, read from its source."""
    python = environment("compose", limit_s=300)
    (folder,) = (python.parent.parent / "lib").glob("python3*/site-packages/verl/utils/reward_score")
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "default_compute_score"]
    compared = [n for n in ast.walk(function) if isinstance(n, ast.Compare) and "data_source" in ast.dump(n.left)]
    names = [c.value for n in compared for side in n.comparators for c in ast.walk(side) if isinstance(c, ast.Constant)]
    starts = [
        n.args[0].value
        for n in ast.walk(function)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "startswith"
        if isinstance(n.args[0], ast.Constant)
    ]
    assert sorted(names) == sorted(KNOWN_SOURCES["names"])
    assert starts == [KNOWN_SOURCES["start"]]


def test_bundles_ask_for_the_cpus_that_the_scripts_count() -> None:
    python = environment("compose", limit_s=300)
    (verl,) = (python.parent.parent / "lib").glob("python3*/site-packages/verl")
    pools = (verl / "single_controller/ray/base.py").read_text()
    assert f"max_colocate_count: int = {CPUS_PER_GPU}\n" in pools
    driver = (verl / "experimental/one_step_off_policy/main_ppo.py").read_text()
    assert f"@ray.remote(num_cpus={ONE_STEP_DRIVER_CPUS}," in driver
    queue = (verl / "trainer/config/transfer_queue/transfer_queue.yaml").read_text()
    assert f"num_data_storage_units: {DATA_QUEUE_UNITS}\n" in queue


def test_added_and_forced_keys_arrive(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["added and forced keys"]["values"]
    assert values["actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_partial_prefills"] == 4
    assert values["trainer.balance_batch"] is False
    assert values["trainer.not_in_any_file"] == "x"


def test_hostile_texts_arrive_unchanged(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["hostile texts"]["values"]
    assert values["data.train_files"] == HOSTILE
    assert values["data.val_files"] == f"/work folder/{HOSTILE_RELATIVE}"
    assert values["data.prompt_key"] == "null"
    assert values["trainer.rollout_data_dir"] == HOSTILE
    assert values["trainer.max_actor_ckpt_to_keep"] == 3


def test_values_have_their_types_and_paths_their_anchors(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["colocated GRPO"]["values"]
    assert values["actor_rollout_ref.actor.optim.lr"] == 1e-6
    assert values["trainer.logger"] == ["console", "file"]
    assert values["trainer.default_local_dir"] == "/run/checkpoints"
    assert values["data.custom_cls.path"] == "/launch/dataset.py"
    assert values["reward.custom_reward_function.path"] == "/work folder/rewards/math.py"
    assert values["actor_rollout_ref.rollout.response_length"] == 16384
    assert values["actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"] == 2
    assert values["actor_rollout_ref.ref.fsdp_config.model_dtype"] == "bfloat16"


def test_one_step_off_composes_its_own_driver(findings: dict[str, dict[str, Any]]) -> None:
    values = findings["one-step-off"]["values"]
    assert values["rollout.nnodes"] == 2
    assert values["actor_rollout_ref.hybrid_engine"] is False
    assert values["algorithm.rollout_correction.bypass_mode"] is False  # verl's file for this driver says True


def test_critic_budget_is_a_number(findings: dict[str, dict[str, Any]]) -> None:
    assert findings["PPO, reward model apart"]["values"]["critic.ppo_infer_max_token_len_per_gpu"] == 32768


def test_the_environment_is_made_once(tmp_path: Path) -> None:
    """A second call finds the mark of the first and leaves the environment alone."""
    python = environment("compose", limit_s=300)
    mark = python.parent.parent / "installed.txt"
    before = mark.stat().st_mtime_ns
    environment("compose", limit_s=20)
    assert mark.stat().st_mtime_ns == before
