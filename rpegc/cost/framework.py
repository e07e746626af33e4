"""Constants of one class of framework: a type, the intervals of its prices, and what the engine flags change.

Nothing here is tuned to one model or one run: a constant belongs to a framework, an engine or a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.cost.constants import RL_LOGS, assumed, fitted
from rpegc.cost.intervals import training_band
from rpegc.hardware import Figure
from rpegc.target import BoolArray, FloatArray

TENSOR_OVERLAP_EXPOSED = fitted(0.36)
EXPERT_OVERLAP_EXPOSED = assumed(0.1, "expert all-to-all overlapped with the other half of the batch (Megatron-Bridge)")

# Intervals: 80 % of cases lie between seconds / x and seconds * x.
KNOWN_INTERVAL = Figure(
    1.25, "fitted", RL_LOGS + "; leave-one-model-out residuals of 1.15, wider by half in the logarithm and rounded up"
)
EXTRAPOLATED_INTERVAL = Figure(
    1.6, "assumed", "no published RL row on this GPU type: between the known band and that of an unknown framework"
)
UNKNOWN_INTERVAL = Figure(2.0, "fitted", RL_LOGS + "; residuals with a whole framework class left out")


@dataclass(frozen=True, slots=True)
class FrameworkConstants:
    """What a framework adds to the physics, and how it spends memory.

    `train_factor`, `forward_factor`: multipliers of the whole pass. `moe_factor`: on top for mixture-of-experts.
    `micro_batch_s` (`micro_batch_lora_s`): seconds per layer, micro-batch and forward-equivalent. `onload_s`: seconds
    per on-load of offloaded parameters. `platforms`: factor on whole passes by GPU type, 1 where it is not named.
    `elementwise`: traffic as a multiple of fused kernels. `logit_bytes`: traffic
    per logit and direction. `lora_traffic`: traffic of adapters as a multiple of reading inputs and adding to outputs.
    `attention` maps a GPU type to the forward asymptote (FLOP/s) of this framework's attention kernels; GPU types that
    it does not name keep their own figure. `*_exposed`: shares of communication that computation does not cover, of
    which `tensor_backward` stays exposed in the backward pass. `gradient_bytes`: of a gradient on the wire and in its
    buffer without full sharding. `moe_layer_s`: fixed seconds of a MoE layer and direction,
    `expert_launch_s` of each matrix of a local expert; `permute_bytes`: traffic
    of dispatch and permutation per token, expert and channel. `selective_recompute` lists the layer terms that
    selective recompute repeats, with shares. `update_s`: fixed seconds of an optimizer update. `fp8_gemm`: FP8 over
    BF16 asymptote of matrix products, under the flag "fp8". `score_bytes` (forward, backward): traffic per attention
    score where attention is not fused; 0 where it is. `padded`: every sequence of a step is computed at the length of
    the longest. `imbalance`: share of the unbalanced spread between data-parallel ranks that remains.
    `full_shard_from`: the ZeRO level from which weights are gathered per layer. `known_on`: GPU types with published
    rows of this class. `recurrence_share`: of the GEMM asymptote that chunked scans reach.

    Memory: `logit_memory_*` bytes per logit at the peak; `token_memory`, `mlp_memory`, `route_memory` bytes per token
    and channel of a layer in its backward pass (of its width, its MLP, the copies sent to experts), `selective_memory`
    share of activations that selective recompute keeps, `master_bytes` per weight that stays between steps.
    `host_update`: an offloaded optimizer also steps on the host, so that its states never come to the GPU.
    """

    name: str
    train_factor: Figure
    forward_factor: Figure
    moe_factor: Figure
    micro_batch_s: Figure
    micro_batch_lora_s: Figure
    onload_s: Figure
    platforms: Mapping[str, Figure]
    elementwise: Figure
    logit_bytes: Figure
    lora_traffic: Figure
    attention: Mapping[str, Figure]
    tensor_exposed: Figure
    tensor_backward: Figure
    context_exposed: Figure
    ulysses_exposed: Figure
    expert_exposed: Figure
    expert_exposed_across_nodes: Figure
    point_to_point_exposed: Figure
    gather_exposed: Figure
    reduce_exposed: Figure
    data_exposed: Figure
    gradient_bytes: Figure
    moe_layer_s: Figure
    permute_bytes: Figure
    expert_launch_s: Figure
    host_factor: Figure
    fp8_gemm: Figure
    score_bytes: tuple[Figure, Figure]
    recurrence_share: Figure
    selective_recompute: tuple[tuple[str, float], ...]
    update_s: Figure
    imbalance: Figure
    full_shard_from: int
    known_on: tuple[str, ...]
    logit_memory_train: Figure
    logit_memory_forward: Figure
    token_memory: Figure
    mlp_memory: Figure
    route_memory: Figure
    selective_memory: Figure
    master_bytes: Figure
    padded: bool = False
    host_update: bool = False


def gpu_type(accelerator: str) -> str:
    """Return the type of an accelerator from its name: "H100" of "H100-SXM 80 GB"."""
    return accelerator.split()[0].split("-")[0]


def attention_asymptote(constants: FrameworkConstants, accelerator: str) -> float | None:
    """Return the forward rate (FLOP/s) of the framework's attention kernels, None for the accelerator's own figure."""
    figure = constants.attention.get(gpu_type(accelerator))
    return None if figure is None else figure.value


def platform_factor(constants: FrameworkConstants, accelerator: str) -> float:
    """Return the factor on whole passes on this GPU type."""
    figure = constants.platforms.get(gpu_type(accelerator))
    return 1.0 if figure is None else figure.value


def tensor_exposed(constants: FrameworkConstants, flags: frozenset[str]) -> float:
    """Return the exposed share of tensor-parallel collectives; the flag `overlap_tensor_parallel` hides more of it."""
    return TENSOR_OVERLAP_EXPOSED.value if "overlap_tensor_parallel" in flags else constants.tensor_exposed.value


def expert_exposed(constants: FrameworkConstants, flags: frozenset[str], across_nodes: BoolArray) -> FloatArray:
    """Return the exposed share of the expert all-to-all; the flag `overlap_expert_parallel` hides most of it."""
    if "overlap_expert_parallel" in flags:
        return np.full(across_nodes.shape, EXPERT_OVERLAP_EXPOSED.value)
    return np.where(across_nodes, constants.expert_exposed_across_nodes.value, constants.expert_exposed.value)


def interval(constants: FrameworkConstants, accelerator: str, mixture: bool = False) -> tuple[float, float]:
    """Return the multipliers (low, high) of an 80 % interval on seconds.

    Pretraining frameworks, which define the physics: the residuals of left-out rows (`rpegc.cost.intervals`). RL
    frameworks: known on a GPU type with published rows, known elsewhere (GH200: extrapolated), or unknown.
    """
    kind = gpu_type(accelerator)
    if constants.known_on and constants.train_factor.provenance == "assumed":
        return training_band(mixture, kind == "GH200", kind in constants.known_on)
    if kind in constants.known_on:
        width = KNOWN_INTERVAL.value
    elif constants.known_on:
        width = EXTRAPOLATED_INTERVAL.value
    else:
        width = UNKNOWN_INTERVAL.value
    return (1.0 / width, width)
