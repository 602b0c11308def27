"""Resamples against the multinomial distribution itself and plain draws; their metrics against scikit-learn."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from sklearn.metrics import average_precision_score, roc_auc_score

from deltaenergy.errors import InputError
from deltaenergy.stats import metrics, ranking
from deltaenergy.stats import ranking as ranks
from deltaenergy.stats.metrics import RankedScores, paired_differences, paired_mean_difference
from deltaenergy.stats.ranking import Ranked, Ranks, draw, weighted_sums
from tests.sampling import examples


@pytest.mark.parametrize(("images", "piece"), [(5, 8), (5, 4), (5, 2), (4, 2)])
def test_counts_have_the_multinomial_distribution(monkeypatch, images, piece):
    """Every possible resample comes as often as it should: of one piece, of several, and with a short last one."""
    monkeypatch.setattr(ranking, "PIECE", piece)
    rows = 60_000
    found, times = np.unique(draw(images, rows, np.random.default_rng(0)), axis=0, return_counts=True)
    seen = {tuple(row): count for row, count in zip(found.tolist(), times.tolist())}
    possible = [row for row in itertools.product(range(images + 1), repeat=images) if sum(row) == images]
    assert set(seen) <= set(possible)
    share = np.array([math.factorial(images) / math.prod(map(math.factorial, row)) for row in possible])
    expected = rows * share / images**images
    assert expected.sum() == pytest.approx(rows)
    statistic = sum((seen.get(row, 0) - mean) ** 2 / mean for row, mean in zip(possible, expected))
    assert 0.001 < chi2.cdf(statistic, len(possible) - 1) < 0.999


@pytest.mark.parametrize("images", [1, 7, 8, 9, 16, 61])
def test_each_resample_has_as_many_images_and_does_not_depend_on_how_many_are_drawn_at_once(monkeypatch, images):
    monkeypatch.setattr(ranking, "PIECE", 8)
    whole = draw(images, 30, np.random.default_rng(1))
    assert whole.shape == (30, images) and (whole.sum(axis=1) == images).all() and (whole >= 0).all()
    rng = np.random.default_rng(1)
    assert (whole == np.concatenate([draw(images, rows, rng) for rows in (1, 4, 25)])).all()


def test_full_pieces_are_drawn_evenly():
    """At its true size: every image of a piece, the first and the last, in the pieces before the short one."""
    images = 2 * ranking.PIECE + 100
    total = draw(images, 400, np.random.default_rng(2)).sum(axis=0)
    # Each is Binomial(400 n, 1/n): mean 400, deviation 20; and so are sums of 128 of them, with 128 times the variance.
    assert abs(total - 400).max() < 6 * 20
    sums = total[: images - images % 128].reshape(-1, 128).sum(axis=1)
    assert abs(sums - 400 * 128).max() < 5 * 20 * math.sqrt(128)
    assert np.var(total) == pytest.approx(400, rel=0.05)


def test_a_group_of_one_piece_is_drawn_image_by_image():
    counts = draw(40, 3, np.random.default_rng(5))
    plain = np.random.default_rng(5).integers(40, size=(3, 40))
    assert (counts == [np.bincount(row, minlength=40) for row in plain]).all()


some = st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-9, 9, width=16)), min_size=1, max_size=14)


@given(some, some, st.integers(0, 99), st.integers(1, 5), st.sampled_from([0.3, 0.5, 0.9, 0.95, 1.0]))
@settings(max_examples=examples(150))
def test_metrics_of_given_counts_are_those_of_the_repeated_images(id_scores, ood_scores, seed, part, rate):
    rng = np.random.default_rng(seed)
    falling = [np.sort(np.array(group))[::-1] for group in (id_scores, ood_scores)]
    drawn = [rng.multinomial(len(group), np.full(len(group), 1 / len(group)), size=3) for group in falling]
    drawn = [counts.astype(np.int32) for counts in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "PART", part)
        found = Ranks(*map(Ranked, falling)).resampled(*drawn).metrics(rate)
    percent = f"{100 * rate:.10g}"
    for row in range(3):
        ids, oods = (np.repeat(group, counts[row]) for group, counts in zip(falling, drawn))
        truth, scores = np.r_[np.ones(len(ids)), np.zeros(len(oods))], np.r_[ids, oods]
        assert found["auroc"][row] == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
        assert found["aupr_in"][row] == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
        assert found["aupr_out"][row] == pytest.approx(average_precision_score(1 - truth, -scores), abs=1e-12)
        enough = max(t for t in ids if (ids >= t).mean() >= rate - 1e-9)
        assert found[f"fpr{percent}"][row] == pytest.approx((oods >= enough).mean(), abs=1e-12)
        enough = min(t for t in oods if (oods <= t).mean() >= rate - 1e-9)
        assert found[f"fpr{percent}_ood"][row] == pytest.approx((ids <= enough).mean(), abs=1e-12)


@given(some, some, st.integers(1, 5))
@settings(max_examples=60)
def test_counts_of_images_in_any_order_are_those_of_the_same_images_by_score(id_scores, ood_scores, part):
    """What a paired comparison gives is what the images themselves give."""
    rng = np.random.default_rng(len(id_scores))
    groups = [np.array(group) for group in (id_scores, ood_scores)]
    drawn = [rng.multinomial(len(group), np.full(len(group), 1 / len(group)), size=2) for group in groups]
    drawn = [counts.astype(np.int32) for counts in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "PART", part)
        found = Ranks(*(Ranked(group, ordered=True) for group in groups)).resampled(*drawn).metrics(0.9)
    for row in range(2):
        again = RankedScores(*(np.repeat(group, counts[row]) for group, counts in zip(groups, drawn))).metrics(0.9)
        assert {name: values[row] for name, values in found.items()} == pytest.approx(again, abs=1e-12)


def test_intervals_of_many_pieces_are_those_of_plain_resampling(monkeypatch):
    """Images drawn one by one, from other random numbers: the same percentiles, as far as 3,000 resamples tell.

    The standard error of such a percentile is about 1 % of the interval's width.
    """
    monkeypatch.setattr(ranking, "PIECE", 16)
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 90).round(1), rng.normal(0, 1, 70).round(1)
    drawn: dict[str, list[float]] = {"auroc": [], "fpr95": [], "fpr95_ood": []}
    for _ in range(3000):
        ids, oods = np.sort(rng.choice(known, 90)), np.sort(rng.choice(unknown, 70))
        difference = ids[:, None] - oods
        drawn["auroc"].append(((difference > 0) + 0.5 * (difference == 0)).mean())
        drawn["fpr95"].append((oods >= ids[4]).mean())  # 86 of 90 are kept
        drawn["fpr95_ood"].append((ids <= oods[66]).mean())  # 67 of 70 are rejected
    found = RankedScores(known, unknown).estimates(resamples=3000, seed=1)
    for name, values in drawn.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert (found[name].low, found[name].high) == pytest.approx((low, high), abs=0.05 * (high - low))


def test_pairs_see_the_same_images_in_every_piece(monkeypatch):
    monkeypatch.setattr(ranking, "PIECE", 8)
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 60), rng.normal(0, 1, 45)
    same = paired_differences((known, unknown), (3 * known - 1, 3 * unknown - 1), resamples=40)
    assert all(value == (0, 0, 0) for value in same.values())
    shift = paired_mean_difference(known, known + 2, resamples=40)
    assert shift == pytest.approx((2, 2, 2), abs=1e-12)


@pytest.mark.parametrize("piece", [8, 2**14])
def test_blocks_and_seeds(monkeypatch, piece):
    monkeypatch.setattr(ranking, "PIECE", piece)
    rng = np.random.default_rng(0)
    known, unknown, other = rng.normal(1, 1, 60), rng.normal(0, 1, 40), rng.normal(0, 1, 60)

    def estimates(seed):
        one = RankedScores(known, unknown).estimates(resamples=60, seed=seed)
        return one, paired_mean_difference(known, other, resamples=60, seed=seed)

    whole = estimates(3)
    assert estimates(3) == whole and estimates(4) != whole
    monkeypatch.setattr(metrics, "BLOCK_ENTRIES", 250)
    assert estimates(3) == whole


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20), st.integers(1, 6))
def test_weighted_sums(values, part):
    counts = np.random.default_rng(0).integers(0, 4, size=(3, len(values))).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "PART", part)
        assert weighted_sums(counts, np.array(values)) == pytest.approx(counts @ np.array(values), abs=1e-9)


@pytest.mark.parametrize("decimals", [None, 4])
def test_memory_of_an_image(decimals):
    """Sorted scores and ranks, 12 bytes; counts and running sums of one resample, 8; and flags."""
    images = 200_000
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, images // 2), rng.normal(0, 1, images // 2)
    if decimals is not None:
        known, unknown = known.round(decimals), unknown.round(decimals)
    RankedScores(known[:100], unknown[:100]).estimates(resamples=2)  # what is imported late is not ours
    tracemalloc.start()
    try:
        RankedScores(known, unknown).estimates(resamples=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 22 * images + 1_000_000


def test_more_images_than_ranks_can_count_are_refused():
    many = np.broadcast_to(np.float64(0), 2**31)
    with pytest.raises(InputError, match=r"ood_scores.*2147483648"):
        RankedScores([1.0], many)
