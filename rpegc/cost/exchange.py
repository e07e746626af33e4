"""Communication of one layer, micro-batch or update, as (seconds on the wire, seconds exposed), one per layout.

Mesh order is tp innermost, then the sequence ranks, then data parallelism, pipeline stages outermost.
"""

from __future__ import annotations

import numpy as np

from rpegc.cost.collectives import collective_seconds
from rpegc.cost.constants import LAYER_GATHER_S, QUANTIZED_GRADIENT_BYTES, QUANTIZED_WEIGHT_BYTES
from rpegc.cost.framework import expert_exposed, tensor_exposed
from rpegc.cost.model_state import LocalParameters, stored_bytes
from rpegc.cost.roofline import elementwise_seconds
from rpegc.cost.step_shape import StepShape
from rpegc.target import FloatArray

Exchange = tuple[FloatArray, FloatArray]
"""Seconds on the wire, and the part of them that nothing covers."""


def members_per_node(shape: StepShape, members: FloatArray, stride: FloatArray | float) -> FloatArray:
    """Return how many of a group's members share a node, when neighbours in the group are `stride` ranks apart.

    Below 1 where neighbours lie several nodes apart.
    """
    share = shape.mesh.gpus_per_node / stride
    return np.minimum(np.where(share >= 1.0, np.floor(share), share), members)


def exposed_seconds(wire: FloatArray, share: float, cover_s: FloatArray) -> FloatArray:
    """Return what computation of `cover_s` seconds leaves exposed: a share of what it could cover, and the rest."""
    return wire - (1.0 - share) * np.minimum(wire, cover_s)


def tensor_parallel(shape: StepShape) -> Exchange:
    """Per layer and direction: two all-gathers and two reduce-scatters (or two all-reduces) of 2 T H bytes.

    One each for the mixer and for the MLP of a layer, where it has them.
    """
    if np.all(shape.tp == 1):
        return np.zeros(shape.rows), np.zeros(shape.rows)
    full = 2.0 * shape.tokens * shape.architecture.hidden
    local = members_per_node(shape, shape.tp, 1.0)
    gather = collective_seconds(shape.machine, "all_gather", full, shape.tp, local)
    scatter = collective_seconds(shape.machine, "reduce_scatter", full, shape.tp, local)
    a = shape.architecture
    blocks = (a.mixer_layers + a.layers - a.bare_layers) / a.layers
    wire = np.where(shape.tp > 1, blocks * (gather + scatter), 0.0)
    return wire, wire * tensor_exposed(shape.constants, shape.work.engine_flags)


def context_parallel(shape: StepShape, attention_s: FloatArray) -> Exchange:
    """Per layer and direction: the other ranks' keys and values (2 B each) pass by; attention may cover them."""
    if np.all(shape.cp == 1):
        return np.zeros(shape.rows), np.zeros(shape.rows)
    a = shape.architecture
    full = 2.0 * shape.tokens * shape.cp * 2.0 * a.kv_heads * a.head_dim / shape.tp
    local = members_per_node(shape, shape.cp, shape.tp)
    wire = np.where(shape.cp > 1, collective_seconds(shape.machine, "all_gather", full, shape.cp, local), 0.0)
    wire = wire * (a.mixer_layers / a.layers)
    return wire, exposed_seconds(wire, shape.constants.context_exposed.value, attention_s)


def ulysses(shape: StepShape) -> Exchange:
    """Per layer and direction: four all-to-alls (query, key, value, output) turn a split of tokens into one of heads.

    Source: DeepSpeed-Ulysses, arXiv 2309.14509. Key and value heads fewer than ranks are repeated first.
    """
    if np.all(shape.ulysses == 1):
        return np.zeros(shape.rows), np.zeros(shape.rows)
    a = shape.architecture
    local = members_per_node(shape, shape.ulysses, shape.tp)
    per_head = 2.0 * shape.tokens * a.head_dim / shape.tp
    whole = collective_seconds(shape.machine, "all_to_all", per_head * a.heads, shape.ulysses, local)
    kv_heads = np.maximum(float(a.kv_heads), shape.ulysses)
    part = collective_seconds(shape.machine, "all_to_all", per_head * kv_heads, shape.ulysses, local)
    wire = np.where(shape.ulysses > 1, 2.0 * (whole + part), 0.0) * (a.mixer_layers / a.layers)
    return wire, wire * shape.constants.ulysses_exposed.value


def expert_parallel(shape: StepShape) -> Exchange:
    """Per layer (averaged over all) and direction: dispatch and combine, 2 T K H / tp bytes each.

    Over N nodes a token is sent once to each node that holds one of its K experts: N (1 - (1 - 1/N)^K) copies, of
    which (N - 1) / N leave the node through the network card; inside one node NVLink carries all copies.
    """
    a = shape.architecture
    if not a.experts or np.all(shape.ep == 1):
        return np.zeros(shape.rows), np.zeros(shape.rows)
    machine = shape.machine
    domain = max(float(machine.nvlink_domain_gpus), shape.mesh.gpus_per_node)
    per_node = np.clip(np.floor(domain / shape.etp), 1.0, shape.ep)
    if domain <= machine.gpus_per_node:
        per_node = np.maximum(members_per_node(shape, shape.ep, shape.etp), 1.0)
    nodes = np.maximum(shape.ep / per_node, 1.0)
    token = 2.0 * shape.tokens / shape.tp * a.expert_depth
    inside = 2.0 * collective_seconds(machine, "all_to_all", token * a.experts_per_token, per_node, per_node)
    copies = nodes * (1.0 - (1.0 - 1.0 / nodes) ** a.experts_per_token) * (nodes - 1.0) / nodes
    outside = 2.0 * token * copies / (machine.nic_bandwidth.value * machine.nic_efficiency.value)
    wire = np.where(shape.ep > 1, np.where(nodes > 1, np.maximum(inside, outside), inside), 0.0)
    exposed = expert_exposed(shape.constants, shape.work.engine_flags, nodes > 1)
    share = a.moe_layers / a.layers
    return share * wire, share * wire * exposed


def fully_sharded(shape: StepShape, local: LocalParameters, compute_s: FloatArray) -> Exchange:
    """Per micro-batch: all-gathers of 2 B a weight, in training one reduce-scatter of 4 B, plus 120 us a layer.

    Gathers: two in training (forward and backward), one when weights are kept from forward to backward (zero 2); a
    pass without backward gathers once per micro-batch, with zero 2 once in all. Groups smaller than the data ranks
    (HSDP) all-reduce their gradient shards with the other groups. `compute_s` is what may cover them.
    """
    keeps = shape.zero == 2
    weights = local.dense + local.experts
    trained = local.trained
    shard_local = members_per_node(shape, shape.shard, shape.tp)
    weight, gradient = _wire_bytes(shape)
    gather = collective_seconds(shape.machine, "all_gather", weight * weights, shape.shard, shard_local)
    gather = gather + _quantising_seconds(shape, weights)
    fixed = np.where(shape.shard > 1, LAYER_GATHER_S.value * shape.stage_layers, 0.0)
    reduced = np.zeros(shape.rows)
    if shape.training:
        groups = np.maximum(shape.ranks / shape.shard, 1.0)
        group_local = members_per_node(shape, groups, shape.tp * shape.shard)
        reduced = collective_seconds(shape.machine, "reduce_scatter", gradient * trained, shape.shard, shard_local)
        reduced += collective_seconds(
            shape.machine, "all_reduce", gradient * trained / shape.shard, groups, group_local
        )
        gathered = np.where(shape.shard > 1, np.where(keeps, 1.0, 2.0) * gather + fixed, 0.0)
    else:
        gathered = np.where(shape.shard > 1, gather + fixed, 0.0) / np.where(keeps, shape.micro_batches, 1.0)
    gathered = np.where(shape.fully_sharded, gathered, 0.0)
    reduced = np.where(shape.fully_sharded, reduced, 0.0)
    exposed = exposed_seconds(gathered, shape.constants.gather_exposed.value, compute_s)
    cover = np.maximum(compute_s - (gathered - exposed), 0.0)
    return gathered + reduced, exposed + exposed_seconds(reduced, shape.constants.reduce_exposed.value, cover)


def _wire_bytes(shape: StepShape, gradient_bytes: float = 4.0) -> tuple[float, float]:
    """Return bytes on the wire per weight gathered and per gradient reduced: BF16 and FP32, or those of ZeRO++."""
    if "quantized_collectives" in shape.work.engine_flags:
        return QUANTIZED_WEIGHT_BYTES.value, QUANTIZED_GRADIENT_BYTES.value
    return 2.0, gradient_bytes


def _quantising_seconds(shape: StepShape, weights: FloatArray) -> FloatArray:
    """Return the seconds to round what is sent and to restore what arrives: 2 + 1 and 1 + 2 bytes a weight."""
    if "quantized_collectives" not in shape.work.engine_flags:
        return np.zeros(shape.rows)
    return elementwise_seconds(shape.machine, 3.0 * weights / shape.shard + 3.0 * weights)


def streamed_weights(shape: StepShape, local: LocalParameters, compute_s: FloatArray) -> Exchange:
    """Per micro-batch of a model whose FP32 shards stay on the host: the copy to the GPU before each gather."""
    if not shape.streams_weights:
        return np.zeros(shape.rows), np.zeros(shape.rows)
    wire = stored_bytes(shape, local) / shape.machine.host_to_device_bandwidth.value
    wire = wire / np.where(shape.zero == 2, shape.micro_batches, 1.0)
    return wire, exposed_seconds(wire, shape.constants.gather_exposed.value, compute_s)


def gradients(shape: StepShape, local: LocalParameters, micro_batch_s: FloatArray) -> Exchange:
    """Per update without full sharding: reduce-scatter of gradients (4 B a parameter), all-gather of weights (2 B).

    Without ZeRO one all-reduce of the gradients. Experts reduce in their own group of ranks * tp / (ep * etp). Only
    one micro-batch can cover them.
    """
    machine, tp = shape.machine, shape.tp
    weight, gradient = _wire_bytes(shape, shape.constants.gradient_bytes.value)
    expert_ranks = np.maximum(shape.ranks * tp / (shape.ep * shape.etp), 1.0)
    parts = (
        (local.trained_dense, shape.ranks, members_per_node(shape, shape.ranks, tp)),
        (local.trained_experts, expert_ranks, members_per_node(shape, expert_ranks, shape.ep * shape.etp)),
    )
    wire = np.zeros(shape.rows)
    for parameters, members, inside in parts:
        if not np.any(parameters > 0):
            continue
        both = np.zeros(shape.rows)
        if np.any(shape.zero > 0):
            both = both + collective_seconds(machine, "reduce_scatter", gradient * parameters, members, inside)
            both = both + collective_seconds(machine, "all_gather", weight * parameters, members, inside)
        if np.any(shape.zero == 0):
            whole = collective_seconds(machine, "all_reduce", gradient * parameters, members, inside)
            both = np.where(shape.zero == 0, whole, both)
        wire += np.where((members > 1) & (parameters > 0), both, 0.0)
    wire = np.where(shape.fully_sharded, 0.0, wire)
    return wire, exposed_seconds(wire, shape.constants.data_exposed.value, micro_batch_s)


def point_to_point(shape: StepShape) -> Exchange:
    """Per update: 2 (m vpp + pp - 1) messages of 2 T H / tp bytes between stages; half of them without backward.

    Ranks of a tensor-parallel group hold the same activations; each sends a part (arXiv 2104.04473, section 4.1).
    """
    if np.all(shape.pp == 1):
        return np.zeros(shape.rows), np.zeros(shape.rows)
    message = 2.0 * shape.tokens * shape.architecture.hidden / shape.tp
    stage_gpus = shape.ranks * shape.tp
    share = shape.mesh.gpus_per_node / stage_gpus
    inside = np.where(share > 1.0, 2.0, share)
    one = collective_seconds(shape.machine, "send", message, np.full(shape.rows, 2.0), inside)
    directions = 2.0 if shape.training else 1.0
    wire = np.where(shape.pp > 1, directions * (shape.micro_batches * shape.vpp + shape.pp - 1.0) * one, 0.0)
    return wire, wire * shape.constants.point_to_point_exposed.value
