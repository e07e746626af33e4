"""Layouts out of verl's settings: training engines (FSDP, Megatron), their forward passes, and the inference engine."""

from __future__ import annotations

from dataclasses import replace

from rpegc.errors import InputError
from rpegc.importers.settings import Settings
from rpegc.target import EngineLayout, Mesh, ShardedLayout

_ACTOR, _ROLLOUT, _REFERENCE, _MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))
DEFAULT_TOKEN_BUDGET = 16384
DEFAULT_CRITIC_BUDGET = 32768
"""`ppo_max_token_len_per_gpu` of trainer/config/actor/actor.yaml and critic/critic.yaml."""


def training_layout(settings: Settings, engine: str, role: str, mesh: Mesh) -> ShardedLayout:
    """Return the layout in which a role is trained. Raises InputError where degrees do not divide the GPUs."""
    section, model = (_ACTOR, _MODEL) if role == "actor" else ("critic", "critic.model")
    degrees = _megatron(settings, section, mesh) if engine == "megatron" else _fsdp(settings, section, role, mesh)
    micro_batch, budget = _batch(settings, section, degrees, role)
    return replace(
        degrees,
        micro_batch=micro_batch,
        token_budget=budget,
        recompute=_recompute(settings, engine, section, model),
        offload_activations=engine == "fsdp"
        and settings.flag(f"{model}.enable_activation_offload", f"{model}.enable_activation_offloading", default=False),
    )


def _fsdp(settings: Settings, section: str, role: str, mesh: Mesh) -> ShardedLayout:
    config = f"{section}.fsdp_config"
    names = (config,) if role == "actor" else ("critic.model.fsdp_config", "critic.fsdp", config)
    ulysses = settings.count(
        f"{section}.ulysses_sequence_parallel_size", *(f"{n}.ulysses_sequence_parallel_size" for n in names), default=1
    )
    _divides(mesh, f"{section}.ulysses_sequence_parallel_size", ulysses)
    group = settings.count(*(f"{name}.fsdp_size" for name in names), default=-1)
    if group > 0:
        group = min(group, mesh.gpus)
        _divides(mesh, f"{config}.fsdp_size", group)
    keeps = not settings.flag(*(f"{name}.reshard_after_forward" for name in names), default=True)
    return ShardedLayout(
        dp=mesh.gpus // ulysses,
        ulysses=ulysses,
        zero=2 if keeps else 3,
        shard_size=group if group > 0 else mesh.gpus,
        offload_parameters=settings.flag(*(f"{name}.param_offload" for name in names), default=False),
        offload_optimizer=settings.flag(*(f"{name}.optimizer_offload" for name in names), default=False),
    )


def _megatron(settings: Settings, section: str, mesh: Mesh) -> ShardedLayout:
    config = f"{section}.megatron"
    tp, pp, cp, ep = (
        settings.count(f"{config}.{name}_parallel_size", default=1)
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    _divides(mesh, f"{config}: tensor * pipeline * context parallel size", tp * pp * cp)
    etp = settings.count(f"{config}.expert_tensor_parallel_size", default=tp if ep > 1 else 1)
    _divides(mesh, f"{config}: expert * expert tensor * pipeline parallel size", ep * etp * pp)
    ranks = mesh.gpus // (tp * pp)
    return ShardedLayout(
        dp=ranks // cp,
        cp=cp,
        tp=tp,
        pp=pp,
        vpp=settings.count(f"{config}.virtual_pipeline_model_parallel_size", default=1),
        ep=ep,
        etp=etp,
        sequence_parallel=tp > 1 and settings.flag(f"{config}.sequence_parallel", default=True),
        zero=1 if settings.flag(f"{config}.use_distributed_optimizer", default=True) else 0,
        shard_size=ranks,
        offload_parameters=settings.flag(f"{config}.param_offload", default=False),
        offload_optimizer=settings.flag(f"{config}.optimizer_offload", default=False),
    )


def _divides(mesh: Mesh, what: str, degree: int) -> None:
    if degree < 1 or mesh.gpus % degree:
        raise InputError(f"{what} is {degree}, which does not divide the {mesh.gpus} GPUs of the launch")


def _recompute(settings: Settings, engine: str, section: str, model: str) -> str:
    """Return what is recomputed: Megatron's own key, or the checkpointing of the model (on by default)."""
    if engine == "megatron":
        key = f"{section}.megatron.override_transformer_config.recompute_granularity"
        word = settings.text(key, f"{section}.megatron.override_transformer_config.recompute_method")
        return "none" if word is None else "selective" if word == "selective" else "full"
    return "full" if settings.flag(f"{model}.enable_gradient_checkpointing", default=True) else "none"


def _batch(settings: Settings, section: str, layout: ShardedLayout, role: str) -> tuple[int, int]:
    """Return (sequences, tokens) of a micro-batch, one of which is 0."""
    dynamic = settings.flag(f"{section}.use_dynamic_bsz", f"{_ACTOR}.use_dynamic_bsz", default=False)
    budget = DEFAULT_CRITIC_BUDGET if role == "critic" else DEFAULT_TOKEN_BUDGET
    if dynamic:
        return 0, _positive(f"{section}.ppo_max_token_len_per_gpu", settings, budget)
    return _counted(settings, (f"{section}.ppo_micro_batch_size",), layout), 0


def _counted(settings: Settings, keys: tuple[str, ...], layout: ShardedLayout) -> int:
    """Return sequences of one rank's micro-batch; the keys without `_per_gpu` count those of all ranks (verl 0.2)."""
    for key in keys:
        if settings.text(f"{key}_per_gpu"):
            return _positive(f"{key}_per_gpu", settings)
        if settings.text(key):
            return max(_positive(key, settings) // layout.dp, 1)
    raise InputError(f"`{keys[0]}_per_gpu` is missing", None, "verl asks for it unless use_dynamic_bsz is on")


def _positive(key: str, settings: Settings, default: int | None = None) -> int:
    value = settings.count(key, default=default)
    if value < 1:
        raise InputError(f"`{key}` must be positive, got {value}")
    return value


def forward_layout(settings: Settings, engine: str, role: str, trained: ShardedLayout) -> ShardedLayout:
    """Return the layout of a role's forward pass; degrees are those of the engine that it is trained, or paired, with.

    Batches by default as the role's training (trainer/config/rollout/rollout.yaml, ref/ref.yaml, critic/critic.yaml).
    """
    base = replace(trained, recompute="none", offload_activations=False)
    if role == "critic":
        dynamic = settings.flag("critic.use_dynamic_bsz", f"{_ACTOR}.use_dynamic_bsz", default=False)
        budget = settings.count("critic.forward_max_token_len_per_gpu", default=trained.token_budget)
        keys = ("critic.forward_micro_batch_size", "critic.ppo_micro_batch_size")
        return replace(
            base, micro_batch=0 if dynamic else _counted(settings, keys, base), token_budget=budget if dynamic else 0
        )
    section = _REFERENCE if role == "reference" else _ROLLOUT
    if role == "reference":
        base = _reference(settings, engine, base)
    dynamic = settings.flag(f"{section}.log_prob_use_dynamic_bsz", f"{_ACTOR}.use_dynamic_bsz", default=False)
    if dynamic:
        default = settings.count(f"{_ACTOR}.ppo_max_token_len_per_gpu", default=DEFAULT_TOKEN_BUDGET)
        budget = _positive(f"{section}.log_prob_max_token_len_per_gpu", settings, default)
        return replace(base, micro_batch=0, token_budget=budget)
    keys = (f"{section}.log_prob_micro_batch_size", f"{_ROLLOUT}.log_prob_micro_batch_size")
    return replace(base, micro_batch=_counted(settings, keys, base), token_budget=0)


def _reference(settings: Settings, engine: str, base: ShardedLayout) -> ShardedLayout:
    """A reference has the actor's degrees, and an offload of its own."""
    part = "megatron" if engine == "megatron" else "fsdp_config"
    offload = settings.flag(f"{_REFERENCE}.{part}.param_offload", default=base.offload_parameters)
    return replace(base, offload_parameters=offload, offload_optimizer=False)


def engine_layout(settings: Settings, mesh: Mesh) -> EngineLayout:
    """Return the layout of the inference engine; defaults as in trainer/config/rollout/rollout.yaml."""
    tp = settings.count(f"{_ROLLOUT}.tensor_model_parallel_size", default=2)
    pp = settings.count(f"{_ROLLOUT}.pipeline_model_parallel_size", default=1)
    copies = settings.count(f"{_ROLLOUT}.data_parallel_size", default=1)
    _divides(mesh, f"{_ROLLOUT}: tensor * pipeline * data parallel size", tp * pp * copies)
    return EngineLayout(
        replicas=mesh.gpus // (tp * pp * copies),
        engine_dp=copies,
        tp=tp,
        pp=pp,
        ep=settings.count(f"{_ROLLOUT}.expert_parallel_size", default=1),
        max_sequences=_positive(f"{_ROLLOUT}.max_num_seqs", settings, 256),
        memory_fraction=settings.share(f"{_ROLLOUT}.gpu_memory_utilization", default=0.5),
        batched_tokens=_positive(f"{_ROLLOUT}.max_num_batched_tokens", settings, 8192),
        offload=settings.flag(f"{_ROLLOUT}.free_cache_engine", default=True),
    )
