"""Device memory of train and forward stages, per GPU, at the longest lengths and full token budgets.

`weights` and `resident` bytes stay while other stages run on the GPU; `working` bytes live only during the stage. An
offloaded state is working memory here and host memory in `rpegc.cost.host_memory`.
"""

from __future__ import annotations

import numpy as np

from rpegc.cost.constants import (
    ADAM_BYTES,
    FRAGMENTATION_SHARE,
    FRAMEWORK_BYTES,
    GATHERED_LAYERS,
    GRADIENT_BYTES,
    MEMORY_ROWS,
)
from rpegc.cost.layer import inner_width, mixer_channels
from rpegc.cost.model_state import LocalParameters, stored_bytes, updated_parameters
from rpegc.cost.step_shape import StepShape
from rpegc.cost.table import MemoryTerm
from rpegc.lengths import GROUP_CORRELATION
from rpegc.target import FloatArray

KEPT = "reshard_after_forward=False: FSDP2 frees gathered weights after a backward pass only (run with torch 2.13)"

VERL_LINEAR_WORKLOAD = 24576.0
"""verl packs micro-batches of equal workload s (24576 + s): calculate_workload, utils/seqlen_balancing.py, 0.9.1."""

LARGEST_MICRO_BATCH = 3.0
"""Standard deviations: one micro-batch in 700 is larger, about the number in a run's first steps."""


def device_memory(shape: StepShape, local: LocalParameters) -> tuple[MemoryTerm, ...]:
    """Return the memory terms on one GPU, bytes per layout."""
    tokens = peak_tokens(shape)
    stay = ~shape.offload_parameters & (not shape.streams_weights)
    weights = stored_bytes(shape, local)
    onload = np.where(shape.offload_parameters & (not shape.streams_weights), weights, 0.0)
    terms = [
        MemoryTerm("weights", np.where(stay, weights, 0.0), "weights", "spec", _weights_source(shape)),
        MemoryTerm("weights_onloaded", onload, "working", "spec", "offloaded weights while the stage runs"),
    ]
    if shape.training:
        terms += _training_states(shape, local)
    gathered = gathered_bytes(shape, local)
    # Without a backward pass nothing reshards what ZeRO 2 gathered: it stays on the GPU when the stage has ended.
    stays = (shape.zero == 2) & shape.fully_sharded & (not shape.training)
    terms.append(MemoryTerm("gathered_weights_kept", np.where(stays, gathered, 0.0), "resident", "spec", KEPT))
    working = {
        "gathered_weights": (
            np.where(stays, 0.0, gathered),
            "spec",
            "weights gathered for use (FSDP2); " + MEMORY_ROWS,
        ),
        "activations": (activation_bytes(shape, tokens), "fitted", MEMORY_ROWS),
        "logits": (_beside_layer(shape, tokens, logit_bytes(shape, tokens)), *_logit_source(shape)),
    }
    terms += [MemoryTerm(name, value, "working", known, source) for name, (value, known, source) in working.items()]
    slack = FRAGMENTATION_SHARE.value * sum((value for value, _, _ in working.values()), start=np.zeros(shape.rows))
    terms.append(
        MemoryTerm("fragmentation", slack, "working", FRAGMENTATION_SHARE.provenance, FRAGMENTATION_SHARE.source)
    )
    return (*terms, _framework(shape))


def peak_tokens(shape: StepShape) -> FloatArray:
    """Return the most tokens that one GPU holds of one micro-batch.

    A packed micro-batch fills its budget, and holds the longest sequence; a counted one holds that many of the longest.
    verl removes padding, so a counted one holds the sum of its lengths.
    verl packs by workload, so a micro-batch of short sequences exceeds the mean token count by the ratio of workloads.
    """
    longest = shape.work.max_tokens / shape.sequence_ranks
    per_rank = np.ceil(shape.sequences_per_update / shape.dp)
    budget, update = shape.token_budget, per_rank * longest
    counted = np.minimum(np.maximum(shape.micro_batch, 1.0), per_rank)
    if shape.work.framework == "verl":
        mean = shape.work.mean_tokens
        budget = budget * (VERL_LINEAR_WORKLOAD + shape.span) / (VERL_LINEAR_WORKLOAD + mean)
        counted, update = unpadded_tokens(shape, counted, longest), unpadded_tokens(shape, per_rank, longest)
    else:
        counted = counted * longest
    packed = np.maximum(np.minimum(budget, update), longest)
    return np.where(shape.token_budget > 0, packed, counted)


def unpadded_tokens(shape: StepShape, sequences: FloatArray, longest: FloatArray) -> FloatArray:
    """Return the tokens of one GPU's largest micro-batch of that many sequences without padding.

    n lengths sum to n E[s] with a deviation of sd(s) sqrt(n (1 + (g - 1) rho)), where the g <= n samples of a prompt
    are correlated by rho; `LARGEST_MICRO_BATCH` deviations above the mean, at least one longest sequence, at most n.
    """
    work = shape.work
    mean = work.mean_tokens
    deviation = np.sqrt(max(shape.span * mean - mean * mean, 0.0))
    group = np.minimum(sequences, float(work.samples_per_prompt))
    spread = LARGEST_MICRO_BATCH * deviation * np.sqrt(sequences * (1.0 + (group - 1.0) * GROUP_CORRELATION))
    tokens = (sequences * mean + spread) / shape.sequence_ranks
    return np.asarray(np.maximum(np.minimum(tokens, sequences * longest), longest), dtype=np.float64)


def gathered_bytes(shape: StepShape, local: LocalParameters) -> FloatArray:
    """Return the bytes of unsharded weights and gradients.

    ZeRO 3: two layers and both ends in BF16, and one layer's FP32 gradients. ZeRO 2 keeps every layer from forward to
    backward, and for good where no backward pass follows. A pipeline keeps its stage's BF16 weights and FP32 gradients
    between micro-batches.
    """
    a = shape.architecture
    ends = (
        a.parameters_with_head(shape.work.head) - a.parameters_with_head("none") + a.embedding_parameters
    ) / shape.tp
    layer = np.maximum(local.total - ends, 0.0) / shape.stage_layers
    by_layer = 2.0 * (GATHERED_LAYERS.value * layer + ends)
    everything = 2.0 * local.total
    whole = np.where(shape.zero == 2, np.maximum(everything, by_layer), by_layer)
    gradient = GRADIENT_BYTES.value if shape.training else 0.0
    trained_share = local.trained / local.total
    one_layer = gradient * layer * trained_share
    pipelined = everything + gradient * local.trained
    return np.where(shape.fully_sharded, np.where(shape.pp > 1, pipelined, whole + one_layer), 0.0)


def activation_bytes(shape: StepShape, tokens: FloatArray) -> FloatArray:
    """Return the bytes of activations at the peak.

    Recompute full: 2 B T H per layer kept (unless offloaded), and the layer being recomputed (`layer_bytes`).
    Recompute none: 2 B T (5 H + 2 (h + kv) d + 3 I) per layer; a MoE layer keeps K (H + 3 Im) of its experts (their
    outputs are scaled before the last product). Selective keeps a share of it. A pipeline stage holds
    min(pp, micro-batches) of them, interleaved with vpp chunks 1 + (pp - 1)/(pp vpp) times as much (arXiv 2205.05198,
    section 4.2.3). A pass without backward holds half a layer's.
    """
    a = shape.architecture
    split = np.where(shape.sequence_parallel, shape.tp, 1.0)
    one_layer = layer_bytes(shape, tokens)
    if not shape.training:
        return 0.5 * one_layer + 4.0 * tokens * a.hidden / split
    dense, moe = a.dense_layers / a.layers, a.moe_layers / a.layers
    interleaved = np.where(shape.vpp > 1, 1.0 + (shape.pp - 1.0) / (shape.pp * shape.vpp), 1.0)
    in_flight = np.minimum(shape.pp * interleaved, shape.micro_batches) * shape.stage_layers
    kept = 2.0 * tokens * a.hidden / split * np.where(shape.offload_activations, 2.0, in_flight)
    routed = a.experts_per_token * (a.expert_depth + 3.0 * a.expert_intermediate)
    mlp = dense * 3.0 * a.intermediate + moe * (routed + 3.0 * a.shared_intermediate)
    per_token = 5.0 * a.hidden / split + (mixer_channels(a) + mlp) / shape.tp
    share = np.where(shape.recompute_selective, shape.constants.selective_memory.value, 1.0)
    everything = 2.0 * tokens * per_token * in_flight * share
    return np.where(shape.recompute_full, kept + one_layer, everything)


def layer_bytes(shape: StepShape, tokens: FloatArray) -> FloatArray:
    """Return the bytes of one layer in its backward pass, all its activations and their gradients: B per channel.

    Channels: H and those of query, key and value; I of the MLP (K Im and the shared expert's of a MoE layer); K H of
    the routed copies. Tensor parallelism gathers the inputs of a split sequence: 4 B T H more.
    """
    a, c = shape.architecture, shape.constants
    split = np.where(shape.sequence_parallel, shape.tp, 1.0)
    common = c.token_memory.value * (a.hidden / split + (mixer_channels(a) - inner_width(a)) / shape.tp)
    gathered = np.where(split > 1.0, 4.0 * a.hidden, 0.0)
    dense = c.mlp_memory.value * a.intermediate if a.dense_layers else 0.0
    width = a.experts_per_token * a.expert_intermediate + a.shared_intermediate
    routed = c.mlp_memory.value * width + c.route_memory.value * a.experts_per_token * a.expert_depth
    return tokens * (common + gathered + max(dense, routed if a.moe_layers else 0.0) / shape.tp)


def logit_bytes(shape: StepShape, tokens: FloatArray) -> FloatArray:
    """Return the bytes of logits and what the loss keeps of them: bytes per logit times T V / tp."""
    if shape.work.head != "logits":
        return np.zeros(shape.rows)
    c = shape.constants
    each = c.logit_memory_train.value if shape.training else c.logit_memory_forward.value
    return each * tokens * shape.architecture.vocabulary / shape.tp


def _beside_layer(shape: StepShape, tokens: FloatArray, logits: FloatArray) -> FloatArray:
    """Return the bytes of logits beyond the room that recomputing a layer needs anyway.

    Under full recompute no layer is held while the loss is; the constants of pretraining frameworks were fitted to the
    sum of both, those of verl's loss are counted from its code.
    """
    if shape.work.framework != "verl" or not shape.training:
        return logits
    return np.where(shape.recompute_full, np.maximum(logits - layer_bytes(shape, tokens), 0.0), logits)


def _training_states(shape: StepShape, local: LocalParameters) -> list[MemoryTerm]:
    """Gradients and optimizer state. FSDP frees gradients after the stage; Megatron keeps their buffer."""
    sharded = shape.fully_sharded
    partitioned = sharded | (shape.zero >= 2)  # ZeRO 2 without sharded weights: DeepSpeed
    whole = shape.constants.gradient_bytes.value / np.where(partitioned, shape.ranks, 1.0)
    gradients = local.trained * np.where(sharded, GRADIENT_BYTES.value / shape.shard, whole)
    keeps = ~partitioned & ~shape.offload_parameters
    per_weight = ADAM_BYTES.value + np.where(sharded, 0.0, 4.0)  # beside BF16 weights stands an FP32 master copy
    optimizer = per_weight * updated_parameters(shape, local)
    offloaded = shape.offload_optimizer
    onloaded = offloaded & (not shape.constants.host_update)
    source = "two FP32 moments, and an FP32 master copy where weights are BF16"
    return [
        MemoryTerm("gradients", np.where(keeps, 0.0, gradients), "working", "spec", GRADIENT_BYTES.source),
        MemoryTerm("gradient_buffer", np.where(keeps, gradients, 0.0), "resident", "spec", GRADIENT_BYTES.source),
        MemoryTerm("optimizer", np.where(offloaded, 0.0, optimizer), "resident", "spec", source),
        MemoryTerm("optimizer_onloaded", np.where(onloaded, optimizer, 0.0), "working", "spec", source),
    ]


def _framework(shape: StepShape) -> MemoryTerm:
    """Context and workspaces of the process: the training stage keeps them; its own forward passes share them."""
    value = 0.0 if shape.work.trained and not shape.training else FRAMEWORK_BYTES.value
    residence = "resident" if shape.training else "working"
    figure = FRAMEWORK_BYTES
    return MemoryTerm("framework", np.full(shape.rows, value), residence, figure.provenance, figure.source)


def _weights_source(shape: StepShape) -> str:
    if shape.streams_weights:
        return "verl keeps models that only run forward in host memory (workers/engine/fsdp/transformer_impl.py)"
    return "FP32 shards of trained models (FSDP2), BF16 otherwise"


def _logit_source(shape: StepShape) -> tuple[str, str]:
    c = shape.constants
    figure = c.logit_memory_train if shape.training else c.logit_memory_forward
    return figure.provenance, figure.source
