"""Part of a generation: what an engine does where the longest samples are finished elsewhere, or in the next step.

* head: every sample until it has `cut` tokens; those that are longer leave.
* tail: the others, from `cut` tokens on; prompt and tokens so far are read again (no KV cache moves).
* carried over m times: in the steady state a step runs the first segment of its own samples and the later segments of
  those before, each of at most `cut` = max / (m + 1) tokens; later segments read what is there again.

All figures are those of the length distribution itself, on a grid of quantiles that is fine at the long end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rpegc.lengths import Lengths
from rpegc.target import FloatArray

BODY_POINTS = 160
TAIL_POINTS = 48
LEAST_TAIL = 1e-6
"""The grid: even quantiles up to 1 - 1 / BODY_POINTS, then geometric ones up to 1 - LEAST_TAIL, then the maximum."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What an engine generates in one step: sequences per sequence of the step, their lengths, what they read first.

    `prefilled` counts the sequences that share no prompt with others, per sequence of the step (0: groups share).
    """

    share: float
    prompt: Lengths
    response: Lengths
    prefilled: float


def cut_tokens(response: Lengths, samples: str, tail_share: float, carries: int) -> int:
    """Return the tokens after which a sample leaves its engine or is interrupted."""
    if carries:
        return max(1, -(-response.max // (carries + 1)))
    return int(np.clip(float(response.quantile(1.0 - tail_share)), 1, max(1, response.max - 1))) if samples else 0


def segment(prompt: Lengths, response: Lengths, samples: str, tail_share: float, carries: int) -> Segment:
    """Return the part of a generation that a stage does; `samples` is "head", "tail" or "" (all)."""
    return _segment(prompt, response, samples, tail_share, carries)


def drawn_segments(responses: FloatArray, cut: int, samples: str, carries: int) -> FloatArray:
    """Return the tokens that an engine generates in a step whose drawn responses are these, one value a segment.

    Carried segments are those of samples of earlier steps; drawn from this step's, they have the right distribution.
    """
    if samples == "head":
        return np.minimum(responses, cut)
    if samples == "tail":
        return responses[responses > cut] - cut
    left = [np.clip(responses - number * cut, 0, cut) for number in range(carries + 1)]
    return np.concatenate([part[part > 0] for part in left])


@lru_cache(maxsize=64)
def _segment(prompt: Lengths, response: Lengths, samples: str, tail_share: float, carries: int) -> Segment:
    cut = cut_tokens(response, samples, tail_share, carries)
    tokens, weights = _atoms(response)
    if samples == "head":
        return Segment(1.0, prompt, _histogram(np.minimum(tokens, cut), weights), 0.0)
    if samples == "tail":
        left, share = tokens - cut, float(weights[tokens > cut].sum())
        rest = _histogram(left[left > 0], weights[left > 0])
        return Segment(share, _shifted(prompt, cut), rest, share)
    parts, prompts, shares = [], [], []
    for number in range(carries + 1):
        left = np.clip(tokens - number * cut, 0, cut)
        parts.append((left[left > 0], weights[left > 0]))
        shares.append(float(weights[left > 0].sum()))
        prompts.append((number * cut, shares[-1]))
    whole = _histogram(np.concatenate([p for p, _ in parts]), np.concatenate([w for _, w in parts]))
    return Segment(sum(shares), _mixed_prompt(prompt, prompts), whole, sum(shares[1:]))


def _atoms(lengths: Lengths) -> tuple[FloatArray, FloatArray]:
    """Return tokens and weights of a discrete distribution with the given one's quantiles and mean."""
    body = np.linspace(0.0, 1.0, BODY_POINTS, endpoint=False)
    tail = 1.0 - np.geomspace(1.0 / BODY_POINTS, LEAST_TAIL, TAIL_POINTS)
    edges = np.unique(np.concatenate((body, tail, [1.0])))
    middle = 0.5 * (edges[1:] + edges[:-1])
    tokens = np.maximum(1.0, np.rint(np.asarray(lengths.quantile(middle))))
    return tokens, np.diff(edges)


def _histogram(tokens: FloatArray, weights: FloatArray) -> Lengths:
    pairs = ((int(count), float(weight)) for count, weight in zip(tokens, weights, strict=True))
    return Lengths.from_histogram(pairs, int(tokens.max()))


def _shifted(prompt: Lengths, tokens: int) -> Lengths:
    """Return the prompts with so many tokens more, which every one of these sequences has generated already."""
    return _mixed_prompt(prompt, [(tokens, 1.0)])


def _mixed_prompt(prompt: Lengths, shifts: list[tuple[int, float]]) -> Lengths:
    tokens, weights = _atoms(prompt)
    kept = [(shift, share) for shift, share in shifts if share > 0.0]
    return _histogram(
        np.concatenate([tokens + shift for shift, _ in kept]), np.concatenate([weights * share for _, share in kept])
    )
