"""Apply a layout to a model: tensor and sequence parallelism by DTensor, sharding by FSDP2, recomputation.

The order matters: parts of the pipeline, then tensor parallelism, then sharding along the data axis.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from rpegc.runtime.groups import Axes
from rpegc.runtime.model import LanguageModel


def layers_of_part(layers: int, parts: int, part: int) -> list[int]:
    """Return the layers of one of several equal parts; the first parts hold one more where it does not divide."""
    size, rest = divmod(layers, parts)
    first = part * size + min(part, rest)
    return list(range(first, first + size + (part < rest)))


def build_parts(source: Any, head: str, axes: Axes) -> list[LanguageModel]:
    """Return the parts of a model that a rank of the layout holds: one, or one for each virtual pipeline stage."""
    layout, layers = axes.layout, len(source.model.layers)
    count = layout.pp * layout.vpp
    mine = [axes.pipeline_place + turn * layout.pp for turn in range(layout.vpp)]
    return [LanguageModel(source, head, layers_of_part(layers, count, part)) for part in mine]


def apply_layout(model: LanguageModel, axes: Axes, precision: torch.dtype) -> None:
    """Split a part's parameters as the layout says; afterwards they are DTensors where they are split."""
    layout = axes.layout
    model.recompute, model.offload_activations = layout.recompute, layout.offload_activations
    if axes.tensor is not None:
        _tensor_parallel(model, axes.tensor, layout.sequence_parallel)
    if axes.shard is not None:
        _shard(model, axes, precision)


def _tensor_parallel(model: LanguageModel, mesh: Any, sequence: bool) -> None:
    """Megatron's split (arXiv 1909.08053) and its sequence parallelism between the products (arXiv 2205.05198)."""
    states = Shard(1) if sequence else Replicate()
    for layer in model.model.layers.values():
        parallelize_module(layer, mesh, _layer_plan(layer, states, sequence))
    plan: dict[str, Any] = {}
    tied = model.tied and model.first and model.last
    if model.first:
        plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=states)
    if model.last:
        if sequence:
            plan["model.norm"] = SequenceParallel()
        if model.head == "logits":
            plan["lm_head"] = ColwiseParallel(input_layouts=states, output_layouts=Replicate())
        elif sequence:
            plan["score"] = PrepareModuleInput(
                input_layouts=(states,), desired_input_layouts=(Replicate(),), use_local_output=True
            )
    parallelize_module(model, mesh, plan)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight


def _layer_plan(layer: nn.Module, states: Any, sequence: bool) -> dict[str, Any]:
    plan: dict[str, Any] = {
        **{f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")},
        "self_attn.o_proj": RowwiseParallel(output_layouts=states),
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate_proj", "up_proj")},
        "mlp.down_proj": RowwiseParallel(output_layouts=states),
    }
    for norm in ("q_norm", "k_norm"):  # of Qwen3: one weight for all heads, of which each rank sees some
        if hasattr(layer.self_attn, norm):
            plan[f"self_attn.{norm}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    if sequence:
        whole = {"hidden_states": Replicate()}
        plan["self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts=whole
        )
        plan["mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan["input_layernorm"] = plan["post_attention_layernorm"] = SequenceParallel()
    return plan


def _shard(model: LanguageModel, axes: Axes, precision: torch.dtype) -> None:
    """FSDP2 layer by layer: ZeRO-3 frees gathered weights after the forward pass, ZeRO-2 keeps them."""
    offload = CPUOffloadPolicy(pin_memory=False) if axes.layout.offload_parameters else OffloadPolicy()
    options: dict[str, Any] = {
        "mesh": axes.shard,
        "mp_policy": MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32),
        "reshard_after_forward": axes.layout.zero == 3,
        "offload_policy": offload,
    }
    for layer in model.model.layers.values():
        fully_shard(layer, **options)
    fully_shard(model, **options)
