"""The user's own overrides of verl: passed through where the plan has no say, refused where it has."""

from __future__ import annotations

import re
from typing import Any

from backends.verl.hydra import Override, Scalar, Value
from backends.verl.settings import PLANNED, settings_of
from rpegc.errors import InputError
from rpegc.plan import Plan

KEY = re.compile(r"\+{0,2}[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")

RESERVED: dict[str, str] = {
    "model_engine": "the verl backend (FSDP2)",
    "hydra": "the verl backend",
    "actor_rollout_ref.actor.ppo_micro_batch_size": PLANNED,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": PLANNED,
    "actor_rollout_ref.actor.megatron": "the verl backend (FSDP2)",
    "actor_rollout_ref.actor.rollout_n": "workload.samples_per_prompt",
    "actor_rollout_ref.actor.fsdp_config.offload_policy": PLANNED,
    "actor_rollout_ref.ref.strategy": "the verl backend (FSDP2)",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": PLANNED,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": PLANNED,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": PLANNED,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": PLANNED,
    "actor_rollout_ref.rollout.mode": "the verl backend",
    "actor_rollout_ref.rollout.prompt_length": "workload.prompt_tokens",
    "actor_rollout_ref.rollout.response_length": "workload.response_tokens",
    "actor_rollout_ref.rollout.nnodes": PLANNED,
    "actor_rollout_ref.rollout.n_gpus_per_node": PLANNED,
    "actor_rollout_ref.rollout.disaggregation": PLANNED,
    "actor_rollout_ref.model.lora.rank": "training.lora_rank",
    "actor_rollout_ref.model.lora.merge": "training.lora_rank",
    "critic.ppo_micro_batch_size": PLANNED,
    "critic.ppo_micro_batch_size_per_gpu": PLANNED,
    "critic.fsdp.offload_policy": PLANNED,
    "data.gen_batch_size": "workload.prompts_per_step",
    "rollout.nnodes": PLANNED,
    "rollout.n_gpus_per_node": PLANNED,
    "reward_model": "models.reward (and reward.*: the old section is gone)",
    "custom_reward_function": "reward.function",
    "async_training": "allow.max_staleness",
    "distillation": "stages (distillation is not planned)",
    "trainer.v1.trainer_mode": "allow.max_staleness",
    "trainer.v1.colocate_async": "allow.max_staleness",
    "trainer.v1.separate_async": "allow.max_staleness",
    "ray_kwargs.ray_init.num_cpus": "the verl backend (Ray runs before the driver joins)",
}
"""Keys that the plan decides although it does not write them, and what to change instead."""


def overrides_of(plan: Plan) -> tuple[Override, ...]:
    """Return all overrides of a plan, the user's last; InputError for a key that the planner owns or Hydra refuses."""
    decided = settings_of(plan)
    owners = RESERVED | {setting.key: setting.owner for setting in decided}
    wanted = plan.pipeline.get("target_overrides") or {}
    return (*decided, *(_checked(key, value, owners) for key, value in _flat(wanted)))


def _flat(wanted: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in wanted.items():
        path = f"{prefix}{key}"
        pairs += _flat(value, f"{path}.") if isinstance(value, dict) and value else [(path, value)]
    return pairs


def _checked(key: str, value: Any, owners: dict[str, str]) -> Override:
    where = f"target_overrides.{key}"
    if not KEY.fullmatch(key):
        raise InputError(f"{where}: a key is dotted words, with `+` before one that verl's YAML files lack")
    bare = key.lstrip("+")
    for owned, owner in owners.items():
        if bare == owned or bare.startswith(f"{owned}.") or owned.startswith(f"{bare}."):
            raise InputError(f"{where}: {owned} is decided by {owner}; change that instead")
    return Override(key, _value(value, where), where)


def _value(value: Any, where: str) -> Value:
    if isinstance(value, list | tuple):
        return tuple(_scalar(item, where) for item in value)
    return _scalar(value, where)


def _scalar(value: Any, where: str) -> Scalar:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise InputError(f"{where}: {value!r} is not a text, number, truth value, null or list of these")
