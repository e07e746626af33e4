"""The settings of one training engine of verl: FSDP2 or Megatron, for the actor, the reference or the critic."""

from __future__ import annotations

from dataclasses import dataclass

from backends.owners import Fix
from backends.roles import Sharded
from backends.verl.capabilities import FSDP
from backends.verl.hydra import Override
from backends.verl.owners import FIXED
from backends.verl.request import Request
from backends.verl.rules_megatron import end_layers

MODEL = "actor_rollout_ref.model"

ADAPTER_ALPHA = 16
"""verl's default `lora_alpha` of its FSDP engine (hf_model.yaml); Megatron's default is another number."""

RECOMPUTE = {"none": None, "selective": "selective", "full": "full"}
"""Megatron's `recompute_granularity` by our word."""


@dataclass(frozen=True, slots=True)
class EngineOf:
    """One engine of a run: whose it is (`role`), its layout (`part`), the stages that run in it, its data seed."""

    role: str
    part: Sharded
    stages: tuple[str, ...]
    request: Request
    seed: int


def fsdp_settings(section: str, engine: EngineOf) -> list[Override]:
    """Return the settings of one FSDP2 engine: sharding, offload, sequence parallelism, precision, seed."""
    layout, stages = engine.part.layout, engine.stages
    whole = layout.shard_size in (0, engine.part.mesh.gpus)
    return [
        Override(f"{section}.fsdp_size", -1 if whole else layout.shard_size, Fix(stages, "shard_size")),
        Override(f"{section}.reshard_after_forward", layout.zero == 3, Fix(stages, "zero")),
        Override(f"{section}.param_offload", layout.offload_parameters, Fix(stages, "offload_parameters")),
        Override(f"{section}.optimizer_offload", layout.offload_optimizer, Fix(stages, "offload_optimizer")),
        Override(f"{section}.ulysses_sequence_parallel_size", layout.ulysses, Fix(stages, "ulysses")),
        Override(f"{section}.dtype", engine.request.dtype, "training.precision"),
        Override(f"{section}.seed", engine.seed, "--seed"),
    ]


def megatron_settings(section: str, engine: EngineOf) -> list[Override]:
    """Return the settings of one Megatron engine: degrees, offload, recompute, stages of unequal depth, seed.

    `expert_tensor_parallel_size` is always written: left open it would be the tensor parallel degree.
    """
    layout, stages, train = engine.part.layout, engine.stages, engine.stages[:1]
    transformer = f"{section}.override_transformer_config"
    whole = layout.recompute == "full"
    return [
        Override(f"{section}.tensor_model_parallel_size", layout.tp, Fix(stages, "tp")),
        Override(f"{section}.pipeline_model_parallel_size", layout.pp, Fix(stages, "pp")),
        Override(
            f"{section}.virtual_pipeline_model_parallel_size",
            layout.vpp if layout.vpp > 1 else None,
            Fix(stages, "vpp"),
        ),
        Override(f"{section}.context_parallel_size", layout.cp, Fix(stages, "cp")),
        Override(f"{section}.expert_model_parallel_size", layout.ep, Fix(stages, "ep")),
        Override(f"{section}.expert_tensor_parallel_size", layout.etp, Fix(stages, "etp")),
        Override(f"{section}.sequence_parallel", layout.sequence_parallel, Fix(stages, "sequence_parallel")),
        Override(f"{section}.use_distributed_optimizer", layout.zero == 1, Fix(stages, "zero")),
        Override(f"{section}.param_offload", layout.offload_parameters, Fix(stages, "offload_parameters")),
        Override(f"{section}.optimizer_offload", layout.offload_optimizer, Fix(stages, "offload_optimizer")),
        Override(f"{section}.use_mbridge", True, FIXED),
        Override(f"{section}.dtype", engine.request.dtype, "training.precision"),
        Override(f"{section}.seed", engine.seed, "--seed"),
        Override(f"{transformer}.recompute_granularity", RECOMPUTE[layout.recompute], Fix(train, "recompute")),
        Override(f"{transformer}.recompute_method", "uniform" if whole else None, Fix(train, "recompute")),
        Override(f"{transformer}.recompute_num_layers", 1 if whole else None, Fix(train, "recompute")),
        *_end_stages(transformer, engine),
    ]


def _end_stages(transformer: str, engine: EngineOf) -> list[Override]:
    """Return the depths of the first and last pipeline stage where the layers do not split evenly."""
    pp, layers = engine.part.layout.pp, engine.request.get(f"architectures.{engine.role}.layers")
    ends = end_layers(int(layers), pp) if layers and pp > 1 else None
    if ends is None:
        return []
    owner = Fix(engine.stages, "pp")
    return [
        Override(f"{transformer}.num_layers_in_{place}_pipeline_stage", count, owner, add=True)
        for place, count in zip(("first", "last"), ends, strict=True)
    ]


def adapter_settings(engine: str, request: Request) -> list[Override]:
    """Return the settings of the actor's adapters: the two engines read them from keys of their own."""
    rank = "training.lora_rank"
    if engine == FSDP:
        settings = [Override(f"{MODEL}.lora_rank", request.lora_rank, rank)]
        if request.lora_rank:
            settings.append(Override(f"{MODEL}.target_modules", "all-linear", rank, free=True))
        return settings
    settings = [Override(f"{MODEL}.lora_rank", 0, rank), Override(f"{MODEL}.lora.rank", request.lora_rank, rank)]
    if request.lora_rank:
        settings.append(Override(f"{MODEL}.lora.alpha", ADAPTER_ALPHA, rank, free=True))
    return settings
