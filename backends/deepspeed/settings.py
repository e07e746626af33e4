"""From a plan to the settings of TRL, DeepSpeed, vLLM's server and PEFT: every key that rpegc decides, and by what.

Keys start with the part that reads them: `grpo.` (trl.GRPOConfig), `deepspeed.` (ds_config.json), `lora.`
(peft.LoraConfig), `vllm.` (`vllm serve`, with `_` for `-`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backends.deepspeed.capabilities import SERVER
from backends.deepspeed.run import Run
from backends.owners import Fix, Owner

FIXED = "the deepspeed backend"
AUTO = "auto"
"""transformers fills it in from the GRPOConfig, so that the two agree."""

SERVER_TIMEOUT_S = 1800.0
"""Seconds granted to a server for loading weights and compiling graphs; TRL's own 240 are few for large models."""

SUPEROFFLOAD = {"ratio": 0.9, "super_offload": True, "cpuadam_cores_perc": 0.9}
"""As in DeepSpeedExamples/training/DeepSpeed-SuperOffload: share of the optimizer and of the cores that step on the
host."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, and the pipeline key (or the part of the plan) that decides it.

    `free` marks a default of ours that a user's own override replaces.
    """

    key: str
    value: Any
    owner: Owner
    free: bool = False


def settings_of(run: Run) -> tuple[Setting, ...]:
    """Return every setting that a run decides, in the order in which they are written."""
    return (
        *_optimization(run),
        *_batches(run),
        *_algorithm(run),
        *_generation(run),
        *_checkpoints(run),
        *_adapters(run),
        *_deepspeed(run),
        *(_server(run) if run.mode == SERVER else ()),
    )


def _optimization(run: Run) -> list[Setting]:
    layout, train = run.parts.actor.layout, (run.parts.actor.name,)
    return [
        Setting("grpo.bf16", True, "training.precision"),
        Setting("grpo.model_init_kwargs", {"dtype": "bfloat16"}, "training.precision", free=True),
        Setting("grpo.learning_rate", run.request.setting("training.learning_rate"), "training.learning_rate"),
        Setting("grpo.lr_scheduler_type", "constant", FIXED, free=True),
        Setting("grpo.weight_decay", 0.01, FIXED, free=True),
        Setting("grpo.max_grad_norm", 1.0, FIXED, free=True),
        Setting("grpo.gradient_checkpointing", layout.recompute == "full", Fix(train, "recompute")),
        Setting("grpo.seed", run.seed, "--seed"),
    ]


def _batches(run: Run) -> list[Setting]:
    """A rank takes `micro_batches` of a step's sequences; `accumulation` of them make an update."""
    layout, request = run.parts.actor.layout, run.request
    updates = request.total_updates
    return [
        Setting("grpo.per_device_train_batch_size", layout.micro_batch, Fix(run.parts.actor_engine, "micro_batch")),
        Setting("grpo.gradient_accumulation_steps", run.accumulation, "workload.minibatches_per_step"),
        Setting("grpo.steps_per_generation", run.micro_batches, "workload.prompts_per_step"),
        Setting("grpo.num_iterations", request.epochs, "training.epochs_per_batch"),
        Setting(
            "grpo.max_steps",
            request.setting("training.total_steps") if updates is None else updates,
            "training.total_steps",
        ),
    ]


def _algorithm(run: Run) -> list[Setting]:
    request = run.request
    low, high = request.get("training.clip", (0.2, 0.2))
    return [
        Setting("grpo.num_generations", request.samples, "workload.samples_per_prompt"),
        Setting("grpo.beta", request.beta, "training.kl.coefficient"),
        Setting("grpo.epsilon", low, "training.clip"),
        Setting("grpo.epsilon_high", high, "training.clip"),
        # Mean over the tokens of an update, and rewards scaled by their group: what verl's defaults are as well.
        Setting("grpo.loss_type", "dapo", FIXED, free=True),
        Setting("grpo.scale_rewards", "group", FIXED, free=True),
        # It would weigh tokens by the engine's log-probs, another estimator, and recompute the old ones for that.
        Setting("grpo.vllm_importance_sampling_correction", False, FIXED),
    ]


def _generation(run: Run) -> list[Setting]:
    request, layout, stages = run.request, run.parts.rollout.layout, (run.parts.rollout.name,)
    settings = [
        Setting("grpo.max_completion_length", request.max_response_tokens, "workload.response_tokens"),
        Setting("grpo.temperature", request.get("training.temperature", 1.0), "training.temperature"),
        Setting("grpo.use_vllm", True, FIXED),
        Setting("grpo.vllm_mode", run.mode, "the planner"),
    ]
    if run.mode == SERVER:
        return [*settings, Setting("grpo.vllm_server_timeout", SERVER_TIMEOUT_S, FIXED, free=True)]
    return [
        *settings,
        Setting("grpo.vllm_tensor_parallel_size", layout.tp, Fix(stages, "tp")),
        Setting("grpo.vllm_gpu_memory_utilization", layout.memory_fraction, Fix(stages, "memory_fraction")),
        Setting("grpo.vllm_max_model_length", request.max_prompt_tokens + request.max_response_tokens, "workload"),
        Setting("grpo.vllm_enable_sleep_mode", layout.offload, Fix(stages, "offload")),
    ]


def _checkpoints(run: Run) -> list[Setting]:
    request = run.request
    saves = request.get("training.save_every")
    tests = request.get("training.test_every") if request.get("data.val") is not None else None
    settings = [
        Setting("grpo.save_strategy", "steps" if saves else "no", "training.save_every"),
        *([Setting("grpo.save_steps", saves * request.updates, "training.save_every")] if saves else []),
        Setting("grpo.save_total_limit", 2, FIXED, free=True),
        Setting("grpo.eval_strategy", "steps" if tests else "no", "training.test_every"),
        Setting("grpo.logging_steps", 1, FIXED, free=True),
        Setting("grpo.report_to", "none", FIXED, free=True),
    ]
    if tests:
        settings += [
            Setting("grpo.eval_steps", tests * request.updates, "training.test_every"),
            Setting("grpo.num_generations_eval", 1, FIXED, free=True),
            Setting("grpo.per_device_eval_batch_size", run.parts.actor.layout.micro_batch, FIXED, free=True),
        ]
    return settings


def _adapters(run: Run) -> list[Setting]:
    rank = run.request.lora_rank
    if not rank:
        return []
    return [
        Setting("lora.r", rank, "training.lora_rank"),
        Setting("lora.lora_alpha", rank, FIXED, free=True),
        Setting("lora.target_modules", "all-linear", FIXED, free=True),
    ]


def _deepspeed(run: Run) -> list[Setting]:
    layout, engine = run.parts.actor.layout, run.parts.actor_engine
    zero = "deepspeed.zero_optimization"
    settings = [
        Setting(
            "deepspeed.train_batch_size", run.ranks * layout.micro_batch * run.accumulation, "workload.prompts_per_step"
        ),
        Setting("deepspeed.train_micro_batch_size_per_gpu", layout.micro_batch, Fix(engine, "micro_batch")),
        Setting("deepspeed.gradient_accumulation_steps", run.accumulation, "workload.minibatches_per_step"),
        Setting("deepspeed.gradient_clipping", AUTO, FIXED),
        Setting("deepspeed.bf16.enabled", True, "training.precision"),
        Setting(f"{zero}.stage", layout.zero, Fix(engine, "zero")),
    ]
    if layout.zero == 3:
        settings.append(Setting(f"{zero}.stage3_gather_16bit_weights_on_model_save", True, FIXED))
    if layout.offload_optimizer:
        fast = SUPEROFFLOAD if run.superchip and layout.zero == 3 else {}
        values = {"device": "cpu", "pin_memory": True, **fast}
        settings += [
            Setting(f"{zero}.offload_optimizer.{key}", value, Fix(engine, "offload_optimizer"))
            for key, value in values.items()
        ]
    if layout.offload_parameters:
        settings += [
            Setting(f"{zero}.offload_param.{key}", value, Fix(engine, "offload_parameters"))
            for key, value in {"device": "cpu", "pin_memory": True}.items()
        ]
    settings.append(Setting("deepspeed.optimizer.type", "AdamW", "training.optimizer"))
    for name in ("lr", "betas", "eps", "weight_decay"):
        settings.append(Setting(f"deepspeed.optimizer.params.{name}", AUTO, FIXED))
    # DeepSpeed would compile a fused Adam on every node when it starts; on the host only its own one is quick.
    torch_adam = Setting("deepspeed.optimizer.params.torch_adam", not layout.offload_optimizer, FIXED, free=True)
    return [*settings, torch_adam]


def _server(run: Run) -> list[Setting]:
    request, layout, stages = run.request, run.parts.rollout.layout, (run.parts.rollout.name,)
    return [
        Setting("vllm.tensor_parallel_size", layout.tp, Fix(stages, "tp")),
        Setting("vllm.gpu_memory_utilization", layout.memory_fraction, Fix(stages, "memory_fraction")),
        Setting("vllm.max_num_seqs", layout.max_sequences, Fix(stages, "max_sequences")),
        Setting("vllm.max_num_batched_tokens", layout.batched_tokens, Fix(stages, "batched_tokens")),
        Setting("vllm.max_model_len", request.max_prompt_tokens + request.max_response_tokens, "workload"),
        Setting("vllm.dtype", "bfloat16", "training.precision"),
        Setting("vllm.seed", run.seed, "--seed"),
        Setting("vllm.weight_transfer_config", '{"backend": "nccl"}', FIXED),
        Setting("vllm.logprobs_mode", "processed_logprobs", FIXED),
        Setting("vllm.max_logprobs", -1, FIXED),
    ]
