"""The conformal martingale: p-values by their definition, exactly uniform by enumeration, the mean over exponents."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from deltaenergy.monitor import evidence as shift
from deltaenergy.monitor.evidence import EXPONENTS, Cells, log_shift_evidence


def fallen_into(cells: Cells, scores: list[float]) -> list[int]:
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
    monkeypatch.setattr(shift, "MOST_CELLS", most)
    seen: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(6)):
        scores = np.array(order, float)
        cells = Cells(np.sort(scores[:3]), seed=0)
        seen[tuple(fallen_into(cells, scores[3:].tolist()))] += 1
    weights = Cells(np.arange(3.0), seed=0).weights.tolist()
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
            cells = Cells(np.arange(4.0), seed=0)
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
    found = Cells(reference, seed=5).p_values(scores)
    gaps: list[int] = []
    for t, score in enumerate(scores):
        gap = sum(value < score for value in reference)
        below = gap + sum(other < gap for other in gaps)
        ties = sum(other == gap for other in gaps)
        u = (found[t] * (known + t + 1) - below) / (1 + ties)
        assert -1e-9 < u <= 1 + 1e-9
        gaps.append(gap)
    assert ((found > 0) & (found <= 1)).all()


def test_batches_of_any_size_give_the_same() -> None:
    rng = np.random.default_rng(0)
    reference, scores = np.sort(rng.normal(size=40).round(1)), rng.normal(size=300).round(1)
    whole = Cells(reference, seed=9).p_values(scores)
    parts = Cells(reference, seed=9)
    found = [parts.p_values(part) for part in np.split(scores, [0, 1, 8, 200])]
    assert np.array_equal(np.concatenate(found), whole)
    assert not np.array_equal(Cells(reference, seed=10).p_values(scores), whole)


@pytest.mark.parametrize("digits", [0, 1, 12])
@pytest.mark.parametrize("known", [20, 3000])
def test_uniform_and_independent_with_ties_and_without(digits: int, known: int) -> None:
    """Fixed seeds: the law of 6,000 p-values of 500 streams, and how one goes with the next."""
    rng = np.random.default_rng(digits + known)
    found = []
    for stream in range(500):
        scores = rng.normal(size=known + 12).round(digits)
        found.append(Cells(np.sort(scores[:known]), seed=stream).p_values(scores[known:]))
    p_values = np.array(found)
    assert stats.kstest(p_values.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(p_values[:, 1:].ravel(), p_values[:, :-1].ravel())[0, 1]) < 0.045


def test_no_number_is_below_all() -> None:
    reference = np.array([-1e9, 0.0, 1.0])
    assert fallen_into(Cells(reference, seed=0), [math.nan, -math.inf, math.inf]) == [0, 0, 3]


@given(st.lists(st.floats(1e-9, 1), max_size=40))
def test_the_mean_over_exponents_of_the_product_of_bets(p_values: list[float]) -> None:
    products = [math.prod(e * p ** (e - 1) for p in p_values) for e in EXPONENTS.tolist()]
    found = log_shift_evidence(len(p_values), sum(map(math.log, p_values)))
    assert found[0] == pytest.approx(math.log(sum(products) / len(products)), abs=1e-9)


def test_each_bet_is_fair() -> None:
    """∫ ε p^(ε − 1) dp = 1 for each exponent; by the trapezoid rule in log p, where the integrand is ε·e^(εx)."""
    x = np.linspace(-3000, 0, 3_000_001)
    for e in EXPONENTS[[0, 10, 49]]:
        assert np.trapezoid(e * np.exp(e * x), x) == pytest.approx(1, abs=1e-6)


def test_long_streams_do_not_overflow() -> None:
    t = np.array([10, 10**6, 10**7])
    found = log_shift_evidence(t, -2.0 * t)
    assert np.isfinite(found).all() and (np.diff(found) > 0).all()
    # The best exponent is 1/2, and the mean is no less than a fiftieth of its neighbours'.
    assert found[1] == pytest.approx(10**6 * (2 * 0.5 - math.log(2)), rel=1e-3)
