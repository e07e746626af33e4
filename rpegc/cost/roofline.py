"""Seconds of the kernels of one GPU: matrix products, attention, element-wise traffic. Vectorised, broadcasting.

Every asymptote comes twice: of short kernel runs at boost clock (`sustained=False`, what kernel tables show) and as
reached in training (`sustained=True`, limited by power). Prices of training and forward passes want the second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rpegc.hardware import Figure, Machine
from rpegc.target import FloatArray

BF16_BYTES = 2.0
"""Bytes of one element of a BF16 tensor."""

QUERY_TILE_TOKENS = Figure(128.0, "assumed", "rows of a query tile in FlashAttention kernels (arXiv 2307.08691)")
"""Query tokens that one thread block of an attention kernel handles."""

SMALL_HEAD_DIM = 128
"""Below this head size attention kernels of some GPUs lose rate (`attention_small_head_factor`)."""

ATTENTION_REFERENCE_GROUP = 8.0
"""Query heads per key-value head at which the kernel table's half-saturation lengths hold."""

ATTENTION_GROUP_EXPONENT = Figure(
    0.47, "fitted", "fitted to the attention kernel tables of aiconfigurator @095f58a (0.44 on H100, 0.49 on A100)"
)
"""Small groups share fewer loads of keys and values: the half-saturation length falls as group^0.47, from 2 on."""

ATTENTION_BACKWARD_FLOPS = Figure(
    2.5, "spec", "five matrix products against two of the forward pass (arXiv 2307.08691)"
)
ATTENTION_BACKWARD_RATE = Figure(0.75, "assumed", "backward kernels reach 0.75 of the forward rate (arXiv 2307.08691)")

FP8_SPEEDUP_HOPPER = Figure(
    1.80, "fitted", "fitted to published FP8 training rows: NVIDIA Megatron-Bridge and NeMo performance summaries"
)
"""FP8 over BF16 asymptote of a matrix product on Hopper; pass it as `speedup`."""


def gemm_seconds(
    machine: Machine, m: ArrayLike, n: ArrayLike, k: ArrayLike, sustained: bool = True, speedup: ArrayLike = 1.0
) -> FloatArray:
    """Seconds of a BF16 matrix product (m, k) x (k, n); m, n, k and `speedup` broadcast. Zero where a size is zero.

        t = t0 + max(2mnk / (P eta), 2 (mk + nk + mn) / BW),   eta = m/(m+m0) * n/(n+n0) * k/(k+k0)

    P is `gemm_sustained` or `gemm_asymptote`; `speedup` (FP8 over BF16) multiplies P and, since a faster product needs
    larger sizes to saturate, m0, n0 and k0. Source: curve fitted to the BF16 GEMM kernel tables of aiconfigurator
    (H100, A100); asymptotes in training fitted to published training rows.
    """
    gpu = machine.accelerator
    m, n, k, speedup = (np.asarray(size, dtype=np.float64) for size in (m, n, k, speedup))
    saturation = (
        _share(m, gpu.gemm_m0.value * speedup)
        * _share(n, gpu.gemm_n0.value * speedup)
        * _share(k, gpu.gemm_k0.value * speedup)
    )
    asymptote = (gpu.gemm_sustained if sustained else gpu.gemm_asymptote).value * speedup
    work = 2.0 * m * n * k
    compute = _divide(work, asymptote * saturation)
    traffic = BF16_BYTES * (m * k + n * k + m * n) / gpu.gemm_bandwidth.value
    return np.where(work > 0, gpu.gemm_launch_s.value + np.maximum(compute, traffic), 0.0)


def attention_forward_seconds(
    machine: Machine,
    batch_tokens: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    mean_context: ArrayLike,
    kv_heads: ArrayLike | None = None,
    sustained: bool = True,
    asymptote: float | None = None,
) -> FloatArray:
    """Seconds of one attention forward over `batch_tokens` queries that attend to `mean_context` keys on average.

    A causal sequence of s tokens has mean_context s/2. All arguments broadcast; `kv_heads` defaults to `heads`.

        t = t0 + max(4 T h d c / (P * s/(s+s0) * waves), 2 T d (2h + 2kv) / BW),   s = 2c

    In training (`sustained`) P is `attention_forward_asymptote`, s0 = 400 and waves = 1; `asymptote` (FLOP/s)
    replaces P where the kernel is known. Otherwise P and s0 are those of the kernel table, s0 times (8/g)^0.47 for
    g = max(h/kv, 2) query heads per key-value head, and waves = w/(w+w0), w = T h / (128 multiprocessors).
    Below head size 128 the rate takes `attention_small_head_factor`.
    Source: fitted to the attention kernel tables of aiconfigurator (H100, A100) and to long-context training rows.
    """
    gpu = machine.accelerator
    tokens, heads, head_dim, context = (
        np.asarray(size, dtype=np.float64) for size in (batch_tokens, heads, head_dim, mean_context)
    )
    keys = heads if kv_heads is None else np.asarray(kv_heads, dtype=np.float64)
    half: FloatArray | float = gpu.attention_training_s0.value
    if not sustained:
        group = np.maximum(_divide(heads, keys), 2.0)
        half = gpu.attention_table_s0.value * (ATTENTION_REFERENCE_GROUP / group) ** ATTENTION_GROUP_EXPONENT.value
    peak = gpu.attention_forward_asymptote if sustained else gpu.attention_table_asymptote
    rate = (peak.value if asymptote is None else asymptote) * _share(2.0 * context, half)
    rate = rate * np.where(head_dim < SMALL_HEAD_DIM, gpu.attention_small_head_factor.value, 1.0)
    if not sustained:
        waves = tokens * heads / (QUERY_TILE_TOKENS.value * gpu.multiprocessors.value)
        rate = rate * _share(waves, gpu.attention_table_w0.value)
    work = 4.0 * tokens * heads * head_dim * context
    traffic = BF16_BYTES * tokens * head_dim * 2.0 * (heads + keys) / gpu.gemm_bandwidth.value
    return np.where(work > 0, gpu.attention_launch_s.value + np.maximum(_divide(work, rate), traffic), 0.0)


def attention_backward_seconds(forward_seconds: ArrayLike) -> FloatArray:
    """Seconds of the attention backward pass from those of the forward pass: 2.5 times the FLOPs at 0.75 of the rate.

    Source: FlashAttention-2 (arXiv 2307.08691), section 4.
    """
    return np.asarray(forward_seconds, dtype=np.float64) * (
        ATTENTION_BACKWARD_FLOPS.value / ATTENTION_BACKWARD_RATE.value
    )


def elementwise_seconds(machine: Machine, moved_bytes: ArrayLike) -> FloatArray:
    """Seconds to read and write `moved_bytes` (B) with element-wise kernels, at the achieved memory bandwidth."""
    return np.asarray(moved_bytes, dtype=np.float64) / machine.accelerator.hbm_achieved.value


def _share(size: FloatArray, half: FloatArray | float) -> FloatArray:
    """Saturation size / (size + half): 0 at size 0, 1/2 at `half`."""
    return _divide(size, size + half)


def _divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide, with 0 where the denominator is 0 (nothing to do there)."""
    return np.asarray(numerator / np.where(denominator > 0, denominator, np.inf), dtype=np.float64)
