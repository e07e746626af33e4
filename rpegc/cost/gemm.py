"""Seconds of matrix products: tiles on multiprocessors in whole waves, against the traffic of memory and cache.

    t = t0 + (C^4 + M^4)^(1/4)
    C = min over tiles (a, b) and splits s of k:
            ceil(tiles s / SMs) (2 a b (k/s) / (P/SMs e(a, b)) + t_start + t_tile a b / (256 128)) [+ split traffic]
    e(a, b) = (1 + c (1/256 + 1/128)) / (1 + c (1/a + 1/b))
    M = 2 (m k + n k + m n) (share in L2 / BW_L2 + share outside / BW)

A thread block computes one tile of the result; a wave is one tile on every multiprocessor, and a started wave counts
in full (wave quantisation). Smaller tiles reuse less of what they load (e), and every tile pays for filling and
draining its pipeline. k may be split over blocks, which then add up FP32 partial sums. What fits into the L2 cache
stays there when a kernel runs again and again, as in a benchmark; in training it comes from memory.
Short runs at boost clock lose some rate when they last for milliseconds (`gemm_power_loss`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rpegc.hardware import Accelerator, Figure, Machine
from rpegc.target import FloatArray

BF16_BYTES = 2.0
"""Bytes of one element of a BF16 tensor."""

TILES = ((256.0, 128.0), (128.0, 256.0), (128.0, 128.0), (128.0, 64.0), (64.0, 128.0), (64.0, 64.0))
"""Tiles of the result that one thread block computes: the common ones of cuBLAS and CUTLASS for BF16."""

SPLITS = (2.0, 3.0, 4.0, 6.0, 8.0)
"""Into so many parts the inner dimension may be split, where its tiles do not fill a wave."""

LEAST_SPLIT = 128.0
"""Least inner size of one part."""

LARGEST_TILE = 256.0 * 128.0

OVERLAP_EXPONENT = Figure(
    4.0, "fitted", "fitted to the GEMM kernel tables of aiconfigurator @095f58a; H100 and A100 alike (3 to 5 tried)"
)
"""How sharply computation and traffic bound each other: 1 adds them, infinity takes the larger."""

RESIDENCE_EXPONENT = Figure(4.0, "fitted", "the same tables: reads leave the cache within a factor of two of its size")
POWER_SECONDS = Figure(1e-3, "assumed", "kernels of this length lose half of `power_loss`")


def gemm_seconds(
    machine: Machine,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    sustained: bool = True,
    speedup: ArrayLike = 1.0,
    groups: ArrayLike = 1.0,
) -> FloatArray:
    """Seconds of `groups` BF16 matrix products (m, k) x (k, n) in one kernel; arguments broadcast.

    Zero where a size is zero. `sustained`: P is `gemm_sustained` and inputs come from memory, else P is
    `gemm_asymptote` and the L2 cache holds what fits. `speedup` (FP8 over BF16) multiplies P.
    Source: form above; constants fitted to the BF16 GEMM kernel tables of aiconfigurator (H100, A100), asymptotes in
    training to published training rows.
    """
    sizes = (np.asarray(value, dtype=np.float64) for value in (m, n, k, speedup, groups))
    m, n, k, speedup, groups = np.broadcast_arrays(*sizes)
    gpu = machine.accelerator
    peak = (gpu.gemm_sustained if sustained else gpu.gemm_asymptote).value * speedup
    compute = _compute_seconds(gpu, m, n, k, peak, groups)
    if not sustained:
        compute = compute * powered(compute, gpu.gemm_power_loss.value)
    traffic = groups * _traffic_seconds(gpu, m, n, k, cached=not sustained)
    exponent = OVERLAP_EXPONENT.value
    both = np.maximum(compute, traffic)
    least = np.minimum(compute, traffic) / np.where(both > 0, both, 1.0)
    seconds = gpu.gemm_launch_s.value + both * (1.0 + least**exponent) ** (1.0 / exponent)
    return np.where(m * n * k * groups > 0, seconds, 0.0)


def powered(seconds: FloatArray, loss: float) -> FloatArray:
    """Return the factor on short-run seconds when the power limit lowers the clock: 1 at first, 1 + loss for good."""
    return 1.0 + loss * seconds / (seconds + POWER_SECONDS.value)


def _compute_seconds(
    gpu: Accelerator, m: FloatArray, n: FloatArray, k: FloatArray, peak: FloatArray, groups: FloatArray
) -> FloatArray:
    """Seconds of the quickest tile and split of k; FP32 partial sums (4 B each) go through the L2 cache.

    Tiles and splits are leading axes of the arrays.
    """
    processors, half = gpu.multiprocessors.value, gpu.gemm_tile_half.value
    sides = (2, len(TILES)) + (1,) * m.ndim
    rows, columns = np.array(TILES).T.reshape(sides)
    worse = (1.0 + half * (1.0 / rows + 1.0 / columns)) / (1.0 + half * (1.0 / 256.0 + 1.0 / 128.0))
    fixed = gpu.gemm_tile_launch_s.value + gpu.gemm_tile_s.value * rows * columns / LARGEST_TILE
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * groups
    inner = 2.0 * processors / peak * k * (rows * columns * worse)
    best = np.min(np.ceil(tiles / processors) * (inner + fixed), axis=0)
    few = np.min(tiles, axis=0) < processors  # splitting helps where a wave is not full
    if not np.any(few):
        return np.asarray(best, dtype=np.float64)
    parts = np.array(SPLITS).reshape((len(SPLITS), 1) + (1,) * m.ndim)
    sums = gpu.gemm_split_traffic.value * 4.0 * m * n * groups / gpu.l2_bandwidth.value
    split = np.ceil(tiles * parts / processors) * (inner / parts + fixed) + parts * sums
    split = np.where((tiles < processors) & (k >= parts * LEAST_SPLIT), split, np.inf)
    return np.asarray(np.minimum(best, np.min(split, axis=(0, 1))), dtype=np.float64)


def _traffic_seconds(gpu: Accelerator, m: FloatArray, n: FloatArray, k: FloatArray, cached: bool) -> FloatArray:
    """Seconds to read both inputs and to write the result."""
    moved = BF16_BYTES * ((m + n) * k + m * n)
    if not cached:
        return moved / gpu.gemm_bandwidth.value
    share = 1.0 / (1.0 + (moved / gpu.l2_bytes.value) ** RESIDENCE_EXPONENT.value)
    return moved * ((1.0 - share) / gpu.gemm_bandwidth.value + share / gpu.l2_bandwidth.value)
