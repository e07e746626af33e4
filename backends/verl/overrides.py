"""The user's own overrides of verl: passed through where the plan has no say, refused where it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backends.verl.hydra import USER, Override, Scalar, Value, refusal
from backends.verl.run import Run
from backends.verl.settings import PLANNED, settings_of

PREFIXES = "+~"
"""What Hydra wants before a key to add, force or delete it: none of them changes whose key it is."""

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


def overrides_of(run: Run) -> tuple[Override, ...]:
    """Return all overrides of a run, the user's last; TargetRefusal for a key that is owned, or that Hydra refuses."""
    decided = settings_of(run)
    owners = RESERVED | {setting.key: setting.owner for setting in decided}
    wanted = _flat(run.request.get("target_overrides", {}))
    seen: dict[str, str] = {}
    for key, _ in wanted:
        other = seen.setdefault(key.lstrip(PREFIXES), key)
        if other != key:
            raise refusal(f"{USER}{key}", f"`{other}` already sets this key", "keep one of the two")
    return (*decided, *(_checked(key, value, owners) for key, value in wanted))


def _flat(wanted: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in wanted.items():
        path = f"{prefix}{key}"
        pairs += _flat(value, f"{path}.") if isinstance(value, Mapping) and value else [(path, value)]
    return pairs


def _checked(key: str, value: Any, owners: Mapping[str, str]) -> Override:
    what, bare = f"{USER}{key}", key.lstrip(PREFIXES)
    for owned, owner in owners.items():
        if bare == owned or bare.startswith(f"{owned}.") or (bare and owned.startswith(f"{bare}.")):
            raise refusal(what, f"{owned} is decided by {owner}", f"change that instead, and leave out `{key}`")
    if not KEY.fullmatch(key):
        raise refusal(what, "a key is dotted words, with `+` before one that verl's YAML files lack")
    return Override(key, _value(value, what), what)


def _value(value: Any, what: str) -> Value:
    if isinstance(value, list | tuple):
        return tuple(_scalar(item, what) for item in value)
    return _scalar(value, what)


def _scalar(value: Any, what: str) -> Scalar:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise refusal(what, f"{value!r} is not a text, number, truth value, null or list of these")
