"""How verl 0.9.1 carries out each algorithm: estimator, loss, dynamic sampling, length punishment; what it cannot do.

| algorithm | where verl has it |
|---|---|
| grpo, dr-grpo, gspo, cispo, rloo, reinforce++ | any trainer: `algorithm.adv_estimator`, `policy_loss.loss_mode` |
| dapo | V1 sync only: `algorithm.filter_groups` (verl/trainer/ppo/v1/replay_buffer.py), reward manager `dapo` |
| remax | the trainer before V1 (`trainer.use_v1=False`) and one-step-off: V1 makes no greedy baselines |
| distill | V1 with a pool of its own for the teacher: `distillation` |
| dpo, online-dpo | nowhere: no loss over pairs (verl/trainer/ppo/core_algos.py) |
"""

from __future__ import annotations

from backends.owners import PLACED, Fix
from backends.roles import Sharded
from backends.verl.hydra import Override, Raw
from backends.verl.owners import FIXED
from backends.verl.request import Request
from rpegc.target import Mesh

ACTOR = "actor_rollout_ref.actor"
DISTILLATION = "distillation"
TEACHER = f"{DISTILLATION}.teacher_models.teacher_model"

LOSS_MODES = {"clipped": "vanilla", "sequence-clipped": "gspo", "clipped-weight": "cispo", "distillation": "vanilla"}
"""verl's `actor.policy_loss.loss_mode` by our kind of loss (verl/trainer/ppo/core_algos.py)."""

AGGREGATIONS = {
    "token-mean": "token-mean",
    "sequence-mean": "seq-mean-token-mean",
    "sequence-sum": "seq-mean-token-sum",
    "sequence-sum-over-longest": "seq-mean-token-sum-norm",
}
"""verl's `actor.loss_agg_mode` by our word (`agg_loss` in verl/trainer/ppo/core_algos.py)."""

TEACHER_MEMORY_FRACTION = 0.8
"""Share of GPU memory of a teacher's server alone on its GPUs (assumed): the log-probs of a prompt need room beside."""


def loss_settings(request: Request) -> list[Override]:
    """Return the settings of the loss, of the advantages, and of what is sampled."""
    settings = [
        # Free: users could choose them before there were presets that do, and what they choose is priced alike.
        Override(f"{ACTOR}.policy_loss.loss_mode", LOSS_MODES[request.loss("kind")], "algorithm", free=True),
        Override(f"{ACTOR}.loss_agg_mode", AGGREGATIONS[request.loss("aggregation")], "algorithm", free=True),
    ]
    if request.loss("aggregation") == "sequence-sum-over-longest":
        longest = request.max_response_tokens
        settings.append(Override(f"{ACTOR}.loss_scale_factor", longest, "workload.response_tokens", free=True))
    if request.loss("advantages") == "group-centred":
        settings.append(Override("algorithm.norm_adv_by_std_in_grpo", False, "algorithm"))
    if request.samples_dynamically:
        settings += [
            Override("algorithm.filter_groups.enable", True, "algorithm"),
            # Whether an answer is right, if length changes its reward; the manager below gives it the name `acc`.
            Override("algorithm.filter_groups.metric", "acc" if request.overlong else "reward", "algorithm", free=True),
            Override("algorithm.filter_groups.max_inflight_gen_batches", 1, "algorithm", free=True),
        ]
    return [*settings, *_overlong(request)]


def _overlong(request: Request) -> list[Override]:
    """The punishment of long responses: verl/experimental/reward_loop/reward_manager/dapo.py reads these keys."""
    if not request.overlong:
        return []
    owner, section = "reward.overlong", "reward.reward_kwargs"
    tokens, penalty = request.overlong
    return [
        Override("reward.reward_manager.name", "dapo", owner),
        Override(f"{section}.max_resp_len", request.max_response_tokens, owner, add=True),
        Override(f"{section}.overlong_buffer_cfg.enable", True, owner, add=True),
        Override(f"{section}.overlong_buffer_cfg.len", tokens, owner, add=True),
        Override(f"{section}.overlong_buffer_cfg.penalty_factor", penalty, owner, add=True),
        Override(f"{section}.overlong_buffer_cfg.log", False, owner, add=True, free=True),
    ]


def distillation_settings(request: Request, teacher: Sharded | None, server_tp: int) -> list[Override]:
    """Return the settings of a teacher that vLLM serves on GPUs of its own.

    Reverse KL from samples as a policy gradient (k1): its gradient through the log-probs alone would be wrong
    (verl/workers/config/distillation.py).
    """
    if teacher is None:
        return []
    mesh: Mesh = teacher.mesh
    low, high = request.get("training.clip", (0.2, 0.2))
    loss, inference = f"{DISTILLATION}.distillation_loss", f"{TEACHER}.inference"
    settings = [
        Override(f"{DISTILLATION}.enabled", True, "algorithm"),
        Override(f"{DISTILLATION}.nnodes", mesh.nodes, PLACED),
        Override(f"{DISTILLATION}.n_gpus_per_node", mesh.gpus_per_node, PLACED),
        Override(f"{TEACHER}.model_path", request.model_path("teacher", "weights"), "models.teacher.weights"),
        Override(f"{inference}.name", "vllm", FIXED),
        Override(f"{inference}.tensor_model_parallel_size", server_tp, Fix((teacher.name,), "shard_size")),
        # It reads the longest prompt with the longest response, and generates one token.
        Override(f"{inference}.max_model_len", request.max_prompt_tokens + request.max_response_tokens + 1, "workload"),
        Override(f"{inference}.gpu_memory_utilization", TEACHER_MEMORY_FRACTION, FIXED, free=True),
        Override(f"{loss}.loss_mode", "k1", "algorithm"),
        Override(f"{loss}.use_policy_gradient", True, "algorithm"),
        Override(f"{loss}.use_task_rewards", request.judged, "reward"),
        Override(f"{loss}.clip_ratio", low, "training.clip"),
        Override(f"{loss}.clip_ratio_low", low, "training.clip"),
        Override(f"{loss}.clip_ratio_high", high, "training.clip"),
    ]
    if not request.judged:  # verl's reward loop judges every response, and knows no data source but its own
        path = "'${oc.env:RPEGC_LAUNCH_DIR,.}/no_reward.py'"
        settings += [
            Override("reward.custom_reward_function.path", Raw(path), "algorithm", free=True),
            Override("reward.custom_reward_function.name", "compute_score", "algorithm", free=True),
        ]
    return settings
