"""What decides the keys of verl that no setting of ours writes."""

from __future__ import annotations

from backends.owners import PLACED, PLANNED, Fix, Owner
from backends.roles import Parts
from backends.verl.capabilities import FSDP

FIXED = "the verl backend"
ENGINE = "engine"


def reserved(parts: Parts, judged_by_function: bool, engine: str) -> dict[str, Owner]:
    """Return keys that are decided although they are not written, and by what. `Parts` name the stages."""
    actor, critic, reference = parts.actor_engine, parts.critic_engine, parts.reference_stages
    passes = parts.actor_passes or actor
    found: dict[str, Owner] = {
        "model_engine": ENGINE,
        "hydra": FIXED,
        "actor_rollout_ref.actor.ppo_micro_batch_size": Fix(actor[:1], "token_budget"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": Fix(actor[:1], "token_budget"),
        "actor_rollout_ref.actor.rollout_n": "workload.samples_per_prompt",
        "actor_rollout_ref.ref.strategy": ENGINE,
        "actor_rollout_ref.ref.log_prob_micro_batch_size": Fix(reference or passes, "token_budget"),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": Fix(reference or passes, "token_budget"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size": Fix(passes, "token_budget"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": Fix(passes, "token_budget"),
        "actor_rollout_ref.rollout.mode": FIXED,
        "actor_rollout_ref.rollout.prompt_length": "workload.prompt_tokens",
        "actor_rollout_ref.rollout.response_length": "workload.response_tokens",
        "actor_rollout_ref.rollout.nnodes": PLACED,
        "actor_rollout_ref.rollout.n_gpus_per_node": PLACED,
        "actor_rollout_ref.rollout.disaggregation": PLANNED,
        "actor_rollout_ref.model.lora.rank": "training.lora_rank",
        "actor_rollout_ref.model.lora.merge": "training.lora_rank",
        "critic.ppo_micro_batch_size": Fix(critic, "token_budget") if critic else PLANNED,
        "critic.ppo_micro_batch_size_per_gpu": Fix(critic, "token_budget") if critic else PLANNED,
        "data.gen_batch_size": "workload.prompts_per_step",
        "rollout.nnodes": PLACED,
        "rollout.n_gpus_per_node": PLACED,
        "reward_model": "models.reward (and reward.*: the old section is gone)",
        "custom_reward_function": "reward.function",
        "async_training": "allow.max_staleness",
        "distillation": "algorithm (distill plans a teacher)",
        "trainer.v1.trainer_mode": "allow.max_staleness",
        "trainer.v1.colocate_async": "allow.max_staleness",
        "trainer.v1.separate_async": "allow.max_staleness",
        "trainer.v1.sampler.max_off_policy_threshold": "allow.max_staleness",
        "trainer.v1.sampler.max_off_policy_strategy": "allow.max_staleness",
        "ray_kwargs.ray_init.num_cpus": "the CPUs of the job (`sbatch --cpus-per-task`; Ray runs before verl)",
    }
    found |= _of_fsdp(actor, critic) if engine == FSDP else _of_megatron(actor, critic, reference)
    if judged_by_function:
        found |= {f"reward.custom_reward_function.{part}": "reward.function" for part in ("path", "name")}
    return found


def _of_fsdp(actor: tuple[str, ...], critic: tuple[str, ...]) -> dict[str, Owner]:
    return {
        "actor_rollout_ref.actor.megatron": ENGINE,
        "actor_rollout_ref.actor.fsdp_config.offload_policy": Fix(actor, "offload_parameters"),
        "critic.fsdp.offload_policy": Fix(critic, "offload_parameters") if critic else PLANNED,
    }


def _of_megatron(actor: tuple[str, ...], critic: tuple[str, ...], reference: tuple[str, ...]) -> dict[str, Owner]:
    """Megatron's sizes of the reference follow the actor's; what else would change them is not planned."""
    found: dict[str, Owner] = {
        "actor_rollout_ref.actor.strategy": ENGINE,
        "actor_rollout_ref.actor.fsdp_config": ENGINE,
        "actor_rollout_ref.model.enable_gradient_checkpointing": Fix(actor[:1], "recompute"),
        "actor_rollout_ref.model.enable_activation_offload": Fix(actor[:1], "offload_activations"),
        "critic.strategy": ENGINE,
        "critic.fsdp": ENGINE,
    }
    for section, stages in (("actor_rollout_ref.actor", actor), ("critic", critic)):
        for key in MEGATRON_LEFT_ALONE:
            found[f"{section}.megatron.{key}"] = Fix(stages, "cp") if stages and "context" in key else PLANNED
    found |= {
        f"actor_rollout_ref.ref.megatron.{key}": Fix(reference or actor, field) for key, field in FOLLOWED.items()
    }
    return found


MEGATRON_LEFT_ALONE = (
    "dynamic_context_parallel",
    "forward_only",
    "use_megatron_fsdp",
    "use_dist_checkpointing",
    "vanilla_mbridge",
)
"""Switches of the Megatron engine that would make another engine of it than the one that was priced."""

FOLLOWED = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
}
"""Sizes that verl's Megatron reference reads from the actor, with our fields."""
