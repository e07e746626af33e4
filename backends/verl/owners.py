"""What decides the keys of verl that no setting of ours writes."""

from __future__ import annotations

from backends.owners import PLACED, PLANNED, Fix, Owner
from backends.roles import Parts

FIXED = "the verl backend"
FSDP2 = "the verl backend (FSDP2)"


def reserved(parts: Parts, judged_by_function: bool) -> dict[str, Owner]:
    """Return keys that are decided although they are not written, and by what. `Parts` name the stages."""
    actor, critic, reference = parts.actor_engine, parts.critic_engine, parts.reference_stages
    passes = parts.actor_passes or actor
    found: dict[str, Owner] = {
        "model_engine": FSDP2,
        "hydra": FIXED,
        "actor_rollout_ref.actor.ppo_micro_batch_size": Fix(actor[:1], "token_budget"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": Fix(actor[:1], "token_budget"),
        "actor_rollout_ref.actor.megatron": FSDP2,
        "actor_rollout_ref.actor.rollout_n": "workload.samples_per_prompt",
        "actor_rollout_ref.actor.fsdp_config.offload_policy": Fix(actor, "offload_parameters"),
        "actor_rollout_ref.ref.strategy": FSDP2,
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
        "critic.fsdp.offload_policy": Fix(critic, "offload_parameters") if critic else PLANNED,
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
        "ray_kwargs.ray_init.num_cpus": "the CPUs of the job (`sbatch --cpus-per-task`; Ray runs before verl)",
    }
    if judged_by_function:
        found |= {f"reward.custom_reward_function.{part}": "reward.function" for part in ("path", "name")}
    return found
