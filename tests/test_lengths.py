"""Length distributions: what the user states is what the distribution has, and the longest of many is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpegc.lengths import Lengths, LengthsError, default_variation

FORMS = [
    Lengths.fixed(1000),
    Lengths.from_mean(300, 1024),
    Lengths.from_mean(3000, 8192),
    Lengths.from_mean_p99(3000, 8000, 8192),
    Lengths.from_mean_p99(3000, 8192, 8192),
    Lengths.from_histogram([(100, 3), (4000, 1), (9000, 0.5)], 8192),
]


def uncut(variation: float) -> Lengths:
    return Lengths.from_mean(1000, 10**9, variation)


@pytest.mark.parametrize(
    ("variation", "count", "over_mean"),
    [(0.5, 16, 2.13), (1.0, 16, 3.44), (0.5, 512, 3.83), (1.0, 512, 9.38), (0.5, 8192, 5.45), (1.0, 8192, 17.4)],
)
def test_longest_of_many_lognormals_matches_numerical_integration(
    variation: float, count: int, over_mean: float
) -> None:
    assert uncut(variation).expected_maximum(count) / 1000 == pytest.approx(over_mean, rel=0.003)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    mean=st.floats(20, 20000),
    max_over_mean=st.floats(1.0, 50.0),
    variation=st.floats(0.0, 2.0),
)
def test_mean_after_the_cut_is_the_one_asked_for(mean: float, max_over_mean: float, variation: float) -> None:
    lengths = Lengths.from_mean(mean, math.ceil(mean * max_over_mean), variation)
    assert lengths.mean == pytest.approx(mean, rel=1e-6)
    assert lengths.p99 <= lengths.max


@settings(max_examples=60, deadline=None, derandomize=True)
@given(mean=st.floats(20, 20000), p99_over_mean=st.floats(1.0, 8.0), room=st.floats(1.0, 5.0))
def test_mean_and_p99_after_the_cut_are_the_ones_asked_for(mean: float, p99_over_mean: float, room: float) -> None:
    p99 = mean * p99_over_mean
    lengths = Lengths.from_mean_p99(mean, p99, math.ceil(p99 * room))
    assert lengths.mean == pytest.approx(mean, rel=1e-6)
    assert lengths.p99 == pytest.approx(p99, rel=1e-6)


def test_p99_at_the_maximum_means_that_lengths_reach_it() -> None:
    lengths = Lengths.from_mean_p99(3000, 8192, 8192)
    assert lengths.p99 == 8192
    assert lengths.survival(8191.999) >= 0.0099
    assert lengths.mean == pytest.approx(3000)


@pytest.mark.parametrize("lengths", FORMS)
def test_sampled_moments_and_maximum_agree_with_the_stated_ones(lengths: Lengths) -> None:
    drawn = lengths.sample(np.random.default_rng(7), 4000, 16, 0.0)
    assert drawn.min() >= 1
    assert drawn.max() <= lengths.max
    assert drawn.mean() == pytest.approx(lengths.mean, rel=0.02)
    assert np.mean(drawn.astype(float) ** 2) == pytest.approx(lengths.second_moment, rel=0.03)
    assert drawn.max(axis=1).mean() == pytest.approx(lengths.expected_maximum(16), rel=0.02)


@pytest.mark.parametrize("lengths", FORMS)
def test_limited_mean_is_the_integral_of_survival(lengths: Lengths) -> None:
    points = np.linspace(0.0, lengths.max, 100001)
    survival = lengths.survival(0.5 * (points[1:] + points[:-1]))
    integral = np.cumsum(survival) * (points[1] - points[0])
    assert np.allclose(lengths.limited_mean(points[1:]), integral, rtol=1e-4, atol=points[1])
    assert float(lengths.limited_mean(lengths.max)) == pytest.approx(lengths.mean)


@pytest.mark.parametrize("lengths", FORMS)
def test_quantile_inverts_the_distribution(lengths: Lengths) -> None:
    share = np.linspace(0.01, 0.99, 99)
    at = lengths.quantile(share)
    assert np.all(lengths.cdf(at) >= share - 1e-6)
    assert np.all(lengths.cdf(at - 0.01 - 1e-6 * at) <= share + 1e-6)


def test_samples_of_one_prompt_correlate_and_their_longest_is_shorter() -> None:
    lengths = Lengths.from_mean(3000, 100000)
    drawn = np.log(lengths.sample(np.random.default_rng(3), 20000, 2, 0.6).astype(float))
    assert np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1] == pytest.approx(0.6, abs=0.02)
    together = lengths.sample(np.random.default_rng(3), 8000, 16, 0.6).reshape(1000, -1).max(axis=1).mean()
    assert lengths.expected_maximum(128, 16, 0.6) == pytest.approx(together, rel=0.03)
    assert lengths.expected_maximum(128, 16, 0.6) < lengths.expected_maximum(128)


def test_sampling_repeats_with_the_seed() -> None:
    lengths = Lengths.from_mean(3000, 8192)
    first, second = (lengths.sample(np.random.default_rng(11), 5, 4) for _ in range(2))
    assert np.array_equal(first, second)


def test_short_answers_vary_less_than_long_reasoning_by_default() -> None:
    assert default_variation(200) < default_variation(5000)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Lengths.from_mean(9000, 8192), ("mean <= max", "9000", "8192")),
        (lambda: Lengths.from_mean_p99(3000, 9000, 8192), ("p99 <= max", "9000", "8192")),
        (lambda: Lengths.from_mean_p99(3000, 2000, 8192), ("mean <= p99", "3000", "2000")),
        (lambda: Lengths.from_mean_p99(100, 8000, 8192), ("p99 = 8000", "at least", "mean is 100")),
        (lambda: Lengths.fixed(0), ("at least 1 token", "0")),
        (lambda: Lengths.from_histogram([(5, 0.0)], 10), ("positive weight",)),
        (lambda: Lengths.from_histogram([(5, -1.0)], 10), ("negative", "-1")),
    ],
)
def test_impossible_figures_are_refused_with_the_rule_and_its_values(build, words: tuple[str, ...]) -> None:
    with pytest.raises(LengthsError) as caught:
        build()
    for word in words:
        assert word in str(caught.value)
