"""Bets that begin at every image: against the sum over all starts in fractions, as a fair game, and by simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from deltaenergy.monitor import restarts
from deltaenergy.monitor.evidence import EXPONENTS, log_shift_bets
from deltaenergy.monitor.rate import STAKES, log_rate_bets
from deltaenergy.monitor.restarts import Restarts, log_halves, log_weight


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
            found = bets.add(np.array(flags, float))
            assert math.exp(bets.log_evidence) == pytest.approx(float(by_all_starts(flags, q)), rel=1e-12)
            assert not length or found[-1] == bets.log_evidence


@given(st.lists(st.floats(1e-12, 1), min_size=1, max_size=25))
def test_p_values_give_the_sum_over_all_starts(p_values: list[float]) -> None:
    total = (1 + len(p_values)) ** -0.2
    for start in range(1, len(p_values) + 1):
        products = [math.prod(e * p ** (e - 1) for p in p_values[start - 1 :]) for e in EXPONENTS.tolist()]
        total += (start**-0.2 - (1 + start) ** -0.2) * sum(products) / len(products)
    assert math.exp(on_shift().add(np.log(p_values))[-1]) == pytest.approx(total, rel=1e-9)


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
            return math.exp(float(after.add(np.array([x]))[0]) + x)

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
        hits += [on_rate(q).add(flags).max() >= math.log(level), on_shift().add(log_p).max() >= math.log(level)]
    return float(hits[0]) / streams, float(hits[1]) / streams


def test_false_alarms_of_the_restarts_alone() -> None:
    """400 streams of 300 images, by fixed seeds: the level 4 is reached by at most a quarter, and by some."""
    for share in crossings(400, 300, 4.0, seed=1):
        assert 0.01 < share <= 0.25


def test_a_new_stake_for_every_image_would_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain sum of Shiryaev and Roberts, a stake of 1 at each image: in the very same test it fails."""
    monkeypatch.setattr(restarts, "log_weight", lambda start: 0.0)
    assert min(crossings(40, 300, 4.0, seed=1)) > 0.25


def test_batches_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    log_p = np.log1p(-np.random.default_rng(0).random(200))
    whole, parts, short = on_shift(), on_shift(), on_shift()
    found = whole.add(log_p)
    assert np.array_equal(np.concatenate([parts.add(part) for part in np.split(log_p, [0, 1, 8, 150])]), found)
    monkeypatch.setattr(restarts, "_ROWS", 7)
    assert np.array_equal(short.add(log_p), found) and np.array_equal(short.logs, whole.logs)


def test_halves() -> None:
    assert log_halves(math.log(3), math.log(5)) == pytest.approx(math.log(4))
    assert log_halves(-5000.0, 2.0) == pytest.approx(2 - math.log(2))
    assert log_halves(9000.0, -3.0) == pytest.approx(9000 - math.log(2))
