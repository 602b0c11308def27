"""Metrics against scikit-learn, against literal float64 definitions, and on cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from deltaenergy.errors import InputError
from deltaenergy.stats import metrics
from deltaenergy.stats.metrics import RankedScores

# Few distinct values, so that ties are the rule; and tiny groups.
many_ties = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)
any_floats = st.lists(st.floats(-1e6, 1e6, allow_nan=False, width=32), min_size=1, max_size=25)
groups = st.one_of(st.tuples(many_ties, many_ties), st.tuples(any_floats, any_floats))
rates = st.sampled_from([0.05, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0])


def literal_fpr(id_scores, ood_scores, rate):
    """Try thresholds from the highest score down; stop at the first that keeps enough ID images."""
    for threshold in sorted({*id_scores, *ood_scores}, reverse=True):
        if sum(s >= threshold for s in id_scores) >= rate * len(id_scores) - 1e-9:
            return sum(s >= threshold for s in ood_scores) / len(ood_scores)
    raise AssertionError("no threshold keeps all")


def literal_fpr_ood(id_scores, ood_scores, rate):
    """Try thresholds from the lowest score up; stop at the first at or below which enough OOD images lie."""
    for threshold in sorted({*id_scores, *ood_scores}):
        if sum(s <= threshold for s in ood_scores) >= rate * len(ood_scores) - 1e-9:
            return sum(s <= threshold for s in id_scores) / len(id_scores)
    raise AssertionError("no threshold rejects all")


def labels_and_scores(id_scores, ood_scores):
    return np.r_[np.ones(len(id_scores)), np.zeros(len(ood_scores))], np.r_[id_scores, ood_scores]


@given(groups)
def test_auroc_and_aupr_agree_with_scikit_learn(pair):
    labels, scores = labels_and_scores(*pair)
    ranked = RankedScores(*pair)
    assert ranked.auroc() == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert ranked.aupr_in() == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert ranked.aupr_out() == pytest.approx(average_precision_score(1 - labels, -scores), abs=1e-12)


@given(groups)
def test_auroc_is_the_share_of_ordered_pairs(pair):
    id_scores, ood_scores = map(np.asarray, pair)
    difference = id_scores[:, None] - ood_scores[None, :]
    assert metrics.auroc(*pair) == pytest.approx(((difference > 0) + 0.5 * (difference == 0)).mean(), abs=1e-12)


@given(groups, rates)
def test_both_fpr_conventions_agree_with_the_literal_search(pair, rate):
    ranked = RankedScores(*pair)
    assert ranked.fpr(rate) == pytest.approx(literal_fpr(*pair, rate), abs=1e-12)
    assert ranked.fpr_ood(rate) == pytest.approx(literal_fpr_ood(*pair, rate), abs=1e-12)


@given(groups)
def test_swapping_the_groups_and_the_sign_swaps_the_conventions(pair):
    ranked, swapped = RankedScores(*pair), RankedScores(-np.asarray(pair[1]), -np.asarray(pair[0]))
    assert ranked.auroc() == pytest.approx(swapped.auroc(), abs=1e-12)
    assert ranked.aupr_in() == pytest.approx(swapped.aupr_out(), abs=1e-12)
    assert ranked.fpr(0.9) == pytest.approx(swapped.fpr_ood(0.9), abs=1e-12)


@given(groups)
def test_order_of_images_and_increasing_maps_change_nothing(pair):
    id_scores, ood_scores = pair
    moved = RankedScores(np.sort(id_scores) * 3 + 7, np.sort(ood_scores)[::-1] * 3 + 7)
    before, after = RankedScores(id_scores, ood_scores).metrics(), moved.metrics()
    if len(np.unique([*id_scores, *ood_scores])) == len(moved.levels):  # no ties made by rounding
        assert after == pytest.approx(before, abs=1e-12)


@given(groups)
def test_area_under_the_roc_curve_is_auroc(pair):
    ranked = RankedScores(*pair)
    x, y = ranked.roc_curve()
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert (np.diff(x) >= 0).all() and (np.diff(y) >= 0).all()
    assert np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) == pytest.approx(ranked.auroc(), abs=1e-12)


def test_by_hand():
    # Falling: 5(id) 4(id) 3(id, ood) 2(id) 1(ood). Pairs of 8: above 3 → 2 + tie ½; above 1 → 4.
    ranked = RankedScores([5, 4, 3, 2], [3, 1])
    assert ranked.auroc() == pytest.approx(6.5 / 8)
    assert ranked.aupr_in() == pytest.approx((1 + 1 + 3 / 4 + 4 / 5) / 4)
    assert ranked.aupr_out() == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert ranked.fpr(0.5) == 0 and ranked.fpr(0.75) == 0.5 and ranked.fpr(0.95) == 0.5
    assert ranked.fpr_ood(0.5) == 0 and ranked.fpr_ood(0.95) == 0.5
    assert ranked.threshold(0.5) == 4 and ranked.threshold(1.0) == 2
    assert set(ranked.metrics(0.8)) == {"auroc", "aupr_in", "aupr_out", "fpr80", "fpr80_ood"}


def test_ninety_five_percent_of_twenty_is_nineteen():
    # In floating point 0.95 · 20 lies above 19.
    id_scores = [0.0, *range(2, 21)]
    assert metrics.fpr(id_scores, [1.0]) == 0
    assert metrics.images_for_rate(0.95, 20) == 19


@given(many_ties, rates)
def test_threshold_is_the_one_a_detector_would_take(scores, rate):
    from deltaenergy.stats.thresholds import threshold_at

    assert RankedScores(scores, [0.0]).threshold(rate) == threshold_at(np.sort(np.asarray(scores)), rate)


def test_tensors_of_any_precision_and_infinities():
    id_scores, ood_scores = [1.0, 0.5, math.inf], [0.5, -math.inf]
    expected = metrics.auroc(id_scores, ood_scores)
    assert expected == pytest.approx(5.5 / 6)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        tensors = [torch.tensor(s, dtype=dtype, requires_grad=True) for s in (id_scores, ood_scores)]
        assert metrics.auroc(*tensors) == expected


@pytest.mark.parametrize(
    ("id_scores", "ood_scores", "message"),
    [
        ([], [1.0], "id_scores is empty"),
        ([1.0], [], "ood_scores is empty"),
        ([1.0, math.nan, math.nan], [1.0], r"id_scores.* 2 .*index 1"),
        ([[1.0]], [1.0], "one number per image"),
    ],
)
def test_unusable_scores_are_named(id_scores, ood_scores, message):
    with pytest.raises(InputError, match=message):
        RankedScores(id_scores, ood_scores)


@pytest.mark.parametrize("rate", [0, -0.1, 1.01, math.nan])
def test_rate_outside_its_range(rate):
    with pytest.raises(InputError, match="rate must be"):
        metrics.fpr([1.0], [0.0], rate)


# --- intervals -------------------------------------------------------------------------------------------------


@given(groups, st.integers(0, 5))
@settings(max_examples=25)
def test_resamples_are_those_of_resorting_the_drawn_images(pair, seed):
    """The re-weighted histograms give what drawing images and ranking them anew gives, draw for draw."""
    ranked, resamples = RankedScores(*pair), 7
    id_sorted, ood_sorted = (np.sort(np.asarray(group, dtype=float))[::-1] for group in pair)
    id_rng, ood_rng = np.random.default_rng(seed).spawn(2)
    id_draws = id_rng.integers(len(id_sorted), size=(resamples, len(id_sorted)))
    ood_draws = ood_rng.integers(len(ood_sorted), size=(resamples, len(ood_sorted)))
    redone = [RankedScores(id_sorted[i], ood_sorted[o]).metrics() for i, o in zip(id_draws, ood_draws)]
    estimates = ranked.estimates(resamples=resamples, seed=seed, confidence=0.8)
    for name, estimate in estimates.items():
        low, high = np.quantile([row[name] for row in redone], [0.1, 0.9])
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-12)
        assert estimate.value == ranked.metrics()[name]


def test_intervals_repeat_with_the_seed_and_do_not_depend_on_block_size(monkeypatch):
    rng = np.random.default_rng(0)
    ranked = RankedScores(rng.normal(1, 1, 60), rng.normal(0, 1, 40))
    assert ranked.estimates(seed=3) == ranked.estimates(seed=3)
    assert ranked.estimates(seed=3) != ranked.estimates(seed=4)
    whole = ranked.estimates(seed=3)
    monkeypatch.setattr(metrics, "BLOCK_ENTRIES", 700)
    assert ranked.estimates(seed=3) == whole


def test_auroc_interval_has_the_width_that_theory_gives():
    # Hanley & McNeil (1982): the standard error of AUROC from its value and the two set sizes.
    rng = np.random.default_rng(1)
    n_id, n_ood = 300, 200
    ranked = RankedScores(rng.normal(1, 1, n_id), rng.normal(0, 1, n_ood))
    area = ranked.auroc()
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    error = math.sqrt((area * (1 - area) + (n_id - 1) * (q1 - area**2) + (n_ood - 1) * (q2 - area**2)) / n_id / n_ood)
    estimate = ranked.estimates(resamples=2000)["auroc"]
    assert (estimate.high - estimate.low) / (2 * 1.96) == pytest.approx(error, rel=0.1)
    assert estimate.low < area < estimate.high


def test_interval_arguments():
    ranked = RankedScores([1.0], [0.0])
    with pytest.raises(InputError, match="resamples"):
        ranked.estimates(resamples=0)
    with pytest.raises(InputError, match="confidence"):
        ranked.estimates(confidence=1.0)


# --- proportions -----------------------------------------------------------------------------------------------


def test_interval_of_a_proportion():
    # Wilson's interval in the form it is derived from: the p with |p̂ − p| = z √(p(1 − p)/n).
    estimate = metrics.proportion_estimate(27, 30)
    for bound in (estimate.low, estimate.high):
        assert abs(0.9 - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / 30), rel=1e-6)
    perfect = metrics.proportion_estimate(15, 15)
    assert perfect.high == 1.0 and 0.7 < perfect.low < 0.85


@given(st.integers(1, 200), st.data())
def test_proportion_lies_inside_its_interval(total, data):
    estimate = metrics.proportion_estimate(data.draw(st.integers(0, total)), total)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_a_share_of_more_than_all():
    with pytest.raises(InputError, match="proportion"):
        metrics.proportion_estimate(3, 2)
