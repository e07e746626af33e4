"""From rewards to advantages: GRPO, RLOO, REINFORCE++, GAE. Pure NumPy; one number or one array a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rpegc.runtime.rows import Array, Rows

EPSILON = 1e-6
"""Keeps a group of equal rewards from dividing by zero."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How advantages are estimated: options of `rpegc.runtime.settings`, and the KL penalty in the reward (0: none)."""

    estimator: str
    samples: int
    by_deviation: bool
    discount: float
    gae_lambda: float
    kl_coefficient: float
    kl_estimator: str


def advantages(batch: Rows, estimate: Estimate) -> Rows:
    """Return per-token `advantages` (and `returns` with a critic) of every row.

    `batch` holds `rewards` and/or `model_rewards` and `response_length` (one number a row), and `values`,
    `old_logprobs`, `reference_logprobs` (a number a token) where the estimate needs them.
    """
    rows = sorted(batch.column("response_length"))
    lengths = {row: int(batch.scalar("response_length", row)) for row in rows}
    scores = {row: _score(batch, row) for row in rows}
    penalties = {row: _penalty(batch, row, estimate) for row in rows}
    if estimate.estimator in ("grpo", "rloo"):
        totals = {row: scores[row] - float(penalties[row].sum()) for row in rows}
        single = _grpo(totals, estimate) if estimate.estimator == "grpo" else _rloo(totals, estimate)
        result = Rows()
        for row in rows:
            result.put(row, advantages=np.full(lengths[row], single[row], dtype=np.float32))
        return result
    rewards = {row: _token_rewards(lengths[row], scores[row], penalties[row]) for row in rows}
    if estimate.estimator == "reinforce++":
        return _reinforce(rewards, estimate)
    return _gae(rewards, batch.column("values"), estimate)


def _score(batch: Rows, row: int) -> float:
    names = [name for name in ("rewards", "model_rewards") if name in batch.columns]
    return sum(batch.scalar(name, row) for name in names)


def _penalty(batch: Rows, row: int, estimate: Estimate) -> Array:
    """Return the KL penalty of each token, 0 where it is not part of the reward."""
    length = int(batch.scalar("response_length", row))
    if not estimate.kl_coefficient or "reference_logprobs" not in batch.columns:
        return np.zeros(length)
    log_ratio = batch.column("reference_logprobs")[row] - batch.column("old_logprobs")[row]
    kinds = {"k1": -log_ratio, "k2": log_ratio**2 / 2.0, "k3": np.exp(log_ratio) - 1.0 - log_ratio}
    return np.asarray(estimate.kl_coefficient * kinds[estimate.kl_estimator])


def _groups(totals: Mapping[int, float], samples: int) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for row in totals:
        groups.setdefault(row // samples, []).append(row)
    return groups


def _grpo(totals: Mapping[int, float], estimate: Estimate) -> dict[int, float]:
    """Reward minus the group's mean, over its deviation. arXiv 2402.03300; without the deviation: arXiv 2503.20783."""
    found: dict[int, float] = {}
    for rows in _groups(totals, estimate.samples).values():
        values = np.array([totals[row] for row in rows])
        centred = values - values.mean()
        if estimate.by_deviation:
            centred = centred / (values.std(ddof=1) + EPSILON if len(values) > 1 else 1.0)
        found |= dict(zip(rows, centred.tolist(), strict=True))
    return found


def _rloo(totals: Mapping[int, float], estimate: Estimate) -> dict[int, float]:
    """Reward minus the mean of the group's other rewards. arXiv 2402.14740."""
    found: dict[int, float] = {}
    for rows in _groups(totals, estimate.samples).values():
        values = np.array([totals[row] for row in rows])
        others = (values.sum() - values) / max(len(values) - 1, 1)
        found |= dict(zip(rows, (values - others).tolist(), strict=True))
    return found


def _token_rewards(length: int, score: float, penalty: Array) -> Array:
    rewards = -np.asarray(penalty, dtype=np.float64)
    rewards[-1] += score
    return rewards


def _discounted(rewards: Array, discount: float) -> Array:
    sums, running = np.zeros_like(rewards), 0.0
    for place in range(len(rewards) - 1, -1, -1):
        running = rewards[place] + discount * running
        sums[place] = running
    return sums


def _whitened(values: Mapping[int, Array]) -> Rows:
    """Return the values of all tokens of the batch with mean 0 and deviation 1, as advantages."""
    rows = sorted(values)
    every = np.concatenate([values[row] for row in rows])
    mean, deviation = every.mean(), every.std()
    result = Rows()
    for row in rows:
        result.put(row, advantages=((values[row] - mean) / (deviation + EPSILON)).astype(np.float32))
    return result


def _reinforce(rewards: Mapping[int, Array], estimate: Estimate) -> Rows:
    """Discounted sums, whitened over the batch. REINFORCE++, arXiv 2501.03262."""
    return _whitened({row: _discounted(values, estimate.discount) for row, values in rewards.items()})


def _gae(rewards: Mapping[int, Array], values: Mapping[int, Array], estimate: Estimate) -> Rows:
    """Generalised advantage estimate, arXiv 1506.02438 equation 16; advantages are whitened over the batch."""
    raw: dict[int, Array] = {}
    for row, reward in rewards.items():
        value = np.asarray(values[row], dtype=np.float64)
        following = np.append(value[1:], 0.0)
        deltas = reward + estimate.discount * following - value
        raw[row] = _discounted(deltas, estimate.discount * estimate.gae_lambda)
    result = _whitened(raw)
    for row, advantage in raw.items():
        result.put(row, returns=(advantage + values[row]).astype(np.float32))
    return result
