"""How long prompts and responses are: a distribution of token counts, cut off at a maximum.

A response that would run past the maximum ends there, so the mass above it sits *at* it; `mean`, `p99` and every other
figure describe the lengths after this cut. Three forms: one fixed length, a lognormal, a histogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rpegc.normal import NORMAL_GRID, normal_cdf, normal_maximum_cdf, normal_quantile, normal_survival
from rpegc.target import FloatArray, IntArray

LONG_REASONING_TOKENS = 600
"""Mean length from which responses count as long reasoning. Provenance: fitted, see `default_variation`."""
VARIATION_LONG = 1.0
VARIATION_SHORT = 0.4
"""Coefficients of variation before the cut. Provenance: fitted. Short answers: longest responses in verl's published
training logs imply 0.32 to 0.55; 0.6 and more doubles the error there. Long reasoning: NeMo-RL's published step times
fit equally well with 0.5 to 2, since their longest responses reach the cap anyway; 1.0 is the middle."""
GROUP_CORRELATION = 0.5
"""Correlation of the log lengths of two samples of one prompt. Provenance: assumed; published work says only that
length follows the prompt (rank learners, history-guided speculation), no source prints the figure."""

_P99 = 2.3263478740408408  # standard normal quantile of 0.99
_WIDEST_SPREAD = 4.0  # e^4: one standard deviation is a factor of 55; no published length distribution is wider


class LengthsError(ValueError):
    """Figures that no distribution of lengths can have; the caller knows the position in the user's file."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def default_variation(mean: float) -> float:
    """Return the coefficient of variation to assume when only a mean (tokens) is known; see the constants above."""
    return VARIATION_LONG if mean >= LONG_REASONING_TOKENS else VARIATION_SHORT


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens, at most `max`. Build one with the `from_...` constructors or `fixed`.

    Before the cut it is lognormal: `median` tokens, `spread` = standard deviation of the natural logarithm (0: every
    length is the median). If `counts` is given it is a histogram instead: `shares[i]` of all lengths are `counts[i]`.
    """

    median: float
    spread: float
    max: int
    counts: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()

    @classmethod
    def fixed(cls, tokens: int) -> Lengths:
        """Every length is `tokens`."""
        _require(tokens >= 1, f"a length must be at least 1 token: {tokens} given")
        return cls(float(tokens), 0.0, int(tokens))

    @classmethod
    def from_mean(cls, mean: float, max: int, variation: float | None = None) -> Lengths:
        """Lognormal with this mean after the cut and this coefficient of variation before it (default by mean).

        Raises `LengthsError` unless 1 <= mean <= max.
        """
        _require_mean(mean, max)
        variation = default_variation(mean) if variation is None else variation
        _require(variation >= 0.0, f"variation must not be negative: {variation:g} given")
        spread = math.sqrt(math.log1p(variation**2))
        if spread == 0.0 or mean == max:
            return cls(float(mean), 0.0, int(max))
        # The mean after the cut grows with the median from 0 to max: bisect the median's logarithm.
        low, high = math.log(mean), math.log(max) + 40.0 * spread
        low -= spread * spread  # the mean before the cut is median * exp(spread^2 / 2)
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if cls(math.exp(middle), spread, max).mean < mean else (low, middle)
        return cls(math.exp(0.5 * (low + high)), spread, int(max))

    @classmethod
    def from_mean_p99(cls, mean: float, p99: float, max: int) -> Lengths:
        """Lognormal whose mean and 99th percentile after the cut equal the given ones.

        `p99 == max` says that at least 1 % of the lengths reach the cut; then the spread is the default one for this
        mean, or the smallest that brings 1 % there. Raises `LengthsError` unless 1 <= mean <= p99 <= max, and when the
        percentile is further above the mean than a lognormal can place it.
        """
        _require_mean(mean, max)
        _require(p99 <= max, f"p99 <= max must hold: p99 is {p99:g}, max is {max}", "p99 counts cut lengths too")
        _require(mean <= p99, f"mean <= p99 must hold: mean is {mean:g}, p99 is {p99:g}")
        if p99 == mean:
            return cls(float(mean), 0.0, int(max))
        if p99 == max:
            usual = cls.from_mean(mean, max)
            if usual.p99 >= max:
                return usual
        return cls._through_p99(mean, p99, max)

    @classmethod
    def from_figures(cls, mean: float, max: int, p99: float | None = None) -> Lengths:
        """Return the lengths with this mean, longest and, if given, 99th percentile. Raises `LengthsError`."""
        return cls.from_mean(mean, max) if p99 is None else cls.from_mean_p99(mean, p99, max)

    def scaled(self, share: float) -> Lengths:
        """Return the lengths times a share between 0 and 1, at least 1 token."""
        _require(0.0 < share <= 1.0, f"a share of a length must lie above 0 and at most at 1: {share:g} given")
        counts: dict[int, float] = {}
        for tokens, weight in zip(self.counts, self.shares, strict=True):
            short = int(np.maximum(np.rint(tokens * share), 1))
            counts[short] = counts.get(short, 0.0) + weight
        longest = int(np.maximum(np.rint(self.max * share), 1))
        median = float(np.maximum(self.median * share, 1.0))
        return Lengths(median, self.spread, longest, tuple(counts), tuple(counts.values()))

    @classmethod
    def _through_p99(cls, mean: float, p99: float, max: int) -> Lengths:
        """Find the smallest spread whose lognormal through the percentile has the mean."""

        def candidate(spread: float) -> Lengths:
            # A hair above: rounding must not leave a percentile just short of the cut that it is meant to reach.
            return cls(p99 * (1.0 + 1e-12) * math.exp(-_P99 * spread), spread, int(max))

        low, high = 0.0, 0.0
        steps = 400
        for step in range(1, steps + 1):
            high = _WIDEST_SPREAD * step / steps
            if candidate(high).mean <= mean:
                break
            low = high
        else:
            least = min(candidate(_WIDEST_SPREAD * step / steps).mean for step in range(1, steps + 1))
            raise LengthsError(
                f"with p99 = {p99:g} and max = {max} a lognormal has a mean of at least {least:.4g}: mean is {mean:g}",
                "give a histogram instead, or check the percentile",
            )
        for _ in range(100):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if candidate(middle).mean > mean else (low, middle)
        return candidate(0.5 * (low + high))

    @classmethod
    def from_histogram(cls, pairs: Iterable[tuple[int, float]], max: int) -> Lengths:
        """Lengths as observed: (tokens, weight) pairs; lengths above `max` count as `max`.

        Raises `LengthsError` on an empty histogram, lengths below 1 or weights that are negative or all zero.
        """
        gathered: dict[int, float] = {}
        for tokens, weight in sorted(pairs):
            _require(tokens >= 1, f"a length must be at least 1 token: {tokens} given")
            _require(weight >= 0.0, f"a weight must not be negative: {weight:g} given for {tokens} tokens")
            key = min(int(tokens), max)
            gathered[key] = gathered.get(key, 0.0) + float(weight)
        total = sum(gathered.values())
        _require(total > 0.0, "a histogram needs at least one length with a positive weight")
        counts = tuple(tokens for tokens, weight in gathered.items() if weight > 0.0)
        shares = tuple(weight / total for weight in gathered.values() if weight > 0.0)
        return cls(float(counts[0]), 0.0, int(max), counts, shares)

    def drifted(self, factor: float) -> Lengths:
        """Return the lengths of a policy that writes `factor` times as many tokens before the cut: more mass at `max`.

        The mean of RL runs drifts over thousands of steps; this is a what-if at the same maximum.
        """
        _require(factor > 0.0, f"a factor must be positive: {factor:g} given")
        if self.counts:
            counts = [max(round(count * factor), 1) for count in self.counts]
            return Lengths.from_histogram(zip(counts, self.shares, strict=True), self.max)
        return Lengths(self.median * factor, self.spread, self.max)

    @property
    def mean(self) -> float:
        """Mean length in tokens."""
        return float(self.limited_mean(self.max))

    @property
    def p99(self) -> float:
        """Length that 99 % do not exceed."""
        return float(self.quantile(0.99))

    @property
    def second_moment(self) -> float:
        """Mean of the squared length (tokens squared)."""
        if self.counts:
            return float(np.dot(self.shares, np.square(np.asarray(self.counts, dtype=np.float64))))
        if self.spread == 0.0:
            return min(self.median, float(self.max)) ** 2
        cut = math.log(self.max / self.median) / self.spread
        below = self.median**2 * math.exp(2.0 * self.spread**2) * float(normal_cdf(cut - 2.0 * self.spread))
        return below + float(self.max) ** 2 * float(normal_survival(cut))

    def limited_mean(self, tokens: ArrayLike) -> FloatArray:
        """Return E[min(length, tokens)]: the mean number of tokens generated in the first `tokens` steps.

        It is the integral of `survival` from 0, in closed form (limited expected value of a lognormal).
        """
        bound = np.clip(np.asarray(tokens, dtype=np.float64), 0.0, float(self.max))
        if self.counts:
            counts, shares = np.asarray(self.counts, dtype=np.float64), np.asarray(self.shares)
            return np.asarray(np.minimum(bound[..., None], counts) @ shares)
        if self.spread == 0.0:
            return np.minimum(bound, self.median)
        deviation = self._deviation(bound)
        whole = self.median * math.exp(0.5 * self.spread**2)
        return whole * normal_cdf(deviation - self.spread) + bound * normal_survival(deviation)

    def survival(self, tokens: ArrayLike) -> FloatArray:
        """Return the share of lengths that exceed `tokens`."""
        length = np.asarray(tokens, dtype=np.float64)
        if self.counts:
            tail = np.append(np.cumsum(np.asarray(self.shares)[::-1])[::-1], 0.0)
            return np.asarray(tail[np.searchsorted(np.asarray(self.counts), length, side="right")], dtype=np.float64)
        if self.spread == 0.0:
            return np.asarray(length < min(self.median, self.max), dtype=np.float64)
        return np.where(length < self.max, normal_survival(self._deviation(np.maximum(length, 0.0))), 0.0)

    def cdf(self, tokens: ArrayLike) -> FloatArray:
        """Return the share of lengths that do not exceed `tokens`."""
        return 1.0 - self.survival(tokens)

    def quantile(self, probability: ArrayLike) -> FloatArray:
        """Return the length that a share `probability` (0 to 1) does not exceed."""
        share = np.asarray(probability, dtype=np.float64)
        if self.counts:
            cumulative = np.cumsum(self.shares)
            index = np.searchsorted(cumulative, share - 1e-12, side="left")
            return np.asarray(self.counts, dtype=np.float64)[np.minimum(index, len(self.counts) - 1)]
        return self._at(normal_quantile(share))

    def expected_maximum(self, count: float, per_group: int = 1, correlation: float = 0.0) -> float:
        """Return the mean length of the longest of `count` responses, by numerical integration.

        E[max] = integral of x K F(x)^(K-1) f(x) dx, taken over normal deviations; the usual closed form for lognormals
        (mean * exp(spread * sqrt(2 ln K) - spread^2 / 2)) is 46 % high at K = 16, variation 1. `per_group` responses
        of one prompt may correlate (see `sample`), which makes the longest one shorter.
        """
        below = normal_maximum_cdf(count, per_group, correlation)
        middle = 0.5 * (NORMAL_GRID[1:] + NORMAL_GRID[:-1])
        lengths = self.quantile(normal_cdf(middle)) if self.counts else self._at(middle)
        return float(np.dot(lengths, np.diff(below)) / (below[-1] - below[0]))

    def sample(
        self, rng: np.random.Generator, groups: int, per_group: int, correlation: float = GROUP_CORRELATION
    ) -> IntArray:
        """Draw lengths, shape (groups, per_group), whole tokens from 1 to `max`.

        The samples of a group share a normal deviation: their log lengths correlate by `correlation` (Gaussian copula).
        """
        _require(0.0 <= correlation <= 1.0, f"correlation must lie between 0 and 1: {correlation:g} given")
        shared = rng.standard_normal((groups, 1))
        own = rng.standard_normal((groups, per_group))
        deviation = math.sqrt(correlation) * shared + math.sqrt(1.0 - correlation) * own
        lengths = self.quantile(normal_cdf(deviation)) if self.counts else self._at(deviation)
        return np.clip(np.rint(lengths), 1, self.max).astype(np.int64)

    def _deviation(self, tokens: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return (np.log(tokens) - math.log(self.median)) / self.spread

    def _at(self, deviation: FloatArray) -> FloatArray:
        if self.spread == 0.0:
            return np.full(np.shape(deviation), min(self.median, float(self.max)))
        exponent = math.log(self.median) + self.spread * deviation
        return np.minimum(np.exp(np.minimum(exponent, math.log(self.max) + 1.0)), float(self.max))


def group_correlation(groups: Iterable[Iterable[int]]) -> float:
    """Return the correlation of log lengths within a group, from samples grouped by prompt.

    One-way analysis of variance: (between - within) / (between + (n - 1) within), n the mean size of a group; 0 where
    it would be negative. Raises `LengthsError` without two groups of two samples.
    """
    logs = [np.log(np.maximum(np.asarray(list(group), dtype=np.float64), 1.0)) for group in groups]
    logs = [group for group in logs if len(group) > 1]
    _require(len(logs) > 1, "a correlation needs two prompts with two samples each")
    size = sum(len(group) for group in logs) / len(logs)
    means = np.array([group.mean() for group in logs])
    between = size * float(np.var(means, ddof=1))
    within = float(np.mean([np.var(group, ddof=1) for group in logs]))
    total = between + (size - 1.0) * within
    return max((between - within) / total, 0.0) if total > 0.0 else 0.0


def _require(holds: bool, message: str, hint: str = "") -> None:
    if not holds:
        raise LengthsError(message, hint)


def _require_mean(mean: float, max: int) -> None:
    _require(mean >= 1.0, f"a mean length must be at least 1 token: {mean:g} given")
    _require(mean <= max, f"mean <= max must hold: mean is {mean:g}, max is {max}", "the mean counts cut lengths too")
