"""How full an engine is while it generates a batch: continuous batching over a distribution of lengths.

An engine has n sequences and room for b at once. As long as some wait, b run (first column of every array). When the
queue is empty, the survivors drain: D(r) is the share of the b that still runs r steps later.

* Nothing waited (n <= b): all started together, so D(r) = S(r), the survival of the lengths.
* Otherwise the last one started after tau steps, n / b - 1 starts per slot, taken as even in time at a rate lambda:

      D(r) = S(tau + r) + lambda * integral of S from r to tau + r,   lambda * integral of S from 0 to tau = F(tau)

  The second equation says D(0) = 1: every slot is taken when the queue empties; with lambda * tau = n / b - 1 it
  fixes tau. For a long queue D becomes the stationary residual life of renewal theory, for tau = 0 it is S again.

The number of steps before the drain follows from the number of tokens, so every token is decoded exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rpegc.lengths import Lengths
from rpegc.normal import NORMAL_GRID, normal_maximum_cdf, normal_quantile, normal_survival
from rpegc.target import FloatArray

EVEN_POINTS = 24
QUEUE_POINTS = 512
QUANTILE_POINTS = 40
TAIL_POINTS = 20
TAIL_SHARE = 0.1
"""The last tenth of an engine's samples is its tail."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Shape (rows, columns); column 0 is the time with a queue, the others are intervals of the drain.

    `steps` decode steps, `active` running sequences per engine and `context` their mean length in tokens. `busy_mean`
    is the probability that a given replica still runs, `busy_slowest` that any does (in column 0: the steps of the
    replica with most tokens over those of the mean). `unfinished` is the share of samples left at a column's end.
    """

    steps: FloatArray
    active: FloatArray
    context: FloatArray
    busy_mean: FloatArray
    busy_slowest: FloatArray
    unfinished: FloatArray

    @property
    def tail(self) -> FloatArray:
        """Share of each column that belongs to the tail: the time when at most `TAIL_SHARE` of the samples are left."""
        before = np.concatenate((np.ones_like(self.unfinished[:, :1]), self.unfinished[:, :-1]), axis=1)
        finished = np.maximum(before - self.unfinished, 1e-12)
        return np.clip((TAIL_SHARE - self.unfinished) / finished, 0.0, 1.0) * (self.unfinished < TAIL_SHARE)


def length_grid(lengths: Lengths, sequences: float) -> FloatArray:
    """Return the points (tokens) between which a rollout is constant, from 0 to the longest length that occurs.

    Even points, quantiles with every eighth among them, and points out to a survival of 1e-4 / `sequences`.
    """
    body = np.linspace(0.0, 1.0, QUANTILE_POINTS, endpoint=False)
    far = max(1e-4 / max(sequences, 1.0), 1e-12)
    tail = 1.0 - np.geomspace(1.0 / QUANTILE_POINTS, far, TAIL_POINTS)
    quantiles = lengths.quantile(np.concatenate((body, tail)))
    longest = float(quantiles[-1])
    return np.unique(np.concatenate((np.linspace(0.0, longest, EVEN_POINTS), quantiles)))


def roll_out(
    lengths: Lengths,
    grid: FloatArray,
    prompt_tokens: float,
    sequences: FloatArray,
    slots: FloatArray,
    engines: FloatArray,
    engines_per_replica: FloatArray,
    per_group: int = 1,
    correlation: float = 0.0,
) -> Rollout:
    """Return the rollout of each row: `sequences` and `slots` per engine, `engines` in all; all of shape (rows,).

    `grid` comes from `length_grid`. The engines of a replica step together and stop together. Lengths of the
    `per_group` samples of one prompt correlate (see `Lengths.sample`), which ends engines earlier.
    """
    running = np.minimum(slots, sequences)[:, None]
    total, engines, streams = sequences[:, None], engines[:, None], engines_per_replica[:, None]
    load = total / running
    width, middle = np.diff(grid), 0.5 * (grid[1:] + grid[:-1])
    loads, position = np.unique(load[:, 0], return_inverse=True)
    distinct, ends = _drain(lengths, grid, middle, loads[:, None])
    none_left = _log_none_left(distinct, per_group, correlation)[position]
    share, at_end = distinct[position], ends[position]
    drained_tokens = share @ width[:, None]
    queued_steps = np.maximum(load * lengths.mean - drained_tokens, 0.0)
    age = lengths.second_moment / (2.0 * lengths.mean)
    busy_mean = -np.expm1(running * streams * none_left)
    busy_slowest = -np.expm1(running * engines * none_left)
    return Rollout(
        steps=_join(queued_steps, np.broadcast_to(width, share.shape)),
        active=_join(running, running * share / np.maximum(busy_mean, 1e-300)),
        context=prompt_tokens
        + _join(np.minimum(age, 0.5 * queued_steps), np.minimum(np.minimum(age, queued_steps) + middle, lengths.max)),
        busy_mean=_join(np.ones_like(running), busy_mean),
        busy_slowest=_join(_most_loaded(lengths, total, load, engines / streams), busy_slowest),
        unfinished=_join(1.0 / load, at_end / load),
    )


def _drain(lengths: Lengths, grid: FloatArray, middle: FloatArray, load: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return D as the mean over each interval and at each interval's end, shape (rows, intervals)."""
    width = np.diff(grid)
    once_mean = np.clip(np.diff(lengths.limited_mean(grid)) / width, 0.0, 1.0)
    once_end = lengths.survival(grid[1:])
    once_end[-1] = 0.0
    shape = (len(load), len(width))
    share, at_end = np.broadcast_to(once_mean, shape), np.broadcast_to(once_end, shape)
    queued = np.flatnonzero(load[:, 0] > 1.0 + 1e-9)
    if not len(queued):
        return share, at_end
    share, at_end = share.copy(), at_end.copy()
    past = _queue_steps(lengths, load[queued] - 1.0)
    rate = (load[queued] - 1.0) / past
    shifted = lengths.limited_mean(past + grid)
    started = rate * (lengths.limited_mean(past + middle) - lengths.limited_mean(middle))
    share[queued] = np.clip(np.diff(shifted, axis=1) / width + started, 0.0, 1.0)
    started_end = rate * (shifted[:, 1:] - lengths.limited_mean(grid[1:]))
    at_end[queued] = np.clip(lengths.survival(past + grid[1:]) + started_end, 0.0, 1.0)
    at_end[queued, -1] = 0.0
    return share, at_end


def _queue_steps(lengths: Lengths, starts: FloatArray) -> FloatArray:
    """Return tau, the steps in which a slot is taken over `starts` times: tau F(tau) / (integral of S to tau) = starts.

    Beyond the longest length this is mean * starts; below, the monotone left side is inverted on a grid.
    """
    taus = np.linspace(0.0, lengths.max, QUEUE_POINTS)[1:]
    counts = np.maximum.accumulate(taus * lengths.cdf(taus) / lengths.limited_mean(taus))
    within = np.interp(starts, counts, taus)
    return np.maximum(np.where(starts >= counts[-1], lengths.mean * starts, within), 1.0)


def _log_none_left(share: FloatArray, per_group: int, correlation: float) -> FloatArray:
    """Return, per sequence, the logarithm of the probability that none runs when each does with probability `share`.

    Independent ones: log(1 - share). The members of a group: that of the whole group, an integral over what they have
    in common, by its size.
    """
    if per_group == 1 or correlation == 0.0:
        return np.log1p(-np.minimum(share, 1.0 - 1e-15))
    survival, logarithm = _group_table(per_group, correlation)
    return np.interp(np.log(np.maximum(share, 1e-300)), survival, logarithm)


@lru_cache(maxsize=64)
def _group_table(per_group: int, correlation: float) -> tuple[FloatArray, FloatArray]:
    """Return log survival, increasing, and the logarithm of the probability per member that a group has ended."""
    ended = normal_maximum_cdf(1.0, per_group, correlation)[::-4]
    survival = normal_survival(NORMAL_GRID[::-4])
    return np.log(np.maximum(survival, 1e-300)), np.log(np.clip(ended, 1e-300, 1.0))


def _most_loaded(lengths: Lengths, total: FloatArray, load: FloatArray, replicas: FloatArray) -> FloatArray:
    """Return the tokens of the replica that drew most over the mean replica's, as far as a queue makes them matter.

    The sum of n lengths is nearly normal; the largest of R normals lies at the quantile (R - 0.375) / (R + 0.25)
    (Blom, Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    counts, position = np.unique(replicas, return_inverse=True)
    highest = np.where(counts > 1, normal_quantile((counts - 0.375) / (counts + 0.25)), 0.0)[position].reshape(
        replicas.shape
    )
    variation = np.sqrt(max(lengths.second_moment / lengths.mean**2 - 1.0, 0.0))
    return np.asarray(1.0 + np.maximum(highest, 0.0) * variation / np.sqrt(total) * (1.0 - 1.0 / load))


def _join(first: FloatArray, rest: FloatArray) -> FloatArray:
    return np.concatenate((first, rest), axis=1)
