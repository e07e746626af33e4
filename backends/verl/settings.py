"""From a plan to verl's settings: every key that rpegc decides, each with what decides it."""

from __future__ import annotations

from backends.owners import PLACED, Fix
from backends.roles import Parts, Sharded
from backends.verl.algorithms import distillation_settings, loss_settings
from backends.verl.capabilities import APART, FSDP, MEGATRON, ONE_STEP_OFF, SEPARATE_ASYNC, SYNC
from backends.verl.engine_settings import MODEL, EngineOf, adapter_settings, fsdp_settings, megatron_settings
from backends.verl.hydra import Override, Raw, Value
from backends.verl.owners import FIXED
from backends.verl.request import KL_ESTIMATORS, Request, anchored
from backends.verl.run import Run
from rpegc.emit import slug
from rpegc.target import Mesh

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REFERENCE = "actor_rollout_ref.ref"
REWARD = "reward.reward_model"

LARGEST_AGENT_POOL = 8
"""verl's default number of agent-loop workers (rollout.yaml)."""

DEFAULT_REWARD_WORKERS_PER_NODE = 8
MOST_REWARD_WORKERS_PER_NODE = 256
"""Bound where the site does not know its cores (assumed: no node of today has many more)."""

OWN_POOL_MEMORY_FRACTION = 0.9
"""Share of GPU memory of a reward model alone on its GPUs (assumed; vLLM's own default is 0.92)."""


def settings_of(run: Run) -> tuple[Override, ...]:
    """Return every override that a run decides, in the order in which they are written."""
    request, parts = run.request, run.parts
    return (
        *_mode(run),
        *_data(run, request),
        *_algorithm(request, parts),
        *_model(run, request, parts),
        *_actor(run, request, parts),
        *_rollout(run, request, parts),
        *_reference(run, request, parts),
        *_critic(run, request, parts),
        *_reward_function(run, request),
        *_reward_model(request, parts),
        *distillation_settings(request, parts.teacher, server_tp(parts.teacher) if parts.teacher else 1),
        *_trainer(run, request, parts),
    )


def _mode(run: Run) -> list[Override]:
    request = run.request
    settings = [Override("model_engine", MEGATRON, "engine")] if run.engine == MEGATRON else []
    settings += [
        Override("algorithm.rollout_correction.bypass_mode", run.bypass, "allow.model_changes (reuse-rollout-logprobs)")
    ]
    if run.mode == ONE_STEP_OFF:
        # The file's own search path is relative to the working folder and fails outside a checkout of verl.
        search_path = Override("hydra.searchpath", Raw("[pkg://verl.trainer.config]"), FIXED)
        return [search_path, *settings, *_one_step_off(run, request)]
    settings += [
        Override("trainer.use_v1", not request.before_v1, FIXED),
        Override("trainer.v1.trainer_mode", run.mode.replace("-", "_"), STALENESS),
        Override("actor_rollout_ref.hybrid_engine", run.mode != SEPARATE_ASYNC, FIXED),
    ]
    if run.mode == SYNC:
        return [*settings, *([_agent_workers(request)] if request.before_v1 else [])]
    return settings + _asynchronous(run, request)


STALENESS = "allow.max_staleness"


def _asynchronous(run: Run, request: Request) -> list[Override]:
    """Return what bounds the age of samples in verl's asynchronous V1 trainers.

    Defaults break a small bound: 8 versions, and samples beyond them are dropped, which are the long ones. Under `wait`
    the trainer takes nothing while a prompt of `max_off_policy_threshold` versions is still in the engines, counting
    its own as the first (verl/trainer/ppo/v1/replay_buffer.py).
    """
    section = f"trainer.v1.{run.mode.replace('-', '_')}"
    settings = [
        Override(f"{section}.num_warmup_batches", run.staleness, STALENESS),
        Override("trainer.v1.sampler.max_off_policy_threshold", run.staleness + 1, STALENESS),
        Override("trainer.v1.sampler.max_off_policy_strategy", "wait", STALENESS),
    ]
    if run.mode != SEPARATE_ASYNC:
        return settings
    return [
        *settings,
        Override(f"{section}.parameter_sync_step", request.minibatches, "workload.minibatches_per_step"),
        Override(f"{section}.hybrid_rollout.enable_switch", False, FIXED),
        *_own_pool(run),
    ]


def _own_pool(run: Run) -> list[Override]:
    mesh = run.parts.rollout.mesh
    return [
        Override(f"{ROLLOUT}.nnodes", mesh.nodes, PLACED),
        Override(f"{ROLLOUT}.n_gpus_per_node", mesh.gpus_per_node, PLACED),
        Override(f"{ROLLOUT}.checkpoint_engine.backend", "nccl", FIXED),
    ]


def _one_step_off(run: Run, request: Request) -> list[Override]:
    mesh = run.parts.rollout.mesh
    return [
        Override("actor_rollout_ref.hybrid_engine", False, FIXED),
        Override("rollout.nnodes", mesh.nodes, PLACED),
        Override("rollout.n_gpus_per_node", mesh.gpus_per_node, PLACED),
        *_own_pool(run),
        _agent_workers(request),
    ]


def _agent_workers(request: Request) -> Override:
    """Agent loops among which the trainers before V1 split a batch evenly."""
    workers = max(n for n in range(1, LARGEST_AGENT_POOL + 1) if request.generated % n == 0)
    return Override(f"{ROLLOUT}.agent.num_workers", workers, "workload.prompts_per_step")


def _data(run: Run, request: Request) -> list[Override]:
    tested = request.get("data.val") is not None
    settings = [
        Override("data.train_files", request.file("data.train"), "data.train"),
        Override("data.val_files", request.file("data.val" if tested else "data.train"), "data.val"),
        Override("data.prompt_key", request.get("data.prompt_key", "prompt"), "data.prompt_key"),
        Override("data.train_batch_size", request.prompts, "workload.prompts_per_step"),
        Override("data.max_prompt_length", request.max_prompt_tokens, "workload.prompt_tokens"),
        Override("data.max_response_length", request.max_response_tokens, "workload.response_tokens"),
        Override("data.filter_overlong_prompts", True, "workload.prompt_tokens", free=True),
        Override("data.truncation", "error", "workload.prompt_tokens", free=True),
        Override("data.seed", run.seed, "--seed"),
    ]
    if not tested:  # verl always builds a validation set; without one of the user's, a few training rows stand in
        settings.append(Override("data.val_max_samples", 8, "data.val", free=True))
    if request.get("data.answer_key") is not None:
        dataset = "'${oc.env:RPEGC_LAUNCH_DIR,.}/dataset.py'"
        settings += [
            Override("data.custom_cls.path", Raw(dataset), "data.answer_key", free=True),
            Override("data.custom_cls.name", "AnswerColumnDataset", "data.answer_key", free=True),
            Override("data.answer_key", request.get("data.answer_key"), "data.answer_key", add=True),
        ]
    return settings


def _algorithm(request: Request, parts: Parts) -> list[Override]:
    where, coefficient = request.kl_where, request.get("training.kl.coefficient", 0.0)
    estimator = KL_ESTIMATORS[request.get("training.kl.estimator", "k3")]
    settings = [
        Override("algorithm.adv_estimator", request.estimator, "algorithm"),
        Override("algorithm.use_kl_in_reward", where == "reward", "training.kl.where"),
        Override(f"{ACTOR}.use_kl_loss", where == "loss", "training.kl.where"),
        Override("critic.enable", parts.critic is not None, "algorithm"),
        *loss_settings(request),
    ]
    if where == "reward":
        settings += [
            Override("algorithm.kl_penalty", estimator, "training.kl.estimator"),
            Override("algorithm.kl_ctrl.type", "fixed", "training.kl.coefficient", free=True),
            Override("algorithm.kl_ctrl.kl_coef", coefficient, "training.kl.coefficient"),
        ]
    if where == "loss":
        settings += [
            Override(f"{ACTOR}.kl_loss_coef", coefficient, "training.kl.coefficient"),
            Override(f"{ACTOR}.kl_loss_type", estimator, "training.kl.estimator"),
        ]
    return settings


def _model(run: Run, request: Request, parts: Parts) -> list[Override]:
    settings = [
        Override(f"{MODEL}.path", request.model_path("actor", "weights"), "models.actor.weights"),
        Override(f"{MODEL}.tokenizer_path", request.model_path("actor", "tokenizer"), "models.actor.tokenizer"),
        Override(f"{MODEL}.use_remove_padding", True, FIXED),
        *(_activations(MODEL, parts.actor) if run.engine == FSDP else []),
    ]
    return settings + adapter_settings(run.engine, request)


def _activations(section: str, part: Sharded) -> list[Override]:
    """Return what the FSDP2 engine does with activations of a model that it trains."""
    layout, train = part.layout, (part.name,)
    return [
        Override(f"{section}.enable_gradient_checkpointing", layout.recompute == "full", Fix(train, "recompute")),
        Override(f"{section}.enable_activation_offload", layout.offload_activations, Fix(train, "offload_activations")),
    ]


def _actor(run: Run, request: Request, parts: Parts) -> list[Override]:
    layout = parts.actor.layout
    low, high = request.get("training.clip", (0.2, 0.2))
    engine = EngineOf("actor", parts.actor, parts.actor_engine, request, run.seed)
    settings = [
        Override(
            f"{ACTOR}.ppo_mini_batch_size", request.prompts // request.minibatches, "workload.minibatches_per_step"
        ),
        Override(f"{ACTOR}.ppo_epochs", request.get("training.epochs_per_batch", 1), "training.epochs_per_batch"),
        Override(f"{ACTOR}.use_dynamic_bsz", True, FIXED),
        Override(f"{ACTOR}.ppo_max_token_len_per_gpu", layout.token_budget, Fix((parts.actor.name,), "token_budget")),
        Override(f"{ACTOR}.optim.lr", request.setting("training.learning_rate"), "training.learning_rate"),
        Override(f"{ACTOR}.clip_ratio", low, "training.clip"),
        Override(f"{ACTOR}.clip_ratio_low", low, "training.clip"),
        Override(f"{ACTOR}.clip_ratio_high", high, "training.clip"),
        Override(f"{ACTOR}.data_loader_seed", run.seed, "--seed"),
    ]
    if run.engine == MEGATRON:
        return settings + megatron_settings(f"{ACTOR}.megatron", engine)
    return [
        Override(f"{ACTOR}.strategy", "fsdp2", FIXED),
        *settings,
        Override(f"{ACTOR}.ulysses_sequence_parallel_size", layout.ulysses, Fix(parts.actor_engine, "ulysses")),
        *fsdp_settings(f"{ACTOR}.fsdp_config", engine),
    ]


def _rollout(run: Run, request: Request, parts: Parts) -> list[Override]:
    layout, stages = parts.rollout.layout, (parts.rollout.name,)
    alone = run.mode in APART  # an engine alone on its GPUs never sleeps
    budget_stages = parts.actor_passes or (parts.actor.name,)
    passes = [p for p in (parts.old_logprobs, parts.reference if parts.reference_in_actor else None) if p]
    budget = passes[0].layout.token_budget if passes else parts.actor.layout.token_budget
    settings = [
        Override(f"{ROLLOUT}.name", "vllm", FIXED),
        Override(f"{ROLLOUT}.n", request.samples, "workload.samples_per_prompt"),
        Override(f"{ROLLOUT}.temperature", request.get("training.temperature", 1.0), "training.temperature"),
        Override(f"{ROLLOUT}.dtype", request.dtype, "training.precision"),
        Override(f"{ROLLOUT}.tensor_model_parallel_size", layout.tp, Fix(stages, "tp")),
        Override(f"{ROLLOUT}.data_parallel_size", layout.engine_dp, Fix(stages, "engine_dp")),
        Override(f"{ROLLOUT}.expert_parallel_size", layout.ep, Fix(stages, "ep")),
        Override(f"{ROLLOUT}.pipeline_model_parallel_size", layout.pp, Fix(stages, "pp")),
        Override(f"{ROLLOUT}.gpu_memory_utilization", layout.memory_fraction, Fix(stages, "memory_fraction")),
        Override(f"{ROLLOUT}.max_num_seqs", layout.max_sequences, Fix(stages, "max_sequences")),
        Override(f"{ROLLOUT}.max_num_batched_tokens", layout.batched_tokens, Fix(stages, "batched_tokens")),
        Override(f"{ROLLOUT}.max_model_len", request.max_prompt_tokens + request.max_response_tokens, "workload"),
        Override(f"{ROLLOUT}.free_cache_engine", layout.offload and not alone, Fix(stages, "offload")),
        Override(f"{ROLLOUT}.calculate_log_probs", True, FIXED),
        Override(f"{ROLLOUT}.log_prob_use_dynamic_bsz", True, FIXED),
        Override(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", budget, Fix(budget_stages, "token_budget")),
        Override(f"{ROLLOUT}.seed", run.seed, "--seed"),
    ]
    if request.lora_rank:
        # vLLM holds the base weights from the start; FSDP2 gathers adapters layer by layer only.
        settings.append(Override(f"{ROLLOUT}.load_format", "safetensors", "training.lora_rank"))
        if run.engine == FSDP:
            settings.append(Override(f"{ROLLOUT}.layered_summon", True, "training.lora_rank"))
    return settings


def _reference(run: Run, request: Request, parts: Parts) -> list[Override]:
    if parts.reference is None or parts.reference_in_actor:
        return []
    layout, stages = parts.reference.layout, parts.reference_stages
    settings = [
        Override(f"{REFERENCE}.log_prob_use_dynamic_bsz", True, FIXED),
        Override(f"{REFERENCE}.log_prob_max_token_len_per_gpu", layout.token_budget, Fix(stages, "token_budget")),
    ]
    if run.engine == MEGATRON:  # the rest of its engine follows the actor's (trainer/config/ref/megatron_ref.yaml)
        offload = Fix(stages, "offload_parameters")
        return [*settings, Override(f"{REFERENCE}.megatron.param_offload", layout.offload_parameters, offload)]
    engine = fsdp_settings(f"{REFERENCE}.fsdp_config", EngineOf("reference", parts.reference, stages, request, 0))
    return [
        *settings,
        Override(f"{REFERENCE}.ulysses_sequence_parallel_size", layout.ulysses, Fix(stages, "ulysses")),
        *[setting for setting in engine if not setting.key.endswith((".seed", ".optimizer_offload"))],
        # verl loads in fp32 unless told otherwise; frozen weights need no master copy.
        Override(f"{REFERENCE}.fsdp_config.model_dtype", request.dtype, "training.precision"),
    ]


def _critic(run: Run, request: Request, parts: Parts) -> list[Override]:
    if parts.critic is None:
        return []
    layout, stages = parts.critic.layout, parts.critic_engine
    budget = Fix(stages, "token_budget")
    engine = EngineOf("critic", parts.critic, stages, request, run.seed)
    settings = [
        Override("critic.model.path", request.model_path("critic", "weights"), "models.critic.weights"),
        Override("critic.model.tokenizer_path", request.model_path("critic", "tokenizer"), "models.critic.tokenizer"),
        Override("critic.model.use_remove_padding", True, FIXED),
        *(_activations("critic.model", parts.critic) if run.engine == FSDP else []),
        Override("critic.ppo_mini_batch_size", request.prompts // request.minibatches, "workload.minibatches_per_step"),
        Override("critic.ppo_epochs", request.get("training.epochs_per_batch", 1), "training.epochs_per_batch"),
        Override("critic.use_dynamic_bsz", True, FIXED),
        Override("critic.ppo_max_token_len_per_gpu", layout.token_budget, budget),
        Override("critic.forward_max_token_len_per_gpu", layout.token_budget, budget),
        # The V1 trainer reads this key, which no YAML file has, for training and values alike.
        Override("critic.ppo_infer_max_token_len_per_gpu", layout.token_budget, budget, add=True),
        Override("critic.data_loader_seed", run.seed, "--seed"),
    ]
    if run.engine == MEGATRON:
        return settings + megatron_settings("critic.megatron", engine)
    return [
        Override("critic.strategy", "fsdp2", FIXED),
        *settings,
        Override("critic.ulysses_sequence_parallel_size", layout.ulysses, Fix(stages, "ulysses")),
        *fsdp_settings("critic.fsdp", engine),
    ]


def _reward_function(run: Run, request: Request) -> list[Override]:
    if request.get("reward") is None:
        return []
    settings: list[Override] = []
    function = request.get("reward.function")
    if function is not None:
        path, _, name = str(function).rpartition(":")
        settings += [
            Override("reward.custom_reward_function.path", anchored(path, "reward.function"), "reward.function"),
            Override("reward.custom_reward_function.name", name, "reward.function"),
        ]
    return [*settings, Override("reward.num_workers", reward_workers(run), "reward.workers_per_node")]


def reward_workers(run: Run) -> int:
    """Return the number of verl's reward processes, which it deals out over all nodes in turn.

    Each judges one sample at a time in Python, so that more of them than cores, or than samples, only cost memory.
    """
    cores = run.cores_per_node or MOST_REWARD_WORKERS_PER_NODE
    wanted = int(run.request.get("reward.workers_per_node", DEFAULT_REWARD_WORKERS_PER_NODE))
    return min(min(wanted, cores) * run.nodes, run.request.prompts * run.request.samples)


def _reward_model(request: Request, parts: Parts) -> list[Override]:
    if parts.reward is None:
        return [Override(f"{REWARD}.enable", False, "models.reward")]
    mesh = parts.reward.mesh
    own_pool = mesh != parts.actor.mesh
    settings = [
        Override(f"{REWARD}.enable", True, "models.reward"),
        Override(f"{REWARD}.enable_resource_pool", own_pool, PLACED),
        Override(f"{REWARD}.nnodes", mesh.nodes, PLACED),
        Override(f"{REWARD}.n_gpus_per_node", mesh.gpus_per_node, PLACED),
        Override(f"{REWARD}.model_path", request.model_path("reward", "weights"), "models.reward.weights"),
        Override(f"{REWARD}.rollout.name", "vllm", FIXED),
        Override(
            f"{REWARD}.rollout.tensor_model_parallel_size",
            server_tp(parts.reward),
            Fix((parts.reward.name,), "shard_size"),
        ),
        # With a pool of its own nothing wakes the server, so it must never sleep.
        Override(f"{REWARD}.rollout.free_cache_engine", not own_pool, FIXED),
    ]
    positions = request.get("architectures.reward.max_positions")
    if positions is not None:
        # Left open, vLLM would reserve a cache for every position of the model. Another tokenizer may need more tokens
        # for the same text, and the chat template some.
        longest = 2 * (request.max_prompt_tokens + request.max_response_tokens)
        settings.append(Override(f"{REWARD}.rollout.max_model_len", min(positions, longest), "workload", free=True))
    if own_pool:
        fraction = OWN_POOL_MEMORY_FRACTION
        settings.append(Override(f"{REWARD}.rollout.gpu_memory_utilization", fraction, FIXED, free=True))
    return settings


def server_tp(part: Sharded) -> int:
    """Return the tensor parallel degree of the vLLM server that holds a reward model planned as a sharded pass.

    A pass that shards its weights over a group becomes a server over as many GPUs, at most a node's.
    """
    layout, mesh = part.layout, part.mesh
    if layout.tp > 1:
        return layout.tp
    group = (layout.shard_size or mesh.gpus) if layout.zero == 3 else 1
    return max(n for n in range(1, mesh.gpus_per_node + 1) if mesh.gpus_per_node % n == 0 and n <= group)


def _trainer(run: Run, request: Request, parts: Parts) -> list[Override]:
    mesh: Mesh = parts.actor.mesh
    steps: Value = request.setting("training.total_steps")
    testing = request.get("training.test_every") if request.get("data.val") is not None else None
    return [
        Override("trainer.nnodes", mesh.nodes, PLACED),
        Override("trainer.n_gpus_per_node", mesh.gpus_per_node, PLACED),
        Override("trainer.total_training_steps", steps, "training.total_steps"),
        Override("trainer.total_epochs", steps, "training.total_steps"),  # an epoch has a step or more
        Override("trainer.save_freq", request.get("training.save_every", -1), "training.save_every"),
        Override("trainer.test_freq", testing or -1, "training.test_every"),
        Override("trainer.val_before_train", testing is not None, "training.test_every", free=True),
        Override("trainer.logger", ("console", "file"), FIXED, free=True),
        Override("trainer.project_name", "rpegc", FIXED, free=True),
        Override("trainer.experiment_name", slug(run.name), "name", free=True),
        Override("trainer.default_local_dir", Raw("'${oc.env:RPEGC_RUN_DIR,.}/checkpoints'"), FIXED, free=True),
        Override("trainer.resume_mode", "auto", FIXED, free=True),
        Override("hydra.run.dir", Raw("'${oc.env:RPEGC_RUN_DIR,.}/hydra'"), FIXED),
    ]
