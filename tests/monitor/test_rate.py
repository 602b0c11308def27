"""The rate bet against its definition: exact polynomials in fractions, exact enumeration, scipy, quadrature."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from deltaenergy.monitor.rate import count_below, log_rate_evidence
from deltaenergy.stats.thresholds import upper_share


def mean_over_stakes(flags: tuple[int, ...], q: Fraction) -> Fraction:
    """q · ∫ ∏ (1 + λ(X − q)) dλ over [0, 1/q], the product expanded as a polynomial in λ."""
    powers = [Fraction(1)]
    for flag in flags:
        slope = flag - q
        powers = [a + slope * b for a, b in zip([*powers, Fraction(0)], [Fraction(0), *powers])]
    return q * sum(a * (1 / q) ** (i + 1) / (i + 1) for i, a in enumerate(powers))


@pytest.mark.parametrize("q", [Fraction(1, 20), Fraction(1, 3), Fraction(4, 5)])
def test_every_short_sequence_gives_the_mean_over_all_stakes(q: Fraction) -> None:
    for length in range(8):
        for flags in itertools.product((0, 1), repeat=length):
            exact = mean_over_stakes(flags, q)
            assert math.exp(log_rate_evidence(sum(flags), length, float(q))) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("q", [0.013, 0.06, 0.4])
def test_the_next_image_changes_nothing_in_expectation_at_the_bound_and_less_below_it(q: float) -> None:
    for images in range(60):
        for flagged in range(images + 1):
            now = log_rate_evidence(flagged, images, q)
            flag = math.exp(log_rate_evidence(flagged + 1, images + 1, q) - now)
            pass_ = math.exp(log_rate_evidence(flagged, images + 1, q) - now)
            assert q * flag + (1 - q) * pass_ == pytest.approx(1, abs=1e-10)
            assert 0.5 * q * flag + (1 - 0.5 * q) * pass_ < 1
            assert pass_ < 1 < flag


@given(st.integers(0, 3000), st.integers(0, 3000), st.floats(0.002, 0.9))
def test_against_quadrature(flagged: int, passed: int, q: float) -> None:
    """∫ exp(f·log(1 + λ(1 − q)) + m·log(1 − λq)) dλ, scaled by its largest value."""

    def log_bet(share: float) -> float:  # λ = share / q
        return flagged * math.log1p(share * (1 - q) / q) + passed * math.log1p(-share)

    total = flagged + passed
    peak = min(max((flagged / total - q) / (1 - q), 0.0), 1 - 1e-12) if total else 0.0
    top = log_bet(peak)
    width = 1 / math.sqrt(total + 1)
    cuts = sorted({0.0, 1.0, peak, *(min(1.0, max(0.0, peak + k * width)) for k in (-20, -8, -3, -1, 1, 3, 8, 20))})
    value = sum(
        integrate.quad(lambda x: math.exp(log_bet(min(x, 1 - 1e-16)) - top), a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
        for a, b in itertools.pairwise(cuts)
    )
    assert log_rate_evidence(flagged, total, q) == pytest.approx(top + math.log(value), abs=1e-7)


def test_a_million_images() -> None:
    f, t, q = 60_900, 1_000_000, 0.06
    m = t - f
    betas = math.lgamma(f + 1) + math.lgamma(m + 1) - math.lgamma(t + 2)
    expected = betas + stats.beta.logsf(q, f + 1, m + 1) - f * math.log(q) - (m + 1) * math.log1p(-q)
    assert log_rate_evidence(f, t, q) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 3000), st.data())
def test_the_bound_is_the_quantile_of_the_beta_law(images: int, data: st.DataObject) -> None:
    below = data.draw(st.integers(0, images - 1))
    delta = data.draw(st.sampled_from([1e-4, 0.01, 0.1, 0.5]))
    bound = upper_share(below, images, delta)
    assert bound == pytest.approx(stats.beta.ppf(1 - delta, below + 1, images - below), rel=1e-9)
    assert stats.binom.cdf(below, images, bound) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(
    ("scores", "threshold", "below"),
    [
        ([1, 2, 3, 4], 1, 0),
        ([1, 2, 3, 4], 3, 2),
        ([1, 2, 3, 4], 2.5, 2),  # fixed beforehand: as Clopper and Pearson
        ([1, 1, 1, 4], 1, 2),  # the threshold may be any of the three
        ([1, 2, 2, 2], 2, 3),
        ([1, 2], 0, 0),
    ],
)
def test_scores_below_the_threshold(scores: list[float], threshold: float, below: int) -> None:
    assert count_below(np.array(scores, float), threshold) == below


def test_with_ties_the_share_of_known_images_flagged_stays_within_the_bound() -> None:
    """Scores on a grid of six values: the share below the k-th smallest of 30, over 1,000 draws with a fixed seed."""
    rng = np.random.default_rng(3)
    law = np.array([0.02, 0.05, 0.13, 0.3, 0.3, 0.2])
    below_law = np.concatenate([[0], np.cumsum(law)])
    broken = 0
    for _ in range(1000):
        scores = np.sort(rng.choice(6, 30, p=law)).astype(float)
        threshold = scores[3]
        bound = upper_share(count_below(scores, threshold), 30, 0.05)
        broken += below_law[int(threshold)] > bound
    assert broken / 1000 <= 0.05
