"""verl's own Hydra files accept every emitted configuration, and each value arrives as it was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verl_plans import colocated_grpo, lora, one_step_off, ppo
from verl_proofs import DRIVER, ONE_STEP_OFF_DRIVER, environment, run

from backends import backend
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
    "an unknown key": colocated_grpo(target_overrides={"trainer.no_such_key": 1}),
}

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
    for index, plan in enumerate(PLANS.values()):
        file = folder / f"{index}.txt"
        file.write_bytes(backend("verl").emit(plan)["launch/verl_overrides.txt"].content)
        module = ONE_STEP_OFF_DRIVER if plan.graph.mode == "one-step-off" else DRIVER
        requests.append({"module": module, "overrides": str(file), "select": SELECT})
    return dict(zip(PLANS, run(python, "compose.py", requests, folder, limit_s=120), strict=True))


@pytest.mark.parametrize("name", [name for name in PLANS if name != "an unknown key"])
def test_configuration_composes(findings: dict[str, dict[str, Any]], name: str) -> None:
    assert findings[name].get("error") is None


def test_an_unknown_key_is_refused(findings: dict[str, dict[str, Any]]) -> None:
    """The proof has teeth: what verl does not know does not compose."""
    assert not findings["an unknown key"]["ok"]
    assert "no_such_key" in findings["an unknown key"]["error"]


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
