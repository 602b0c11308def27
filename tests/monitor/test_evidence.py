"""The bets against their definitions: fractions, enumeration, scipy and quadrature; as fair games; by simulation."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from deltaenergy.monitor import evidence
from deltaenergy.monitor.evidence import (
    EXPONENTS,
    STAKES,
    Restarts,
    ScoreCells,
    count_below,
    log_mean_of_two,
    log_rate_bets,
    log_rate_evidence,
    log_shift_bets,
    log_shift_evidence,
    log_weight,
)
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


def fallen_into(cells: ScoreCells, scores: list[float]) -> list[int]:
    """The cell of each image in turn."""
    found = []
    for score in scores:
        before = cells.counts.copy()
        cells.p_values(np.array([score]))
        (cell,) = np.flatnonzero(cells.counts - before)
        found.append(int(cell))
    return found


@pytest.mark.parametrize("most", [1000, 3, 2])
def test_of_all_orders_every_one_as_likely_each_cell_gets_its_share(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 calibration scores and 3 images: 720 orders. How often each sequence of cells comes is what the urn says."""
    monkeypatch.setattr(evidence, "MOST_CELLS", most)
    seen: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(6)):
        scores = np.array(order, float)
        cells = ScoreCells(np.sort(scores[:3]), seed=0)
        seen[tuple(fallen_into(cells, scores[3:].tolist()))] += 1
    weights = ScoreCells(np.arange(3.0), seed=0).weights.tolist()
    assert sum(weights) == 4 and len(weights) == min(4, most)
    for sequence, count in seen.items():
        chance, masses = Fraction(1), list(weights)
        for cell in sequence:
            chance *= Fraction(masses[cell], sum(masses))
            masses[cell] += 1
        assert Fraction(count, 720) == chance, sequence


def test_p_values_of_all_cells_tile_the_unit_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell, U from 0 to 1 leads from the end of the cell below to the end of this one: p is uniform."""
    ends = {}
    for u in (0.0, 1 - 2**-53):
        for cell in range(5):
            cells = ScoreCells(np.arange(4.0), seed=0)
            cells.counts[:] = [3, 0, 1, 2, 0]

            class Lots:
                def __init__(self, *_: object, **__: object) -> None: ...

                def random(self, shape: tuple[int, int], u: float = u) -> object:
                    return np.full(shape, u)

            with monkeypatch.context() as patched:
                patched.setattr(np.random, "Generator", Lots)
                ends[cell, u] = float(cells.p_values(np.array([cell - 0.5]))[0])
    masses = np.array([4, 1, 2, 3, 1])
    assert [ends[cell, 0.0] for cell in range(5)] == pytest.approx((np.cumsum(masses) / 11).tolist())
    assert [ends[cell, 1 - 2**-53] for cell in range(5)] == pytest.approx([0, 4 / 11, 5 / 11, 7 / 11, 10 / 11])


@given(st.integers(1, 30), st.integers(1, 60), st.integers(0, 2**32))
def test_p_values_by_their_definition(known: int, images: int, seed: int) -> None:
    """(#below + U·(1 + #ties)) / (m + 1), where images between the same two calibration scores tie."""
    rng = np.random.default_rng(seed)
    reference, scores = np.sort(rng.normal(size=known)), rng.normal(-0.3, 1, size=images)
    found = ScoreCells(reference, seed=5).p_values(scores)
    gaps: list[int] = []
    for t, score in enumerate(scores):
        gap = sum(value < score for value in reference)
        below = gap + sum(other < gap for other in gaps)
        ties = sum(other == gap for other in gaps)
        u = (found[t] * (known + t + 1) - below) / (1 + ties)
        assert -1e-9 < u <= 1 + 1e-9
        gaps.append(gap)
    assert ((found > 0) & (found <= 1)).all()


def test_p_values_in_batches_of_any_size_are_the_same() -> None:
    rng = np.random.default_rng(0)
    reference, scores = np.sort(rng.normal(size=40).round(1)), rng.normal(size=300).round(1)
    whole = ScoreCells(reference, seed=9).p_values(scores)
    parts = ScoreCells(reference, seed=9)
    found = [parts.p_values(part) for part in np.split(scores, [0, 1, 8, 200])]
    assert np.array_equal(np.concatenate(found), whole)
    assert not np.array_equal(ScoreCells(reference, seed=10).p_values(scores), whole)


@pytest.mark.parametrize("digits", [0, 1, 12])
@pytest.mark.parametrize("known", [20, 3000])
def test_uniform_and_independent_with_ties_and_without(digits: int, known: int) -> None:
    """Fixed seeds: the law of 6,000 p-values of 500 streams, and how one goes with the next."""
    rng = np.random.default_rng(digits + known)
    found = []
    for stream in range(500):
        scores = rng.normal(size=known + 12).round(digits)
        found.append(ScoreCells(np.sort(scores[:known]), seed=stream).p_values(scores[known:]))
    p_values = np.array(found)
    assert stats.kstest(p_values.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(p_values[:, 1:].ravel(), p_values[:, :-1].ravel())[0, 1]) < 0.045


def test_no_number_is_below_all() -> None:
    reference = np.array([-1e9, 0.0, 1.0])
    assert fallen_into(ScoreCells(reference, seed=0), [math.nan, -math.inf, math.inf]) == [0, 0, 3]


@given(st.lists(st.floats(1e-9, 1), max_size=40))
def test_the_mean_over_exponents_of_the_product_of_bets(p_values: list[float]) -> None:
    products = [math.prod(e * p ** (e - 1) for p in p_values) for e in EXPONENTS.tolist()]
    found = log_shift_evidence(len(p_values), sum(map(math.log, p_values)))
    assert found[0] == pytest.approx(math.log(sum(products) / len(products)), abs=1e-9)


def test_each_bet_is_fair() -> None:
    """∫ ε p^(ε − 1) dp = 1 for each exponent; by the trapezoid rule in log p, where the integrand is ε·e^(εx)."""
    for e in EXPONENTS[[0, 10, 49]]:
        x = np.linspace(-40, 0, 100_001) / e
        assert np.trapezoid(e * np.exp(e * x), x) == pytest.approx(1, abs=1e-6)


def test_long_streams_do_not_overflow() -> None:
    t = np.array([10, 10**6, 10**7])
    found = log_shift_evidence(t, -2.0 * t)
    assert np.isfinite(found).all() and (np.diff(found) > 0).all()
    # The best exponent is 1/2, and the mean is no less than a fiftieth of its neighbours'.
    assert found[1] == pytest.approx(10**6 * (2 * 0.5 - math.log(2)), rel=1e-3)


def on_rate(bound: float) -> Restarts:
    return Restarts(len(STAKES), lambda flags: log_rate_bets(flags, bound))


def on_shift() -> Restarts:
    return Restarts(len(EXPONENTS), log_shift_bets)


def waiting(images: int) -> Fraction:
    """The share that has not begun, exactly as a float has it."""
    return Fraction((1 + images) ** -0.2)


def by_all_starts(flags: tuple[int, ...], q: Fraction) -> Fraction:
    """Σ_s w_s · the mean over stakes of ∏_{i ≥ s} (1 + λ(X_i − q)), and 1 for all that has not begun."""
    total = waiting(len(flags))
    for start in range(1, len(flags) + 1):
        fortunes = []
        for stake in STAKES.tolist():
            fortune = Fraction(1)
            for flag in flags[start - 1 :]:
                fortune *= 1 + Fraction(stake) / q * (flag - q)
            fortunes.append(fortune)
        total += (waiting(start - 1) - waiting(start)) * sum(fortunes) / len(fortunes)
    return total


@pytest.mark.parametrize("q", [Fraction(1, 16), Fraction(1, 4), Fraction(13, 16)])
def test_every_short_sequence_gives_the_sum_over_all_starts(q: Fraction) -> None:
    for length in range(7):
        for flags in itertools.product((0, 1), repeat=length):
            bets = on_rate(float(q))
            found, _ = bets.add(np.array(flags, float))
            assert math.exp(bets.log_evidence) == pytest.approx(float(by_all_starts(flags, q)), rel=1e-12)
            assert not length or found[-1] == bets.log_evidence


@given(st.lists(st.floats(1e-12, 1), min_size=1, max_size=25))
def test_p_values_give_the_sum_over_all_starts(p_values: list[float]) -> None:
    total = (1 + len(p_values)) ** -0.2
    for start in range(1, len(p_values) + 1):
        products = [math.prod(e * p ** (e - 1) for p in p_values[start - 1 :]) for e in EXPONENTS.tolist()]
        total += (start**-0.2 - (1 + start) ** -0.2) * sum(products) / len(products)
    assert math.exp(on_shift().add(np.log(p_values))[0][-1]) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("q", [0.02, 0.3])
def test_a_supermartingale_by_every_sequence(q: float) -> None:
    """After each sequence of up to eight images, the mean over the next one is the same at the bound, less below."""
    for length in range(9):
        for flags in itertools.product((0.0, 1.0), repeat=length):
            now, passed, flagged = (
                math.exp(bets.log_evidence)
                for bets in (_after(q, flags), _after(q, (*flags, 0.0)), _after(q, (*flags, 1.0)))
            )
            assert q * flagged + (1 - q) * passed == pytest.approx(now, rel=1e-12)
            assert 0.4 * q * flagged + (1 - 0.4 * q) * passed < now
            assert passed < now < flagged


def _after(q: float, flags: tuple[float, ...]) -> Restarts:
    bets = on_rate(q)
    bets.add(np.array(flags))
    return bets


def test_a_martingale_in_uniform_p_values() -> None:
    """∫ R_{t+1} dp = R_t, whatever came before; by quadrature in log p, where 0.01·p^(−0.99) has a long tail."""
    for before in ([], [0.5], [1e-6, 0.9, 0.2], [0.01] * 5 + [0.99] * 20):
        bets = on_shift()
        bets.add(np.log(np.array(before)))
        state, images = bets.logs, bets.images

        def next_one(x: float, state: np.ndarray = state, images: int = images) -> float:
            after = on_shift()
            after.logs, after.images = state, images
            return math.exp(float(after.add(np.array([x]))[0][0]) + x)

        cuts = [-2500.0, -300.0, -40.0, -5.0, 0.0]
        mean = sum(integrate.quad(next_one, a, b, epsrel=1e-9)[0] for a, b in itertools.pairwise(cuts))
        assert mean == pytest.approx(math.exp(bets.log_evidence), rel=1e-7)


def test_the_shares_of_all_starts_sum_to_one() -> None:
    total = math.fsum(math.exp(log_weight(start)) for start in range(1, 20_001)) + 20_001**-0.2
    assert total == pytest.approx(1, abs=1e-12)
    for start in (10**6, 10**9, 10**15):  # where the difference of two shares would have lost its digits
        expected = math.log(0.2) - 1.2 * math.log(start)
        assert log_weight(start) == pytest.approx(expected, abs=2 / start + 1e-9)
    assert log_weight(5000) == pytest.approx(-11.83, abs=0.01) and log_weight(10**6) == pytest.approx(-18.19, abs=0.01)


def crossings(streams: int, images: int, level: float, seed: int) -> tuple[float, float]:
    """The share of streams at the bound, with uniform p-values, whose evidence ever reaches the level."""
    rng = np.random.default_rng(seed)
    q, hits = 0.06, np.zeros(2)
    for _ in range(streams):
        flags, log_p = (rng.random(images) < q).astype(float), np.log1p(-rng.random(images))
        hits += [on_rate(q).add(flags)[0].max() >= math.log(level), on_shift().add(log_p)[0].max() >= math.log(level)]
    return float(hits[0]) / streams, float(hits[1]) / streams


def test_false_alarms_of_the_restarts_alone() -> None:
    """400 streams of 300 images, by fixed seeds: the level 4 is reached by at most a quarter, and by some."""
    for share in crossings(400, 300, 4.0, seed=1):
        assert 0.01 < share <= 0.25


def test_a_new_stake_for_every_image_would_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain sum of Shiryaev and Roberts, a stake of 1 at each image: in the very same test it fails."""
    monkeypatch.setattr(evidence, "log_weight", lambda start: 0.0)
    assert min(crossings(40, 300, 4.0, seed=1)) > 0.25


def test_batches_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    log_p = np.log1p(-np.random.default_rng(0).random(200))
    whole, parts, short = on_shift(), on_shift(), on_shift()
    found = np.array(whole.add(log_p))
    assert np.array_equal(np.hstack([parts.add(part) for part in np.split(log_p, [0, 1, 8, 150])]), found)
    monkeypatch.setattr(evidence, "_ROWS", 7)
    assert np.array_equal(short.add(log_p), found) and np.array_equal(short.logs, whole.logs)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.sampled_from([0.05, 0.3]))
def test_the_change_is_the_start_of_the_largest_fortune(flags: list[bool], q: float) -> None:
    """Over all starts and all stakes by brute force; where no start has won anything, it is the last image."""
    bets = log_rate_bets(np.array(flags, float), q)
    fortunes = np.array([bets[start:].sum(axis=0) for start in range(len(flags))])
    _, since = on_rate(q).add(np.array(flags, float))
    assert fortunes[since[-1]].max() == pytest.approx(fortunes.max(), abs=1e-9)


def test_the_mean_of_two() -> None:
    assert log_mean_of_two(math.log(3), math.log(5)) == pytest.approx(math.log(4))
    assert log_mean_of_two(-5000.0, 2.0) == pytest.approx(2 - math.log(2))
    assert log_mean_of_two(9000.0, -3.0) == pytest.approx(9000 - math.log(2))
