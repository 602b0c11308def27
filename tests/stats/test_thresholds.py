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

from deltaenergy.detector.calibration import Calibration, class_groups
from deltaenergy.detector.guarantee import Guarantee
from deltaenergy.errors import InputError
from deltaenergy.stats.thresholds import (
    benjamini_hochberg,
    binomial,
    binomial_tail,
    check_confidence,
    check_fdr,
    check_keep,
    conformal_p_values,
    count_at_most,
    kept_at_least,
    least_images,
    rank_of,
    slack_of,
    threshold_at,
    threshold_of,
    upper_share,
)
from tests.sampling import examples


@pytest.mark.parametrize(
    ("images", "keep", "rank"),
    [
        *((19, 0.95, 1), (18, 0.95, 0), (20, 0.95, 1), (39, 0.95, 2), (100, 0.95, 5), (99, 0.99, 1), (98, 0.99, 0)),
        *((9, 0.9, 1), (199, 0.95, 10), (10, 1.0, 0), (0, 0.9, 0), (3, 0.001, 3), (1, 0.5, 1)),
    ],
)
def test_the_average_rank_worked_by_hand(images: int, keep: float, rank: int) -> None:
    """⌊(1 − keep)(n + 1)⌋; (1 − 0.9) · 10 is 0.9999999999999998 in floats."""
    assert rank_of(images, keep, None) == rank


@given(st.integers(0, 5000), st.integers(1, 99))
def test_the_average_rank_is_exact(images: int, percent: int) -> None:
    expected = min(images, math.floor(Fraction(100 - percent, 100) * (images + 1)))
    assert rank_of(images, percent / 100, None) == expected


@pytest.mark.parametrize(("keep", "least"), [(0.95, 19), (0.9, 9), (0.99, 99), (0.5, 1), (0.8, 4), (0.01, 1)])
def test_the_least_images_on_average(keep: float, least: int) -> None:
    """⌈1 / (1 − keep)⌉ − 1, and at least one."""
    assert least_images(keep, None) == least
    assert rank_of(least, keep, None) >= 1 and (least == 1 or rank_of(least - 1, keep, None) == 0)


def test_the_strict_rank_of_small_sets_worked_by_hand() -> None:
    """keep ½, confidence ½, n = 3: P(Bin(3, ½) ≥ 2) = 4/8 is just enough, P(Bin ≥ 3) = 1/8 is not."""
    assert rank_of(3, 0.5, 0.5) == 2
    assert rank_of(3, 0.5, 0.125 * 7) == 1  # P(Bin ≥ 1) = 7/8
    assert rank_of(3, 0.5, 0.9) == 0
    # 0.95⁴⁴ = 0.1047 > 0.1 > 0.95⁴⁵ = 0.0994.
    assert rank_of(44, 0.95, 0.9) == 0 and rank_of(45, 0.95, 0.9) == 1
    assert least_images(0.95, 0.9) == 45
    # 0.9²⁸ = 0.0523 > 0.05 > 0.9²⁹ = 0.0471: the 29 images of textbooks.
    assert least_images(0.9, 0.95) == 29
    assert rank_of(5, 1.0, 0.9) == 0 and rank_of(0, 0.5, 0.9) == 0


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 3000), st.floats(0.01, 0.999), st.floats(0.01, 0.999))
def test_the_strict_rank_is_the_largest_that_the_beta_law_allows(images: int, keep: float, confidence: float) -> None:
    def sure(k: int) -> float:
        return float(stats.beta.sf(keep, images - k + 1, k))

    rank = rank_of(images, keep, confidence)
    assert rank == 0 or sure(rank) >= confidence - 1e-7
    assert rank == images or sure(rank + 1) < confidence + 1e-7


@pytest.mark.parametrize(
    ("keep", "confidence"), [*itertools.product([0.01, 0.5, 0.95, 0.999], [0.05, 0.5, 0.9, 0.9999])]
)
def test_the_least_number_of_images_is_the_least(keep: float, confidence: float) -> None:
    least = least_images(keep, confidence)
    assert rank_of(least, keep, confidence) >= 1
    assert least == 1 or rank_of(least - 1, keep, confidence) == 0


def test_ranks_of_extreme_settings_are_numbers() -> None:
    for keep, confidence in itertools.product([5e-324, 1e-300, 1 - 1e-16], [5e-324, 1e-12, 1 - 1e-16, None]):
        assert 0 <= rank_of(50, keep, confidence) <= 50
        assert least_images(keep, confidence) >= 1
    big = rank_of(1_000_000, 0.95, 0.9)
    assert abs(big - stats.binom.ppf(0.1, 1_000_000, 0.05)) <= 1


@pytest.mark.parametrize(("images", "percent"), [(20, 89.1), (50, 92.4), (100, 92.2), (200, 93.0), (500, 93.7)])
def test_the_bound_that_is_printed(images: int, percent: float) -> None:
    """The quantile of the Beta law, by scipy; the percentages are those of the study of thresholds."""
    rank = rank_of(images, 0.95, None)
    found = kept_at_least(images, rank)
    assert found == pytest.approx(stats.beta.ppf(0.1, images - rank + 1, rank), rel=1e-9)
    assert round(100 * found, 1) == percent
    assert f"at least {percent:g}% with 90% confidence" in str(Guarantee(0.95, None, images))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2000), st.floats(0.001, 0.999), st.floats(1e-6, 0.999))
def test_shares_and_tails_as_scipy_has_them(total: int, chance: float, doubt: float) -> None:
    count = int(chance * total)
    np.testing.assert_allclose(
        binomial(total, chance), stats.binom.pmf(np.arange(total + 1), total, chance), atol=1e-10
    )
    expected = 1.0 if count == total else stats.beta.ppf(1 - doubt, count + 1, total - count)
    assert upper_share(count, total, doubt) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("images", [20, 50, 100, 200, 500])
def test_new_images_are_kept_on_average_and_with_the_printed_confidence(images: int) -> None:
    """1,000 draws of uniform scores: the mean share kept is 1 − k/(n + 1); the printed bound holds in 90% of draws.

    Five standard errors of the Beta law are allowed, at most half a point for n ≥ 50.
    """
    draws = np.sort(np.random.default_rng(images).uniform(size=(1000, images)), axis=1)
    kept = 1 - np.array([threshold_of(row, 0.95, None) for row in draws])
    rank = rank_of(images, 0.95, None)
    error = 5 * stats.beta.std(images - rank + 1, rank) / math.sqrt(1000)
    assert abs(kept.mean() - (1 - rank / (images + 1))) <= error
    assert abs((kept >= kept_at_least(images, rank)).mean() - 0.9) <= 5 * 0.0095


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("images", [45, 100, 1000])
def test_new_images_are_kept_with_the_confidence_of_the_strict_rule(images: int, ties: bool) -> None:
    """2,000 draws: at least 90 % of thresholds keep 95 % of the law. Five standard errors of 0.67 points are allowed.

    With ties (scores of one digit) the share that a threshold keeps is read off the discrete law.
    """
    rng = np.random.default_rng(images)
    draws = np.sort(rng.uniform(size=(2000, images)), axis=1)
    if ties:
        draws = np.floor(draws * 50) / 50
    bounds = np.array([threshold_of(row, 0.95, 0.9) for row in draws])
    kept = 1 - bounds  # P(U ≥ b), and for b on the grid P(⌊50 U⌋/50 ≥ b) as well
    share = (kept >= 0.95 - 1e-12).mean()
    assert share >= 0.9 - 5 * 0.0067
    if not ties:
        rank = rank_of(images, 0.95, 0.9)
        exact = stats.binom.sf(rank - 1, images, 0.05)
        assert abs(share - exact) <= 5 * math.sqrt(exact * (1 - exact) / 2000) + 1e-9


def test_too_few_images_get_the_smallest_score() -> None:
    ascending = np.arange(1.0, 19.0)
    assert threshold_of(ascending, 0.95, None) == threshold_of(ascending, 0.95, 0.9) == 1.0
    assert threshold_of(ascending, 1.0, None) == 1.0
    assert threshold_of(np.arange(1.0, 101.0), 0.95, None) == 5.0
    assert threshold_of(np.arange(1.0, 101.0), 0.95, 0.9) == stats.binom.ppf(0.1, 100, 0.05)


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


@settings(max_examples=examples(200), deadline=None)
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


@pytest.mark.parametrize("ties", [False, True])
def test_p_values_are_super_uniform(ties: bool) -> None:
    """2,000 draws of 19 and a new one: P(p ≤ a) is a for a in twentieths, at most a with ties."""
    rng = np.random.default_rng(5)
    draws = rng.integers(0, 6, size=(2000, 20)) if ties else rng.normal(size=(2000, 20))
    p = np.array([conformal_p_values(np.sort(row[:19]), row[19:])[0] for row in draws.astype(np.float64)])
    for a in (0.05, 0.1, 0.25, 0.5):
        share, error = (p <= a + 1e-12).mean(), 5 * math.sqrt(a * (1 - a) / 2000)
        assert share <= a + error and (ties or share >= a - error)


def test_counts_over_folds_worked_by_hand() -> None:
    """Fold 0 has 1 and 4, fold 1 has 2 and 3: each is compared with the number of its own fold."""
    ascending, folds = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 1, 1, 0])
    values = np.array([[0.0, 9.0], [1.0, 2.5], [9.0, 0.0], [4.0, 3.0], [9.0, math.nan]])
    assert count_at_most(ascending, values, folds).tolist() == [2, 2, 2, 4, 0]
    np.testing.assert_allclose(conformal_p_values(ascending, values, folds), [0.6, 0.6, 0.6, 1.0, 0.2])


@given(st.integers(1, 500), st.integers(1, 100))
def test_a_rate_of_metrics_keeps_the_exact_share_rounded_up(images: int, percent: int) -> None:
    """In floats 0.56 · 25 is 14.000000000000002, and 0.07 · 100 is 7.000000000000001."""
    expected = math.ceil(Fraction(percent, 100) * images)
    assert threshold_at(np.arange(images, dtype=np.float64), percent / 100) == images - expected


def by_class(
    ascending: np.ndarray, truth: np.ndarray, named: np.ndarray, keep: float, sure: float | None
) -> Calibration:
    groups = class_groups(truth, named, keep, sure)
    return Calibration(ascending, Guarantee(keep, sure, len(ascending)), groups=groups)


def test_thresholds_by_class_worked_by_hand() -> None:
    """keep ½ on average: a class needs one image. Class 0 has scores 1, 3 (2 is classified as 1), class 1 has 4.

    Of two scores the rank is ⌊½ · 3⌋ = 1, of one ⌊½ · 2⌋ = 1, of all four ⌊½ · 5⌋ = 2.
    """
    ascending = np.array([1.0, 2.0, 3.0, 4.0])
    found = by_class(ascending, np.array([0, 0, 0, 1]), np.array([0, 1, 0, 1]), 0.5, None)
    assert found.groups is not None and found.groups.tolist() == [0, -1, 0, 1]
    assert {c: own.threshold for c, own in found.by_class.items()} == {0: 1.0, 1: 4.0} and found.threshold == 2.0
    values, named = np.array([1.0, 0.5, 3.0, 3.0, 4.0, 1.5]), np.array([0, 0, 0, 1, 1, 2])
    assert found.rejects(values, named).tolist() == [False, True, False, True, False, True]
    # Within class 0, within class 1, and none for a class that has no images of its own.
    np.testing.assert_allclose(found.p_values(values, named), [2 / 3, 1 / 3, 1.0, 1 / 2, 1.0, math.nan])


def test_a_class_needs_what_its_guarantee_needs() -> None:
    classes = np.repeat([0, 1], [45, 44])
    assert set(class_groups(classes, classes, 0.95, 0.9).tolist()) == {0, -1}
    classes = np.repeat([0, 1], [19, 18])
    assert set(class_groups(classes, classes, 0.95, None).tolist()) == {0, -1}


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
        found = by_class(values[order], truth[order], named[order], 0.95, 0.9)
        own.append(stats.norm.sf(found.by_class[1].threshold, loc=-1.5))
        pooled.append(stats.norm.sf(threshold_of(values[order], 0.95, 0.9), loc=-1.5))
    assert (np.array(own) >= 0.95).mean() >= 0.9 - 5 * 0.0095
    assert (np.array(pooled) >= 0.95).mean() < 0.05


@pytest.mark.parametrize("bad", [0, 1, -0.1, 1.5, math.nan, math.inf, -math.inf, "0.9", True, [0.9]])
def test_senseless_probabilities_are_refused(bad: object) -> None:
    with pytest.raises(InputError, match="confidence"):
        check_confidence(bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="fdr"):
        check_fdr(bad)  # type: ignore[arg-type]
    if bad != 1 or bad is True:
        with pytest.raises(InputError, match="`keep` must be"):
            check_keep(bad)  # type: ignore[arg-type]


def test_the_words_of_a_guarantee() -> None:
    assert str(Guarantee(0.95, None, 100)) == (
        "95% of new images like these are kept on average, at least 92.2% with 90% confidence (set on 100 images)."
    )
    assert str(Guarantee(0.95, 0.9, 200)) == (
        "At least 95% of new images like these are kept, with 90% confidence (set on 200 images)."
    )
    few = Guarantee(0.95, None, 18)
    assert not few.holds and "94.7%" in str(few) and "needs 19 images" in str(few), "18 of 19"
    assert "needs 45 images" in str(Guarantee(0.95, 0.9, 44))
    assert not Guarantee(1.0, None, 20).holds and "No number of images" in str(Guarantee(1.0, None, 20))
    trained = Guarantee(0.95, None, 100, trained=True)
    assert not trained.holds and "nothing is guaranteed" in str(trained) and trained.at_least is None
    fitted = Guarantee(0.95, None, 100, folds=5)
    assert fitted.at_least is None and str(fitted).startswith("About 95%") and "5 folds" in str(fitted)
    assert "not proven" in str(Guarantee(0.95, 0.9, 100, folds=5))
    several = str(Guarantee(0.95, 0.9, 500, own=("dog", "cat"), pooled=("bird",)))
    assert "within dog, cat" in several and "bird: fewer than 45" in several


def test_slack_by_hand() -> None:
    """Two hundred-thousandths of the range, and four millionths of the largest size: both count."""
    assert slack_of(np.array([-3.0, 0.5, 1.0])) == pytest.approx(2e-5 * 4 + 4e-6 * 3, rel=1e-12)
    assert slack_of(np.array([7.0, 7.0])) == pytest.approx(4e-6 * 7, rel=1e-12)
    assert slack_of(np.array([])) == 0


@settings(max_examples=examples(200))
@given(trials=st.integers(1, 3000), share=st.floats(0, 1), chance=st.floats(1e-4, 0.9999))
def test_the_tail_is_scipy_s(trials: int, share: float, chance: float) -> None:
    successes = round(share * trials)
    expected = stats.binom.sf(successes - 1, trials, chance)
    # scipy itself gives 0 for tails of 1e-260.
    assert binomial_tail(successes, trials, chance) == pytest.approx(expected, rel=1e-7, abs=1e-200)
