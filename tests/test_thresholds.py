"""Thresholds: against scipy's laws, worked by hand, and by simulation with fixed seeds."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from deltaenergy.errors import InputError
from deltaenergy.thresholds import (
    Guarantee,
    benjamini_hochberg,
    check_confidence,
    check_fdr,
    check_keep,
    class_thresholds,
    comfortable_images,
    conformal_p_values,
    fit_count,
    guaranteed_rank,
    in_sample_count,
    least_images,
    least_in_class,
    slack_of,
    threshold_at,
    threshold_of,
)


def test_the_rank_of_small_sets_worked_by_hand() -> None:
    """keep ½, confidence ½, n = 3: P(Bin(3, ½) ≥ 2) = 4/8 is just enough, P(Bin ≥ 3) = 1/8 is not."""
    assert guaranteed_rank(3, 0.5, 0.5) == 2
    assert guaranteed_rank(3, 0.5, 0.125 * 7) == 1  # P(Bin ≥ 1) = 7/8
    assert guaranteed_rank(3, 0.5, 0.9) == 0
    # 0.95⁴⁴ = 0.1047 > 0.1 > 0.95⁴⁵ = 0.0994.
    assert guaranteed_rank(44, 0.95, 0.9) == 0 and guaranteed_rank(45, 0.95, 0.9) == 1
    assert least_images(0.95, 0.9) == 45
    # 0.9²⁸ = 0.0523 > 0.05 > 0.9²⁹ = 0.0471: the 29 images of textbooks.
    assert least_images(0.9, 0.95) == 29
    assert guaranteed_rank(5, 1.0, 0.9) == 0 and guaranteed_rank(0, 0.5, 0.9) == 0


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3000), st.floats(0.01, 0.999), st.floats(0.01, 0.999))
def test_the_rank_is_the_largest_that_the_beta_law_allows(images: int, keep: float, confidence: float) -> None:
    def sure(k: int) -> float:
        return float(stats.beta.sf(keep, images - k + 1, k))

    rank = guaranteed_rank(images, keep, confidence)
    assert rank == 0 or sure(rank) >= confidence - 1e-7
    assert rank == images or sure(rank + 1) < confidence + 1e-7


@pytest.mark.parametrize(
    ("keep", "confidence"), [*itertools.product([0.01, 0.5, 0.95, 0.999], [0.05, 0.5, 0.9, 0.9999])]
)
def test_the_least_number_of_images_is_the_least(keep: float, confidence: float) -> None:
    least = least_images(keep, confidence)
    assert guaranteed_rank(least, keep, confidence) >= 1
    assert least == 1 or guaranteed_rank(least - 1, keep, confidence) == 0


def test_ranks_of_extreme_settings_are_numbers() -> None:
    for keep, confidence in itertools.product([5e-324, 1e-300, 1 - 1e-16], [5e-324, 1e-12, 1 - 1e-16]):
        assert 0 <= guaranteed_rank(50, keep, confidence) <= 50
        assert least_images(keep, confidence) >= 1
        assert comfortable_images(keep, confidence) >= least_images(keep, confidence)
    big = guaranteed_rank(1_000_000, 0.95, 0.9)
    assert abs(big - stats.binom.ppf(0.1, 1_000_000, 0.05)) <= 1


@pytest.mark.parametrize(("keep", "confidence"), [(0.95, 0.9), (0.9, 0.95), (0.99, 0.8)])
def test_a_comfortable_number_of_images_costs_what_it_says(keep: float, confidence: float) -> None:
    """The share kept on average, (n − k + 1)/(n + 1), exceeds `keep` by about a fifth of 1 − keep."""
    images = comfortable_images(keep, confidence)
    kept = 1 - guaranteed_rank(images, keep, confidence) / (images + 1)
    assert 0 < kept - keep <= 0.26 * (1 - keep)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("images", [45, 100, 1000])
def test_new_images_are_kept_with_the_confidence(images: int, ties: bool) -> None:
    """2,000 draws: at least 90 % of thresholds keep 95 % of the law. Five standard errors of 0.67 points are allowed.

    With ties (scores of one digit) the share that a threshold keeps is read off the discrete law.
    """
    rng = np.random.default_rng(images)
    draws = np.sort(rng.uniform(size=(2000, images)), axis=1)
    if ties:
        draws = np.floor(draws * 50) / 50
    bounds = np.array([threshold_of(row, 0.95, 0.9)[0] for row in draws])
    kept = 1 - bounds  # P(U ≥ b), and for b on the grid P(⌊50 U⌋/50 ≥ b) as well
    share = (kept >= 0.95 - 1e-12).mean()
    assert share >= 0.9 - 5 * 0.0067
    if not ties:
        rank = guaranteed_rank(images, 0.95, 0.9)
        exact = stats.binom.sf(rank - 1, images, 0.05)
        assert abs(share - exact) <= 5 * math.sqrt(exact * (1 - exact) / 2000) + 1e-9


def test_too_few_images_get_the_in_sample_rule() -> None:
    ascending = np.arange(20.0)
    assert threshold_of(ascending, 0.95, 0.9) == (1.0, None)
    assert threshold_of(ascending, 0.95, None) == (1.0, None)
    assert threshold_of(np.arange(100.0), 0.95, 0.9) == (stats.binom.ppf(0.1, 100, 0.05) - 1, 0.9)


def test_p_values_worked_by_hand() -> None:
    """Calibration 1, 2, 2, 4: one more for the image itself, ties count."""
    found = conformal_p_values(np.array([1.0, 2.0, 2.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.0, 9.0, math.nan]))
    np.testing.assert_allclose(found, [0.2, 0.4, 0.8, 0.8, 1.0, 0.2])


def test_false_discoveries_worked_by_hand() -> None:
    """m = 4, fdr 0.2: bounds 0.05, 0.1, 0.15, 0.2. The third passes, and carries those before it."""
    p = np.array([0.5, 0.14, 0.06, 0.11])
    assert benjamini_hochberg(p, 0.2).tolist() == [False, True, True, True]
    assert not benjamini_hochberg(p, 0.05).any()
    assert benjamini_hochberg(np.full(3, 0.1), 0.1).all(), "p = fdr·m/m"
    assert benjamini_hochberg(np.array([0.1, 0.9, 0.95]), 0.3).tolist() == [True, False, False], (
        "0.3·1/3 < 0.1 in floats"
    )
    assert benjamini_hochberg(np.zeros(0), 0.1).shape == (0,)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.sampled_from([0.05, 0.1, 0.3, 0.9]))
def test_false_discoveries_as_scipy_adjusts_them(counts: list[int], fdr: float) -> None:
    p = np.array(counts) / 41
    expected = stats.false_discovery_control(p, method="bh") <= fdr + 1e-12
    assert benjamini_hochberg(p, fdr).tolist() == expected.tolist()


def test_the_share_of_false_discoveries_is_kept() -> None:
    """500 draws: 200 calibration images, 80 known and 20 unknown. Mean FDP ≤ 0.1·0.8 plus five standard errors."""
    rng = np.random.default_rng(3)
    shares, found = [], []
    for _ in range(500):
        p = conformal_p_values(np.sort(rng.normal(size=200)), rng.normal(np.repeat([0.0, -4.0], [80, 20])))
        called = benjamini_hochberg(p, 0.1)
        shares.append(called[:80].sum() / max(1, called.sum()))
        found.append(called[80:].mean())
    assert np.mean(shares) <= 0.08 + 5 * np.std(shares) / math.sqrt(500)
    assert np.mean(found) > 0.5, "a rule that calls nothing unknown would pass the bound"


@given(st.integers(1, 500), st.integers(1, 100))
def test_the_in_sample_rule_keeps_the_exact_share_rounded_up(images: int, percent: int) -> None:
    """In floats 0.56 · 25 is 14.000000000000002, and 0.07 · 100 is 7.000000000000001."""
    expected = math.ceil(Fraction(percent, 100) * images)
    assert in_sample_count(images, percent / 100) == expected
    assert threshold_at(np.arange(images, dtype=np.float64), percent / 100) == images - expected


@pytest.mark.parametrize(("images", "keep", "kept"), [(25, 0.56, 14), (100, 0.07, 7), (20, 0.95, 19), (1, 0.001, 1)])
def test_the_in_sample_rule_is_not_misled_by_rounding(images: int, keep: float, kept: int) -> None:
    assert in_sample_count(images, keep) == kept


def test_a_fitted_score_gets_half_of_the_images_or_what_can_be_spared() -> None:
    assert fit_count(200, 0.95, 0.9) == 100
    assert fit_count(70, 0.95, 0.9) == 25, "45 set the threshold"
    assert fit_count(65, 0.95, 0.9) == 20
    assert fit_count(64, 0.95, 0.9) == 32, "no guarantee, but still apart"
    assert fit_count(20, 0.95, 0.9) == 10 and fit_count(19, 0.95, 0.9) == 0
    assert fit_count(1000, 0.95, None) == 0
    assert fit_count(1000, 1.0, 0.9) == 0


def test_thresholds_by_class_worked_by_hand() -> None:
    """keep ½ without confidence: a class needs one image. Class 0 has scores 1, 3 (2 is taken for 1), class 1 has 4."""
    ascending = np.array([1.0, 2.0, 3.0, 4.0])
    truth, named = np.array([0, 0, 0, 1]), np.array([0, 1, 0, 1])
    found = class_thresholds(ascending, truth, named, 0.5, None)
    assert found.thresholds == {0: 3.0, 1: 4.0}
    assert found.groups.tolist() == [0, -1, 0, 1]
    np.testing.assert_allclose(
        found.p_values(ascending, np.array([1.0, 3.0, 3.0, 3.0]), np.array([0, 0, 1, 2])),
        [2 / 3, 1.0, 1 / 2, 4 / 5],  # within class 0 twice, within class 1, and among all for a class without images
    )
    assert found.bounds(2.5, 3).tolist() == [3.0, 4.0, 2.5]


def test_a_class_needs_what_its_promise_takes() -> None:
    assert least_in_class(0.95, 0.9) == 45
    assert least_in_class(0.95, None) == 19, "the smallest of 19 scores keeps 19/20 of new ones on average"
    ascending = np.sort(np.random.default_rng(0).normal(size=89))
    classes = np.repeat([0, 1], [45, 44])
    assert set(class_thresholds(ascending, classes, classes, 0.95, 0.9).thresholds) == {0}


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_each_class_is_kept_by_class_whatever_the_others_do(shift: float) -> None:
    """A rare class (60 of 660) with lower scores, and a tenth of the frequent one taken for it.

    Of new rightly named images of the rare class, 95 % are kept in at least 90 % of 1,000 draws (five standard errors
    of 0.95 points are allowed); the pooled threshold fails it in nearly all, which shows that this test could fail.
    """
    rng = np.random.default_rng(11)
    own, pooled = [], []
    for _ in range(1000):
        truth = np.repeat([0, 1], [600, 60])
        named = np.where((truth == 0) & (rng.random(660) < 0.1), 1, truth)
        values = rng.normal(size=660) - 1.5 * (truth == 1) + shift * (named != truth)
        order = np.argsort(values)
        found = class_thresholds(values[order], truth[order], named[order], 0.95, 0.9)
        own.append(stats.norm.sf(found.thresholds[1], loc=-1.5))
        pooled.append(stats.norm.sf(threshold_of(values[order], 0.95, 0.9)[0], loc=-1.5))
    assert (np.array(own) >= 0.95).mean() >= 0.9 - 5 * 0.0095
    assert (np.array(pooled) >= 0.95).mean() < 0.05


@pytest.mark.parametrize("bad", [0, 1, -0.1, 1.5, math.nan, math.inf, -math.inf, "0.9", True, [0.9]])
def test_senseless_probabilities_are_refused(bad: object) -> None:
    with pytest.raises(InputError, match="confidence must be above 0 and below 1"):
        check_confidence(bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="fdr must be above 0 and below 1"):
        check_fdr(bad)  # type: ignore[arg-type]
    if bad != 1 or bad is True:
        with pytest.raises(InputError, match="keep must be"):
            check_keep(bad)  # type: ignore[arg-type]


def test_the_words_of_a_guarantee() -> None:
    assert str(Guarantee(0.95, 0.9, 200)) == (
        "Of new images like these, at least 95 % are accepted, with 90 % confidence (set on 200 images)."
    )
    few = str(Guarantee(0.95, None, 20, wanted=0.9))
    assert "95 % of the 20 calibration images" in few and "90.5 % on average" in few, "19 of 21"
    assert "takes 45 images" in few
    assert "No number of images" in str(Guarantee(1.0, None, 20, wanted=0.9))
    assert "takes 65 images (20 to fit" in str(Guarantee(0.95, None, 50, wanted=0.9, seen=True))
    assert "the score fitted to 100 others" in str(Guarantee(0.95, 0.9, 100, fitted_on=100))
    by_class = str(Guarantee(0.95, 0.9, 500, wanted=0.9, own=("dog", "cat"), pooled=("bird",)))
    assert "new images of dog, cat that are named rightly" in by_class and "bird share the threshold of all" in by_class


def test_slack_by_hand() -> None:
    """Two hundred-thousandths of the range, and four millionths of the largest size: both count."""
    assert slack_of(np.array([-3.0, 0.5, 1.0])) == pytest.approx(2e-5 * 4 + 4e-6 * 3, rel=1e-12)
    assert slack_of(np.array([7.0, 7.0])) == pytest.approx(4e-6 * 7, rel=1e-12)
    assert slack_of(np.array([])) == 0
