"""How well predicted device bytes hold: the residuals behind P(fit), and the margin that a wanted probability needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from rpegc.hardware import Figure
from rpegc.ir.graph import Op

SHARDED_SIGMA = Figure(
    0.075,
    "fitted",
    "peak memory of 47 published runs (prime-rl, torchtitan, Megatron-Bridge): 90 % of |ln(measured / predicted)| below"
    " 0.124, as of a normal distribution with this standard deviation",
)
ENGINE_SIGMA = Figure(
    0.015,
    "assumed",
    "an engine takes a stated fraction of the GPU; what CUDA graphs and NCCL add varies by a few hundred MiB",
)
WANTED_PROBABILITY_QUANTILE = 1.645
"""Standard normal quantile of 0.95: a plan counts as fitting if it fits with that probability."""

SIGMAS: Mapping[Op, float] = MappingProxyType(
    {Op.TRAIN: SHARDED_SIGMA.value, Op.FORWARD: SHARDED_SIGMA.value, Op.GENERATE: ENGINE_SIGMA.value}
)
"""Standard deviation of ln(measured / predicted) device bytes by op."""


def margin(op: Op) -> float:
    """Return the factor on predicted bytes below which a stage fits with probability 0.95."""
    return math.exp(WANTED_PROBABILITY_QUANTILE * SIGMAS[op])


def fit_probability(predicted: Mapping[Op, float], capacity_bytes: float) -> float:
    """Return P(actual <= capacity) for predicted bytes by op.

    Errors within an op and between ops are taken as fully correlated, so their standard deviations add; bytes that
    keep below the capacity with `margin` fit with at least the wanted probability.
    """
    total = sum(predicted.values())
    deviation = sum(SIGMAS[op] * count for op, count in predicted.items())
    if deviation <= 0:
        return 1.0 if total <= capacity_bytes else 0.0
    return 0.5 * (1 + math.erf((capacity_bytes - total) / (deviation * math.sqrt(2))))
