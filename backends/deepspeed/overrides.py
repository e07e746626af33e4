"""The user's own settings of TRL, DeepSpeed and vLLM: passed through unless the plan decides them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backends.deepspeed.keys import problem_of
from backends.deepspeed.run import Run
from backends.deepspeed.settings import FIXED, Setting, settings_of
from backends.owners import PLACED, Fix, Owner, decided_by, flat, remedy
from rpegc.emit import CONTROL_CHARACTERS, TargetRefusal

WHERE = "target_overrides"


def settings_with_overrides(run: Run) -> tuple[Setting, ...]:
    """Return all settings of a run, the user's last and in the place of ours where the setting is free.

    Raises TargetRefusal for a key that is owned, that nothing reads, or whose value cannot be carried.
    """
    ours = settings_of(run)
    owners = _reserved(run) | {setting.key: setting.owner for setting in ours if not setting.free}
    users = tuple(
        Setting(key, _checked(key, value, owners), f"{WHERE}.{key}", free=True)
        for key, value in flat(run.request.get(WHERE, {}))
    )
    replaced = {setting.key for setting in users}
    return (*(setting for setting in ours if setting.key not in replaced), *users)


def nested(settings: tuple[Setting, ...], part: str) -> dict[str, Any]:
    """Return the settings of one part as a tree: `deepspeed.bf16.enabled` becomes {"bf16": {"enabled": ...}}."""
    tree: dict[str, Any] = {}
    for setting in settings:
        first, *path = setting.key.split(".")
        if first != part:
            continue
        node = tree
        for word in path[:-1]:
            node = node.setdefault(word, {})
        node[path[-1]] = setting.value
    return tree


def _reserved(run: Run) -> dict[str, Owner]:
    """Return keys that are decided although they are not written, and by what."""
    actor, rollout = run.parts.actor_engine, (run.parts.rollout.name,)
    return {
        "grpo.output_dir": "the variable RPEGC_RUN_DIR",
        "grpo.deepspeed": FIXED,
        "grpo.fsdp": FIXED,
        "grpo.parallelism_config": FIXED,
        "grpo.fp16": "training.precision",
        "grpo.optim": "training.optimizer",
        "grpo.generation_batch_size": "workload.prompts_per_step",
        "grpo.num_train_epochs": "training.total_steps",
        "grpo.delta": "training.clip",
        "grpo.auto_find_batch_size": FIXED,
        "grpo.activation_checkpointing": Fix(actor[:1], "recompute"),
        "grpo.save_steps": "training.save_every",
        "grpo.eval_steps": "training.test_every",
        "grpo.vllm_server_base_url": PLACED,
        "grpo.vllm_server_host": PLACED,
        "grpo.vllm_server_port": "the variable RPEGC_VLLM_PORT",
        "grpo.vllm_tensor_parallel_size": Fix(rollout, "tp"),
        "grpo.vllm_gpu_memory_utilization": Fix(rollout, "memory_fraction"),
        "grpo.vllm_max_model_length": "workload",
        "grpo.vllm_enable_sleep_mode": Fix(rollout, "offload"),
        "grpo.use_transformers_continuous_batching": FIXED,
        "deepspeed.fp16": "training.precision",
        "deepspeed.bfloat16": "training.precision",
        "deepspeed.scheduler": "grpo.lr_scheduler_type",
        "deepspeed.tensor_parallel": FIXED,
        "deepspeed.sequence_parallel_size": FIXED,
        "deepspeed.zero_optimization.offload_optimizer.device": Fix(actor, "offload_optimizer"),
        "deepspeed.zero_optimization.offload_param.device": Fix(actor, "offload_parameters"),
        "vllm.model": "models.actor.weights",
        "vllm.host": PLACED,
        "vllm.port": "the variable RPEGC_VLLM_PORT",
        "vllm.data_parallel_size": FIXED,
        "vllm.pipeline_parallel_size": FIXED,
    }


def _checked(key: str, value: Any, owners: Mapping[str, Owner]) -> Any:
    found = decided_by(key, owners)
    if found:
        raise _refusal(key, f"{found[0]} is decided by {found[1]}", remedy(found[1], key))
    problem = problem_of(key)
    if problem:
        raise _refusal(key, *problem)
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, float) and not math.isfinite(item):
            raise _refusal(key, f"{item} is not a finite number")
        if isinstance(item, str) and CONTROL_CHARACTERS.search(item):
            raise _refusal(key, f"{item!r} holds a control character; launch files cannot carry it")
    return list(value) if isinstance(value, tuple) else value


def _refusal(key: str, problem: str, hint: str | None = None) -> TargetRefusal:
    return TargetRefusal(f"{WHERE}.{key}: {problem}", (WHERE, key), hint)
