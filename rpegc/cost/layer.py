"""Computation of one layer on one GPU for one micro-batch: matrix products, attention, element-wise work, experts.

Each function returns seconds (forward, backward), one element per layout.
"""

from __future__ import annotations

import numpy as np

from rpegc.architecture import Architecture
from rpegc.cost.constants import (
    ATTENTION_BACKWARD,
    ELEMENTWISE_BACKWARD,
    FP8_CAST_BYTES,
    FP8_ROWWISE_SPEEDUP,
    GROUPED_GEMM_SHARE,
    KERNEL_LAUNCH_S,
    KERNELS_PER_LAYER,
    KERNELS_PER_MOE_LAYER,
    NVFP4_SPEEDUP,
    OFFSET_SCORE_BYTES,
    UNFUSED_SCORE_SHARE,
)
from rpegc.cost.framework import attention_asymptote
from rpegc.cost.gemm import gemm_seconds
from rpegc.cost.roofline import attention_forward_seconds, elementwise_seconds
from rpegc.cost.step_shape import StepShape
from rpegc.hardware import Figure
from rpegc.target import FloatArray, IntArray

Seconds = tuple[FloatArray, FloatArray]


def linear_shapes(shape: StepShape) -> tuple[tuple[float, FloatArray, FloatArray], ...]:
    """Return (occurrences per layer, output width, input width) of a layer's dense matrices as one GPU holds them.

    Tensor parallelism splits the outputs of a mixer's and the MLP's first matrices, the inputs of the others. A model
    of mixed layers counts each kind by its share.
    """
    a, tp = shape.architecture, shape.tp
    hidden = np.full(shape.rows, float(a.hidden))
    dense, moe = a.dense_layers / a.layers, a.moe_layers / a.layers
    shapes: list[tuple[float, FloatArray, FloatArray]] = []
    for mixer in a.mixers:
        for matrix in mixer.matrices(a.hidden):
            outputs = matrix.width / np.where(matrix.split == "width", tp, 1.0)
            inputs = matrix.depth / np.where(matrix.split == "depth", tp, 1.0)
            shapes.append((mixer.layers / a.layers, outputs, inputs))
    if a.expert_hidden and moe > 0:
        latent = np.full(shape.rows, float(a.expert_hidden))
        shapes += [(moe, latent, hidden), (moe, hidden, latent)]
    for share, width in ((dense, a.intermediate), (moe, a.shared_intermediate)):
        if share > 0 and width > 0:
            shapes += [(share, (a.mlp_matrices - 1) * width / tp, hidden), (share, hidden, width / tp)]
    return tuple(shapes)


def gemm(shape: StepShape) -> Seconds:
    """Matrix products of attention projections and dense MLPs: 2 m n k at the curve of the GPU's GEMM.

    Backward = the input's gradient (m, k, n) and the weight's (n, k, m); adapters leave the latter out. The flags
    "fp8", "fp8_rowwise" and "nvfp4" raise the asymptote.
    """
    return _products(shape, shape.tokens, linear_shapes(shape), fp8_speedup(shape))


def _products(
    shape: StepShape,
    tokens: FloatArray,
    matrices: tuple[tuple[float, FloatArray, FloatArray], ...],
    speedup: float,
    groups: FloatArray | None = None,
) -> Seconds:
    """Return seconds of products with matrices (occurrences, output width, input width), as one call of the curve.

    Backward = the input's gradient (tokens, in, out) and, without adapters, the weight's (out, in, tokens). Layouts
    that differ in neither sizes nor `groups` are priced once.
    """
    sizes = [(share, tokens, out, into) for share, out, into in matrices]
    count = len(sizes)
    if shape.training:
        sizes += [(share, tokens, into, out) for share, out, into in matrices]
        if not shape.work.lora_rank:
            sizes += [(share, out, into, tokens) for share, out, into in matrices]
    varying = [tokens, *(width for _, *widths in matrices for width in widths), *(() if groups is None else (groups,))]
    first, again = distinct_rows(varying)
    table = np.empty((3, len(sizes), len(first)))
    for row, (_, *size) in enumerate(sizes):
        for axis, values in enumerate(size):
            table[axis, row] = values[first]
    m, n, k = table
    each = gemm_seconds(shape.machine, m, n, k, speedup=speedup, groups=1.0 if groups is None else groups[first])
    each = each * np.array([size[0] for size in sizes])[:, None]
    return np.sum(each[:count], axis=0)[again], np.sum(each[count:], axis=0)[again]


def distinct_rows(columns: list[FloatArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of every distinct combination of values, and for every row the number of its combination."""
    rows = len(columns[0])
    if rows == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    key = np.zeros(rows, dtype=np.int64)
    for column in columns:
        if column.min() != column.max():
            values, codes = np.unique(column, return_inverse=True)
            key = key * len(values) + codes
    _, first, again = np.unique(key, return_index=True, return_inverse=True)
    return first, again


def fp8_speedup(shape: StepShape) -> float:
    """Return FP8 over BF16 asymptote of the dense products (by tensor or block, by row), that of NVFP4, or 1."""
    if "nvfp4" in shape.work.engine_flags:
        return NVFP4_SPEEDUP.value
    if "fp8_rowwise" in shape.work.engine_flags:
        return FP8_ROWWISE_SPEEDUP.value
    return shape.constants.fp8_gemm.value if "fp8" in shape.work.engine_flags else 1.0


def casts(shape: StepShape) -> Seconds:
    """Casting inputs to FP8: 3 B (BF16 read, FP8 written) times 1.53 per element, at memory bandwidth.

    Elements per token and direction: (2 H + h d + I) / tp; of a MoE layer K (H + Im) for the experts, whose tokens are
    split over tp, and I of the shared expert. Source: fitted to FP8 training rows (the factor: scaling and transposes).
    """
    a = shape.architecture
    dense, moe = a.dense_layers / a.layers, a.moe_layers / a.layers
    width = dense * a.intermediate + moe * (
        a.shared_intermediate + a.experts_per_token * (a.expert_depth + a.expert_intermediate)
    )
    per_token = FP8_CAST_BYTES.value * 3.0 * (2.0 * a.hidden + width + inner_width(a)) / shape.tp
    forward = elementwise_seconds(shape.machine, per_token * shape.tokens)
    return forward, forward * shape.training


def inner_width(architecture: Architecture) -> float:
    """Return the mean width of what a layer's mixer hands to its output projection: heads times head width."""
    a = architecture
    return sum(mixer.layers / a.layers * mixer.matrices(a.hidden)[-1].depth for mixer in a.mixers)


def mixer_channels(architecture: Architecture) -> float:
    """Return the mean elements per token that a layer's mixer moves in element-wise kernels and keeps for backward."""
    return sum(mixer.layers / architecture.layers * mixer.channels for mixer in architecture.mixers)


def unfused_attention(shape: StepShape, heads: float, head_dim: float, score_bytes: tuple[Figure, Figure]) -> Seconds:
    """Attention without a fused kernel: two batched products over the whole square, and its traffic per score.

    4 h d s FLOP per token forward and twice that backward, at half of the GEMM asymptote; `score_bytes` for mask,
    softmax and dropout. Source: arXiv 2104.04473, 2205.05198; share of the asymptote assumed.
    """
    scores = shape.tokens * heads / shape.tp * shape.span
    rate = UNFUSED_SCORE_SHARE.value * shape.machine.accelerator.gemm_sustained.value
    products = 4.0 * scores * head_dim / rate
    forward, backward = (elementwise_seconds(shape.machine, each.value * scores) for each in score_bytes)
    return products + forward, (2.0 * products + backward) * shape.training


def attention(shape: StepShape) -> Seconds:
    """Fused causal attention: 4 heads * head_dim FLOP per token and attended position, of which each GPU has 1/tp.

    Context and Ulysses parallelism split the tokens (or the heads) of longer micro-batches: the work per token stays.
    Layers with a window attend to fewer positions; each kind of layer counts by its share. Where a framework's kernels
    do not fuse attention, or not that of windows with a learned softmax offset (flag "unfused_offset"),
    `unfused_attention` prices it.
    """
    a, constants = shape.architecture, shape.constants
    asymptote = attention_asymptote(constants, shape.machine.accelerator.name)
    forward, backward = np.zeros(shape.rows), np.zeros(shape.rows)
    for mixer in a.score_mixers:
        share = mixer.layers / a.layers
        offset = "unfused_offset" in shape.work.engine_flags and getattr(mixer, "sinks", False) and mixer.reach > 0
        scores = OFFSET_SCORE_BYTES if offset else constants.score_bytes
        if scores[0].value > 0:
            plain, back = unfused_attention(shape, mixer.heads, mixer.score_width, scores)
        else:
            plain = attention_forward_seconds(
                shape.machine,
                shape.tokens,
                mixer.heads / shape.tp,
                mixer.score_width,
                mixer.attended_in_pass(shape.context),
                kv_heads=mixer.score_heads / shape.tp,
                asymptote=asymptote,
            )
            back = plain * ATTENTION_BACKWARD.value * shape.training
        forward += share * plain
        backward += share * back
    return forward, backward


def elementwise(shape: StepShape) -> Seconds:
    """Norms, rotary embedding, activation, residuals: 2 (10 H/sp + 2 (h + kv) d/tp + c I/tp) bytes per token.

    10 H stand for two norms; recurrent layers move what their convolution and gate take in place of 2 (h + kv) d. c = 3
    for a gated MLP, else 2; sp = tp with sequence parallelism, else 1. Experts see K times T/tp tokens.
    The framework multiplies the traffic.
    """
    a, tp = shape.architecture, shape.tp
    split = np.where(shape.sequence_parallel, tp, 1.0)
    channels = 3.0 if a.mlp_matrices == 3 else 2.0
    dense, moe = a.dense_layers / a.layers, a.moe_layers / a.layers
    width = dense * a.intermediate + moe * (a.shared_intermediate + a.experts_per_token * a.expert_intermediate)
    per_token = 2.0 * (5.0 * a.layer_norms * a.hidden / split + (mixer_channels(a) + channels * width) / tp)
    traffic = per_token * shape.tokens * shape.constants.elementwise.value
    forward = elementwise_seconds(shape.machine, traffic)
    return forward, forward * ELEMENTWISE_BACKWARD.value * shape.training


def recurrence(shape: StepShape) -> Seconds:
    """Scans of linear attention and state-space layers: their chunked products at a share of the GEMM asymptote.

    Backward twice that. Tensor parallelism splits the heads. `recurrence_share` is the framework's.
    """
    a = shape.architecture
    flops = sum(mixer.layers / a.layers * mixer.scan_flops for mixer in a.mixers)
    rate = shape.constants.recurrence_share.value * shape.machine.accelerator.gemm_sustained.value
    forward = flops * shape.tokens / shape.tp / rate
    return forward, 2.0 * forward * shape.training


def adapters(shape: StepShape) -> Seconds:
    """Low-rank adapters beside every dense matrix: reads the input, adds to the output (2 (in + 2 out) bytes a token).

    The framework multiplies the traffic (0.58 fused; 11.4 as separate FP32 modules).
    """
    if not shape.work.lora_rank:
        return np.zeros(shape.rows), np.zeros(shape.rows)
    per_token = sum(share * 2.0 * (depth + 2.0 * width) for share, width, depth in linear_shapes(shape))
    traffic = per_token * shape.tokens * shape.constants.lora_traffic.value
    forward = elementwise_seconds(shape.machine, traffic)
    return forward, 2.0 * forward * shape.training


def experts(shape: StepShape) -> Seconds:
    """Grouped matrix products of the routed experts, averaged over all layers.

    A rank routes T/tp tokens to K experts each and computes on those that reach its E/ep experts: one product for each
    expert, of T/tp K ep / E rows, all in one kernel at the GPU's GEMM curve, of whose rate grouped kernels reach 0.76.
    Backward as for dense matrices. Never quicker than reading the experts' weights.
    """
    a = shape.architecture
    if not a.experts:
        return np.zeros(shape.rows), np.zeros(shape.rows)
    routed = shape.tokens / shape.tp * a.experts_per_token * shape.etp
    groups = a.experts / shape.ep
    rows = np.maximum(routed / groups, 1e-9)
    width, hidden = a.expert_intermediate / shape.etp, np.full(shape.rows, float(a.expert_depth))
    share = a.moe_layers / a.layers / GROUPED_GEMM_SHARE.value
    matrices = ((share, (a.mlp_matrices - 1) * width, hidden), (share, hidden, width))
    eight_bits = shape.work.engine_flags & {"fp8", "nvfp4"}  # grouped products of four bits run no faster
    return _products(shape, rows, matrices, shape.constants.fp8_gemm.value if eight_bits else 1.0, groups)


def routing(shape: StepShape) -> Seconds:
    """Router, permutation (B per K H and token, backward 1.5 x) and the fixed time of a MoE layer (backward 2 x).

    Fixed are a part of every layer, and the launch of each local expert's matrices where frameworks loop over them.
    """
    a = shape.architecture
    if not a.experts:
        return np.zeros(shape.rows), np.zeros(shape.rows)
    traffic = shape.constants.permute_bytes.value * a.experts_per_token * a.expert_depth * shape.tokens / shape.tp
    permute = elementwise_seconds(shape.machine, traffic)
    launches = 2.0 * a.experts / shape.ep  # gate and up are one matrix
    fixed = shape.constants.moe_layer_s.value + shape.constants.expert_launch_s.value * launches
    share = a.moe_layers / a.layers
    return share * (permute + fixed), share * (1.5 * permute + 2.0 * fixed) * shape.training


def logits_and_loss(shape: StepShape) -> Seconds:
    """The output head over the vocabulary and what is done per logit, once per micro-batch on the last stage."""
    a = shape.architecture
    if shape.work.head == "scalar":
        return np.zeros(shape.rows), np.zeros(shape.rows)
    vocabulary, hidden = a.vocabulary / shape.tp, np.full(shape.rows, float(a.hidden))
    traffic = elementwise_seconds(shape.machine, shape.constants.logit_bytes.value * shape.tokens * vocabulary)
    forward, backward = _products(shape, shape.tokens, ((1.0, vocabulary, hidden),), 1.0)
    return forward + traffic, (backward + traffic) * shape.training


def host_launch_seconds(shape: StepShape) -> FloatArray:
    """Return the least time in which the host can launch one layer's kernels, all directions of a micro-batch."""
    a = shape.architecture
    dense = a.dense_layers + 0.5 * a.bare_layers  # a mixer alone is half of a layer
    kernels = (dense * KERNELS_PER_LAYER.value + a.moe_layers * KERNELS_PER_MOE_LAYER.value) / a.layers
    return kernels * KERNEL_LAUNCH_S.value * shape.constants.host_factor.value * passes(shape)


def passes(shape: StepShape) -> FloatArray:
    """Return forward-equivalents of a micro-batch: 1 forward, 3 with backward, 4 with full recompute."""
    if not shape.training:
        return np.ones(shape.rows)
    return np.where(shape.recompute_full, 4.0, 3.0)
