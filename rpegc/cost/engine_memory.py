"""Device and host memory of inference engines, and how many sequences their KV caches hold.

An engine takes `memory_fraction` of the *whole* device memory: weights and workspace first, then the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.decode import EngineShape
from rpegc.cost.engines import (
    ALONE_WORKSPACE_SHARE,
    ENGINE_PROCESS_BYTES,
    LOGIT_COPIES,
    RESIDUE_BYTES,
    SLEEP_LEVEL_SOURCE,
    WORKSPACE_BASE_BYTES,
)
from rpegc.cost.table import MemoryTerm
from rpegc.hardware import Machine
from rpegc.lengths import Lengths
from rpegc.target import BoolArray, Columns, FloatArray

_BF16_BYTES = 2.0
_FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes per GPU and row: weights, workspace, KV cache (0 where the first two leave nothing)."""

    weights: FloatArray
    workspace: FloatArray
    kv_cache: FloatArray

    def sequences(self, architecture: Architecture, shape: EngineShape, tokens: float) -> FloatArray:
        """Return the sequences of `tokens` tokens that fit where windows and states make the cache uneven."""
        degrees, row = np.unique(shape.tp, return_inverse=True)
        element = shape.kv_bytes[0] if len(shape.kv_bytes) else 2.0
        each = np.array([architecture.sequence_bytes_per_rank(tokens, int(tp), float(element)) for tp in degrees])
        return np.asarray(self.kv_cache * shape.pp / each[row])

    def tokens(self, architecture: Architecture, shape: EngineShape) -> FloatArray:
        """Return the tokens that one engine's KV cache holds; every rank keeps its heads of every token."""
        share = np.minimum(shape.tp, architecture.score_mixers[0].cache_heads) * shape.pp
        return self.kv_cache * share / (architecture.kv_elements_per_token * shape.kv_bytes)


def engine_memory(architecture: Architecture, machine: Machine, shape: EngineShape, layouts: Columns) -> EngineMemory:
    """Return what an engine's share of a GPU is used for.

    Weights: matrices split over tp, layers over pp, experts over the replica. Workspace: a base, plus the activation
    peak of a batch of `batched_tokens` (residual stream, widest MLP), plus the sampler's logits of `max_sequences`.
    """
    tables = architecture.embedding_parameters + architecture.head_parameters
    dense = (architecture.dense_parameters - tables) * shape.weight_bytes + tables * _BF16_BYTES
    experts = architecture.expert_parameters_total * shape.weight_bytes
    weights = (dense / shape.tp + experts / shape.group) / shape.pp
    routed = architecture.experts_per_token * architecture.expert_intermediate + architecture.shared_intermediate
    inner = max(mixer.matrices(architecture.hidden)[-1].depth for mixer in architecture.mixers)
    widest = max(architecture.intermediate if architecture.dense_layers else 0, routed)
    channels = 4.0 * architecture.hidden + (2.0 * widest + 2.0 * inner) / shape.tp
    activations = layouts["batched_tokens"] * channels * _BF16_BYTES
    logits = layouts["max_sequences"] * architecture.vocabulary * _FP32_BYTES * LOGIT_COPIES.value
    base = WORKSPACE_BASE_BYTES.value * np.where(shape.tp * shape.pp > 1, 1.0, ALONE_WORKSPACE_SHARE.value)
    workspace = base + activations + logits
    budget = layouts["memory_fraction"] * machine.accelerator.hbm_bytes.value
    return EngineMemory(weights, workspace, np.maximum(budget - weights - workspace, 0.0))


def sequence_slots(
    memory: EngineMemory,
    architecture: Architecture,
    shape: EngineShape,
    layouts: Columns,
    prompt: Lengths,
    response: Lengths,
) -> tuple[FloatArray, BoolArray]:
    """Return how many sequences one engine runs at once, and whether the layout can run at all.

    A running sequence reserves prompt plus *final* length: reserving the whole response reproduces published offline
    throughput (5.1 % median error) better than half of it (8.0 %); TensorRT-LLM performance overview 0.14 to 1.0.
    The mean final length of a running sequence is E[l^2] / E[l], since long ones run longer. An engine refuses to
    start when its cache cannot hold one sequence of maximum length (vLLM: max_model_len against the KV cache).
    """
    limit = layouts["max_sequences"].astype(np.float64)
    reserved = prompt.mean + response.second_moment / response.mean
    if not architecture.uniform_cache:
        slots = np.minimum(limit, np.floor(memory.sequences(architecture, shape, reserved)))
        return np.maximum(slots, 1.0), memory.sequences(architecture, shape, prompt.max + response.max) >= 1.0
    tokens = memory.tokens(architecture, shape)
    slots = np.minimum(limit, np.floor(tokens / reserved))
    return np.maximum(slots, 1.0), tokens >= prompt.max + response.max


def preempted_share(
    memory: EngineMemory,
    architecture: Architecture,
    shape: EngineShape,
    layouts: Columns,
    prompt: Lengths,
    response: Lengths,
    slots: FloatArray,
) -> FloatArray:
    """Return the share of sequences that lose their cache once and read it again, while others wait.

    vLLM admits sequences as long as their *present* tokens fit (prompt and E[l^2] / 2 E[l] on average) and preempts the
    youngest when the running ones outgrow the cache: of those admitted, slots can stay.
    """
    held = prompt.mean + response.second_moment / (2.0 * response.mean)
    if architecture.uniform_cache:
        admitted = memory.tokens(architecture, shape) / held
    else:
        admitted = memory.sequences(architecture, shape, held)
    admitted = np.minimum(np.maximum(np.floor(admitted), 1.0), layouts["max_sequences"])
    return np.asarray(np.maximum(1.0 - slots / admitted, 0.0))


def memory_terms(
    memory: EngineMemory, machine: Machine, shape: EngineShape, layouts: Columns, flags: frozenset[str]
) -> tuple[MemoryTerm, ...]:
    """Return the memory terms: the engine's share is held while it runs or, without sleep mode, always."""
    asleep = np.asarray(layouts["offload"]).astype(np.float64)
    source = "share of device memory that the layout grants the engine (vLLM gpu_memory_utilization)"
    parts = (
        ("engine_weights", memory.weights, "spec", "elements of the model's matrices"),
        ("engine_workspace", memory.workspace, WORKSPACE_BASE_BYTES.provenance, WORKSPACE_BASE_BYTES.source),
        ("kv_cache", memory.kv_cache, "spec", source),
    )
    terms = []
    for name, amount, provenance, origin in parts:
        terms.append(MemoryTerm(name, amount * asleep, "working", provenance, origin))
        terms.append(MemoryTerm(f"{name}_kept", amount * (1.0 - asleep), "resident", provenance, origin))
    rows = len(asleep)
    residue = np.full(rows, RESIDUE_BYTES.value)
    terms.append(MemoryTerm("engine_residue", residue, "resident", RESIDUE_BYTES.provenance, RESIDUE_BYTES.source))
    processes = np.full(rows, ENGINE_PROCESS_BYTES.value * shape.gpus_per_node)
    terms.append(
        MemoryTerm("engine_processes", processes, "host", ENGINE_PROCESS_BYTES.provenance, ENGINE_PROCESS_BYTES.source)
    )
    copies = memory.weights * shape.gpus_per_node * asleep * ("lora" in flags)
    terms.append(MemoryTerm("engine_sleep_copies", copies, "host", "spec", SLEEP_LEVEL_SOURCE))
    return tuple(terms)
