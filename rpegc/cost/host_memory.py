"""Host memory of train and forward stages, per node: offloaded states, worker processes, loading and checkpoints.

`node_terms` holds what a node needs once, whatever runs on it: its base load and Ray's object store.
"""

from __future__ import annotations

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.constants import (
    ADAM_BYTES,
    DATA_WORKER_BYTES,
    NODE_BASE_BYTES,
    PROCESS_BYTES,
    REWARD_WORKER_BYTES,
    SAMPLE_TOKEN_BYTES,
    STORE_DEFAULT_LIMIT_BYTES,
    STORE_DEFAULT_SHARE,
    STORE_MINIMUM_BYTES,
)
from rpegc.cost.model_state import LocalParameters, stored_bytes, updated_parameters, weight_bytes
from rpegc.cost.step_shape import StepShape
from rpegc.cost.table import MemoryTerm
from rpegc.cost.work import StageWork
from rpegc.hardware import Machine
from rpegc.target import FloatArray

PINNED = "PyTorch's pinned-memory allocator rounds each block up to a power of two"


def host_memory(shape: StepShape, local: LocalParameters) -> tuple[MemoryTerm, ...]:
    """Return the host terms of a stage, bytes per node of its mesh.

    A forward pass of a trained role runs inside the training engine, whose states are counted with the train stage.
    """
    if shape.work.trained and not shape.training:
        return ()
    gpus = float(shape.mesh.gpus_per_node)
    nothing = np.zeros(shape.rows)
    moved = shape.offload_parameters | shape.streams_weights
    parameters = np.where(moved, gpus * pinned_bytes(shape, local, weight_bytes(shape)), 0.0)
    terms = [MemoryTerm("offloaded_parameters", parameters, "host", "spec", PINNED)]
    if not shape.training:
        return tuple(terms)
    moments = _optimizer_bytes(shape, local)
    terms.append(
        MemoryTerm(
            "offloaded_optimizer", np.where(shape.offload_optimizer, gpus * moments, 0.0), "host", "spec", PINNED
        )
    )
    longest = np.maximum(shape.token_budget, shape.work.max_tokens / shape.sequence_ranks)
    inputs = 2.0 * longest * shape.architecture.hidden * shape.stage_layers
    terms.append(
        MemoryTerm(
            "offloaded_activations",
            np.where(shape.offload_activations, gpus * inputs, 0.0),
            "host",
            "assumed",
            "layer inputs of one micro-batch, 2 B T H a layer",
        )
    )
    processes = nothing + gpus * PROCESS_BYTES.value
    terms.append(MemoryTerm("processes", processes, "host", PROCESS_BYTES.provenance, PROCESS_BYTES.source))
    return (*terms, _passing(shape, local, terms))


def pinned_bytes(shape: StepShape, local: LocalParameters, bytes_per_weight: FloatArray) -> FloatArray:
    """Return the pinned host bytes of one GPU's weight shards.

    Engines of class fsdp copy every tensor by itself: each shard takes the next power of two. Others copy one buffer.
    """
    shards = np.where(shape.fully_sharded, shape.shard, 1.0)
    if shape.work.engine_class != "fsdp":
        return bytes_per_weight * local.total / shards
    total = np.zeros(shape.rows)
    for count, elements in weight_tensors(shape.architecture):
        shard = np.maximum(bytes_per_weight * elements / (shards * shape.tp), 1.0)
        total += count * np.exp2(np.ceil(np.log2(shard)))
    return total / shape.pp


def _optimizer_bytes(shape: StepShape, local: LocalParameters) -> FloatArray:
    """Host bytes of one GPU's optimizer state: two FP32 moments, and an FP32 master copy beside BF16 weights."""
    half = np.full(shape.rows, 0.5 * ADAM_BYTES.value)
    copies = np.where(shape.fully_sharded, 2.0, 3.0)
    slice_share = local.total / np.where(shape.fully_sharded, shape.shard, 1.0)
    return copies * pinned_bytes(shape, local, half) * updated_parameters(shape, local) / slice_share


def weight_tensors(architecture: Architecture) -> tuple[tuple[int, int], ...]:
    """Return (count, elements) of the weight tensors of a Hugging Face model, norms and biases left out.

    Experts are stacked: one tensor of gate and up, one of down per layer (transformers 5).
    """
    a = architecture
    tensors = [(mixer.layers, elements) for mixer in a.mixers for elements in mixer.tensors(a.hidden)]
    tensors += [
        (a.mlp_matrices * a.dense_layers, a.hidden * a.intermediate),
        (1 if a.tied_embeddings else 2, a.embedding_parameters),
    ]
    if a.moe_layers:
        stacked = a.experts * a.expert_depth * a.expert_intermediate
        tensors += [
            (a.moe_layers, (a.mlp_matrices - 1) * stacked),
            (a.moe_layers, stacked),
            (a.moe_layers, a.router_parameters),
            (a.mlp_matrices * a.moe_layers, a.hidden * a.shared_intermediate),
            (2 * a.moe_layers, a.hidden * a.expert_hidden),
        ]
    return tuple((count, elements) for count, elements in tensors if count and elements)


def _passing(shape: StepShape, local: LocalParameters, terms: list[MemoryTerm]) -> MemoryTerm:
    """What a node needs for a while beyond its steady load: loading the model, or the copy of a checkpoint.

    verl's FSDP engines load the whole model in FP32 on the first rank of each shard group, on every rank if the
    embeddings are tied (get_init_weight_context_manager in utils/fsdp_utils.py of verl 0.9.1), before anything of this
    role is offloaded. Megatron loads each rank's slice. A checkpoint copies shards that lie on the GPU.
    """
    gpus = float(shape.mesh.gpus_per_node)
    steady = sum((term.bytes for term in terms if term.name.startswith("offloaded_")), start=np.zeros(shape.rows))
    whole = float(shape.architecture.parameters_with_head(shape.work.head))
    if shape.work.engine_class == "fsdp":
        loaders = np.maximum(np.floor(gpus / shape.shard), 1.0)
        loaders = np.full(shape.rows, gpus) if shape.architecture.tied_embeddings else loaders
        loading = shape.constants.master_bytes.value * whole * loaders
    else:
        loading = 2.0 * local.total * gpus
    moments = np.where(shape.offload_optimizer, 0.0, ADAM_BYTES.value * updated_parameters(shape, local))
    weights = np.where(shape.offload_parameters, 0.0, stored_bytes(shape, local))
    beyond = np.maximum(loading - steady, gpus * (moments + weights))
    source = "the larger of loading the model and copying a checkpoint to the host"
    return MemoryTerm("loading_or_checkpoint", np.maximum(beyond, 0.0), "host", "spec", source)


def sleep_copy_bytes(weight_bytes_per_gpu: float, gpus_per_node: int) -> float:
    """Return the host bytes per node of an engine that keeps its weights on the host while it sleeps.

    vLLM's sleep level 1 copies weights to pinned memory and drops the KV cache; level 2 keeps neither (0 here).
    """
    return weight_bytes_per_gpu * gpus_per_node


def object_store_bytes(work: StageWork, machine: Machine) -> float:
    """Return the object store to set per node (`ray start --object-store-memory`).

    Twice the step's samples at their longest, all on one node, times the steps in flight; at least 8 GiB, at most what
    Ray would take by itself (30 % of the node, 200 GB).
    """
    samples = work.sequences * work.max_tokens * SAMPLE_TOKEN_BYTES.value * work.samples_in_flight_steps
    limit = min(STORE_DEFAULT_SHARE.value * machine.host_bytes.value, STORE_DEFAULT_LIMIT_BYTES.value)
    return min(max(2.0 * samples, STORE_MINIMUM_BYTES.value), limit)


def node_terms(store_bytes: float, data_workers: int = 8, reward_workers: int = 0) -> tuple[MemoryTerm, ...]:
    """Return what a node needs once, as terms of one row: base load, object store, data and reward processes."""
    figures = (
        ("node_base", NODE_BASE_BYTES.value, NODE_BASE_BYTES.provenance, NODE_BASE_BYTES.source),
        ("object_store", store_bytes, "spec", "the value that we emit: see `object_store_bytes`"),
        (
            "data_workers",
            data_workers * DATA_WORKER_BYTES.value,
            DATA_WORKER_BYTES.provenance,
            DATA_WORKER_BYTES.source,
        ),
        (
            "reward_workers",
            reward_workers * REWARD_WORKER_BYTES.value,
            REWARD_WORKER_BYTES.provenance,
            REWARD_WORKER_BYTES.source,
        ),
    )
    return tuple(
        MemoryTerm(name, np.array([value]), "host", provenance, source) for name, value, provenance, source in figures
    )
