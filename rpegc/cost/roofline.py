"""Seconds of attention and of element-wise traffic on one GPU (matrix products: `rpegc.cost.gemm`). Broadcasting.

Every asymptote comes twice: of short kernel runs at boost clock (`sustained=False`, what kernel tables show) and as
reached in training (`sustained=True`, limited by power). Prices of training and forward passes want the second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rpegc.cost.gemm import BF16_BYTES, powered
from rpegc.hardware import Accelerator, Figure, Machine
from rpegc.target import FloatArray

QUERY_TILE_TOKENS = Figure(128.0, "assumed", "rows of a query tile in FlashAttention kernels (arXiv 2307.08691)")
"""Query tokens that one thread block of an attention kernel handles."""

SMALL_HEAD_DIM = 128
"""Below this head size attention kernels of some GPUs lose rate (`attention_small_head_factor`)."""

ATTENTION_BACKWARD_FLOPS = Figure(
    2.5, "spec", "five matrix products against two of the forward pass (arXiv 2307.08691)"
)
ATTENTION_BACKWARD_RATE = Figure(0.75, "assumed", "backward kernels reach 0.75 of the forward rate (arXiv 2307.08691)")

FP8_SPEEDUP_HOPPER = Figure(
    1.80, "fitted", "fitted to published FP8 training rows: NVIDIA Megatron-Bridge and NeMo performance summaries"
)
"""FP8 over BF16 asymptote of a matrix product on Hopper; pass it as `speedup`."""


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
    replaces P where the kernel is known. Otherwise P and s0 are those of the kernel table, waves = w/(w+w0) for
    w = T h / (128 multiprocessors) query tiles a multiprocessor, long kernels lose `attention_power_loss`, and the new
    keys and values are written to the engine's cache (`kv_write_seconds`), as the tables count it.
    Below head size 128 the rate takes `attention_small_head_factor`.
    Source: fitted to the attention kernel tables of aiconfigurator (H100, A100) and to long-context training rows.
    """
    gpu = machine.accelerator
    tokens, heads, head_dim, context = (
        np.asarray(size, dtype=np.float64) for size in (batch_tokens, heads, head_dim, mean_context)
    )
    keys = heads if kv_heads is None else np.asarray(kv_heads, dtype=np.float64)
    peak = gpu.attention_forward_asymptote if sustained else gpu.attention_table_asymptote
    half = (gpu.attention_training_s0 if sustained else gpu.attention_table_s0).value
    rate = (peak.value if asymptote is None else asymptote) * _share(2.0 * context, half)
    rate = rate * np.where(head_dim < SMALL_HEAD_DIM, gpu.attention_small_head_factor.value, 1.0)
    if not sustained:
        waves = tokens * heads / (QUERY_TILE_TOKENS.value * gpu.multiprocessors.value)
        rate = rate * _share(waves, gpu.attention_table_w0.value)
    work = 4.0 * tokens * heads * head_dim * context
    compute = _divide(work, rate)
    if not sustained:
        compute = compute * powered(compute, gpu.attention_power_loss.value)
    traffic = BF16_BYTES * tokens * head_dim * 2.0 * (heads + keys) / gpu.gemm_bandwidth.value
    seconds = gpu.attention_launch_s.value + np.maximum(compute, traffic)
    if not sustained:
        seconds = seconds + kv_write_seconds(gpu, tokens, keys, head_dim)
    return np.where(work > 0, seconds, 0.0)


def kv_write_seconds(gpu: Accelerator, tokens: FloatArray, kv_heads: FloatArray, head_dim: FloatArray) -> FloatArray:
    """Seconds to write new keys and values into an engine's paged cache: read and written, 8 B per channel and token.

    A few heads make blocks too small for the memory: `kv_write_head_s` each; more are a fixed time per token and
    their bytes. Source: fitted to the attention kernel tables of aiconfigurator (vLLM 0.14.0).
    """
    moved = 4.0 * BF16_BYTES * head_dim * kv_heads / gpu.kv_write_bandwidth.value
    each = np.minimum(kv_heads * gpu.kv_write_head_s.value, gpu.kv_write_token_s.value + moved)
    return np.asarray(tokens * each, dtype=np.float64)


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
