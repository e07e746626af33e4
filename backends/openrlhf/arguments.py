"""From a plan to OpenRLHF's command line: every flag that rpegc decides, with what decides it, and the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from backends.openrlhf.capabilities import HYBRID, VERSION
from backends.owners import PLACED, Fix, Owner, decided_by, flat, remedy
from backends.request import PipelineRequest
from backends.roles import Parts
from rpegc.emit import CONTROL_CHARACTERS, TargetRefusal

FIXED = "the deepspeed backend (OpenRLHF)"
WHERE = "target_overrides"
WORK, RUN, LAUNCH = "{work}/", "{run}/", "{launch}/"
"""What `train.sh` puts the folder of submission, of checkpoints and of the launch files in the place of."""

ESTIMATORS = {"grpo": "group_norm", "ppo": "gae"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One flag without its dashes. True stands alone, False is not written, a tuple is several words."""

    flag: str
    value: Any
    owner: Owner
    free: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line; a single value keeps to its flag, so that a leading dash is no flag."""
        if isinstance(self.value, bool):
            return (f"--{self.flag}",) if self.value else ()
        if isinstance(self.value, list | tuple):
            return (f"--{self.flag}", *(str(item) for item in self.value))
        return (f"--{self.flag}={self.value}",)


def located(text: str) -> str:
    """Return a path of the user with the mark of the folder that it starts in; names of a hub stay as they are."""
    return f"{WORK}{text}" if text.startswith(".") else text


def arguments_of(request: PipelineRequest, parts: Parts, mode: str, seed: int) -> tuple[Argument, ...]:
    """Return all arguments, the user's last and in the place of ours where those are free.

    Raises TargetRefusal for a flag that is owned or that OpenRLHF lacks.
    """
    ours = (
        *_pools(parts, mode),
        *_models(request, parts),
        *_training(request, parts, seed),
        *_algorithm(request),
        *_data(request),
        *_checkpoints(request),
    )
    owners: dict[str, Owner] = {argument.flag: argument.owner for argument in ours if not argument.free}
    users = tuple(
        Argument(flag, _checked(flag, value, owners), f"{WHERE}.{flag}") for flag, value in flat(request.get(WHERE, {}))
    )
    replaced = {argument.flag for argument in users}
    return (*(argument for argument in ours if argument.flag not in replaced), *users)


def _pools(parts: Parts, mode: str) -> Iterator[Argument]:
    rollout, stages = parts.rollout.layout, (parts.rollout.name,)
    for role, part in (("actor", parts.actor), ("ref", parts.reference), ("critic", parts.critic)):
        if part is not None:
            yield Argument(f"{role}.num_nodes", part.mesh.nodes, PLACED)
            yield Argument(f"{role}.num_gpus_per_node", part.mesh.gpus_per_node, PLACED)
    if parts.reward is not None:
        yield Argument("reward.num_nodes", parts.reward.mesh.nodes, PLACED)
        yield Argument("reward.num_gpus_per_node", parts.reward.mesh.gpus_per_node, PLACED)
    yield Argument("train.colocate_all", mode == HYBRID, PLACED)
    yield Argument("train.colocate_actor_ref", mode != HYBRID, PLACED)
    yield Argument("vllm.num_engines", rollout.replicas, Fix(stages, "tp"))
    yield Argument("vllm.tensor_parallel_size", rollout.tp, Fix(stages, "tp"))
    yield Argument("vllm.gpu_memory_utilization", rollout.memory_fraction, Fix(stages, "memory_fraction"))
    yield Argument("vllm.enable_sleep", mode == HYBRID, PLACED)
    yield Argument("vllm.sync_backend", "nccl", FIXED, free=True)
    yield Argument("train.async_enable", False, "allow.max_staleness")


def _models(request: PipelineRequest, parts: Parts) -> Iterator[Argument]:
    yield Argument("actor.model_name_or_path", located(request.model_path("actor", "weights")), "models.actor.weights")
    for role, part in (("critic", parts.critic), ("reward", parts.reward)):
        if part is not None:
            path = located(request.model_path(role, "weights"))
            yield Argument(f"{role}.model_name_or_path", path, f"models.{role}.weights")
    if parts.reward is None:
        yield Argument("reward.remote_url", f"{LAUNCH}reward_func.py", "reward.function")


def _training(request: PipelineRequest, parts: Parts, seed: int) -> Iterator[Argument]:
    layout = parts.actor.layout
    engines = tuple(part.name for part in (parts.actor, parts.critic) if part)
    passes = [part for part in (parts.old_logprobs, parts.reference, parts.values, parts.reward) if part]
    names = tuple(part.name for part in passes)
    budget = passes[0].layout.token_budget if passes else layout.token_budget
    yield Argument("ds.zero_stage", layout.zero, Fix((*engines, *names), "zero"))
    yield Argument("ds.adam_offload", layout.offload_optimizer, Fix((*engines, *names), "offload_optimizer"))
    yield Argument("ds.param_dtype", "bf16", "training.precision")
    yield Argument("actor.gradient_checkpointing_enable", layout.recompute == "full", Fix(engines, "recompute"))
    yield Argument("ds.packing_samples", True, FIXED)
    yield Argument("train.dynamic_batch_enable", True, FIXED)
    yield Argument("train.max_tokens_per_gpu", layout.token_budget, Fix(engines, "token_budget"))
    yield Argument("rollout.max_tokens_per_gpu", budget, Fix(names, "token_budget"))
    yield Argument("actor.adam.lr", request.setting("training.learning_rate"), "training.learning_rate")
    for role in ("actor", "critic") if parts.critic else ("actor",):
        yield Argument(f"{role}.lr_scheduler", "constant", FIXED, free=True)
        yield Argument(f"{role}.lr_warmup_ratio", 0.0, FIXED, free=True)
    yield Argument("train.max_epochs", request.epochs, "training.epochs_per_batch")
    yield Argument("train.batch_size", request.sequences // request.minibatches, "workload.minibatches_per_step")
    yield Argument("train.seed", seed, "--seed")


def _algorithm(request: PipelineRequest) -> Iterator[Argument]:
    low, high = request.get("training.clip", (0.2, 0.2))
    yield Argument("algo.advantage.estimator", ESTIMATORS.get(str(request.get("algorithm")), "gae"), "algorithm")
    yield Argument("actor.eps_clip_low_high", (low, high), "training.clip")
    yield Argument("algo.kl.init_coef", float(request.get("training.kl.coefficient", 0.0)), "training.kl.coefficient")
    yield Argument("algo.kl.use_loss", request.kl_where == "loss", "training.kl.where")
    yield Argument("algo.kl.estimator", request.get("training.kl.estimator", "k3"), "training.kl.estimator")
    yield Argument("algo.advantage.is_correction_level", "off", FIXED, free=True)
    yield Argument("rollout.temperature", request.get("training.temperature", 1.0), "training.temperature")


def _data(request: PipelineRequest) -> Iterator[Argument]:
    train = str(request.setting("data.train"))
    relative = request.get("data.train") is not None and not train.startswith("/") and "://" not in train
    steps = request.get("training.total_steps")
    prompts = request.setting("training.total_steps") if steps is None else steps * request.prompts
    yield Argument("data.prompt_dataset", f"{WORK}{train}" if relative else train, "data.train")
    yield Argument("data.input_key", request.get("data.prompt_key", "prompt"), "data.prompt_key")
    yield Argument("data.label_key", request.get("data.answer_key", "answer"), "data.answer_key")
    yield Argument("data.apply_chat_template", True, FIXED, free=True)
    yield Argument("data.max_len", request.max_prompt_tokens + request.max_response_tokens, "workload")
    yield Argument("rollout.max_new_tokens", request.max_response_tokens, "workload.response_tokens")
    yield Argument("rollout.batch_size", request.prompts, "workload.prompts_per_step")
    yield Argument("rollout.n_samples_per_prompt", request.samples, "workload.samples_per_prompt")
    yield Argument("data.max_samples", prompts, "training.total_steps")
    yield Argument("train.num_episodes", 1, "training.total_steps")


def _checkpoints(request: PipelineRequest) -> Iterator[Argument]:
    yield Argument("ckpt.output_dir", f"{RUN}model", FIXED)
    yield Argument("ckpt.path", f"{RUN}checkpoints", FIXED)
    yield Argument("ckpt.save_steps", request.get("training.save_every", -1), "training.save_every")
    yield Argument("ckpt.load_enable", request.get("training.save_every") is not None, "training.save_every")
    yield Argument("logger.tensorboard_dir", f"{RUN}tensorboard", FIXED, free=True)


@cache
def known_flags() -> frozenset[str]:
    """Return the flags of OpenRLHF's parser."""
    text = (resources.files("backends.openrlhf") / f"flags-{VERSION}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def _checked(flag: str, value: Any, owners: Mapping[str, Owner]) -> Any:
    found = decided_by(flag, owners)
    if found:
        raise _refusal(flag, f"{found[0]} is decided by {found[1]}", remedy(found[1], flag))
    if flag not in known_flags():
        close = difflib.get_close_matches(flag, known_flags(), n=1, cutoff=0.6)
        hint = f"did you mean `{close[0]}`?" if close else None
        raise _refusal(flag, f"OpenRLHF {VERSION} has no flag --{flag}", hint)
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, str) and CONTROL_CHARACTERS.search(item):
            raise _refusal(flag, f"{item!r} holds a control character; launch files cannot carry it")
        if isinstance(item, str) and item.startswith((WORK, RUN, LAUNCH)):
            raise _refusal(flag, f"{item!r} starts with a mark that train.sh replaces by a folder")
        if isinstance(value, list | tuple) and str(item).startswith("--"):
            raise _refusal(flag, f"{item!r} in a list would be a flag of its own")
    return value


def _refusal(flag: str, problem: str, hint: str | None = None) -> TargetRefusal:
    return TargetRefusal(f"{WHERE}.{flag}: {problem}", (WHERE, flag), hint)
