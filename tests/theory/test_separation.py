"""The appendix's expansions for many classes, by their formulas in NumPy; Theorem 2 by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.scores import delta_energy, mcm
from deltaenergy.theory.separation import false_positive_rates, largest_excess, many_classes_at


def close_cosines(rows: int, classes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.1, 0.3, (rows, classes)))


def test_all_classes_by_hand() -> None:
    s, tau = close_cosines(50, 40, 0), 0.2
    last = many_classes_at(s, None, tau, np.random.default_rng(0))[-1]
    powers = np.exp(s.numpy() / tau)
    top = powers.max(axis=1)
    b = powers.sum(axis=1) - top
    delta, share = np.log((top + b) / (b + 1)), top / (top + b)
    assert (last.classes, last.tau) == (40, tau)
    assert last.ratio == pytest.approx(np.median(b / top))
    assert last.assumption == pytest.approx((b >= 10 * top).mean())
    expanded, expanded_mcm = (top - 1) / b - (top - 1) ** 2 / (2 * b**2), top / b - top**2 / b**2
    assert last.error == pytest.approx(np.median(np.abs(expanded / delta - 1)), rel=1e-6)
    assert last.error_mcm == pytest.approx(np.median(np.abs(expanded_mcm / share - 1)), rel=1e-6)


def test_at_a_temperature_of_one_the_assumption_comes_with_the_classes() -> None:
    s = close_cosines(30, 100, 1)
    found = many_classes_at(s, close_cosines(30, 100, 2), 1.0, np.random.default_rng(0))
    assert [one.classes for one in found] == [2, 4, 8, 16, 32, 64, 100]
    assert found[0].assumption == 0 and found[-1].assumption == 1
    assert found[-1].error < 0.05 and found[-1].error_mcm < 0.01
    ratios = [one.ratio for one in found]
    assert ratios == sorted(ratios)


def test_at_a_small_temperature_one_class_may_outweigh_all_others() -> None:
    s = close_cosines(30, 100, 1)
    s[:, 0] = 0.6
    (last,) = [one for one in many_classes_at(s, None, 0.01, np.random.default_rng(0)) if one.classes == 100]
    assert last.assumption == 0 and last.ratio < 1e-10 and np.isfinite(last.error)


def test_one_class_has_nothing_to_compare_with() -> None:
    assert many_classes_at(close_cosines(5, 1, 0), None, 0.1, np.random.default_rng(0)) == []


def cosines(rows: int, classes: int, seed: int, low: float = -0.2, high: float = 0.4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, (rows, classes)))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(1, 30), tau=st.sampled_from([0.01, 0.1, 1.0]))
def test_it_holds_at_equal_thresholds_wherever_its_condition_does(seed: int, classes: int, tau: float) -> None:
    known, unknown = cosines(20, classes, seed), cosines(25, classes, seed + 1)
    for found in false_positive_rates(known, unknown, tau):
        if found.condition == 1:
            assert found.excess <= 0 and found.below == 1
    assert any(found.condition == 1 for found in false_positive_rates(known, unknown, tau))


def test_rates_are_those_of_counting() -> None:
    known, unknown = cosines(30, 6, 1, 0.1, 0.4), cosines(40, 6, 2, 0.0, 0.35)
    first = false_positive_rates(known, unknown, 0.05)[1]
    assert (first.tau, first.c) == (0.05, 2)
    inside, outside = (delta_energy(one.numpy(), 0.05, 2) for one in (known, unknown))
    rival_in, rival_out = (mcm(one.numpy(), 0.05) for one in (known, unknown))
    levels = np.concatenate([outside, rival_out])
    counted = max((outside >= level).mean() - (rival_out >= level).mean() for level in levels)
    assert first.excess == pytest.approx(counted)
    assert first.below == pytest.approx((outside <= rival_out).mean())
    # The largest threshold that keeps 95% of 30, that is 29 of them.
    assert first.fpr95 == pytest.approx((outside >= np.sort(inside)[1]).mean())
    assert first.fpr95_mcm == pytest.approx((rival_out >= np.sort(rival_in)[1]).mean())
    assert first.condition == pytest.approx((unknown.amax(dim=1) <= 0.05 * math.log(2)).double().mean())


def test_at_equal_thresholds_it_may_hold_while_fpr95_is_no_lower() -> None:
    """Below τ ln 2 every ΔEnergy is smaller than MCM; the ranks, which decide about FPR95, may yet be worse."""
    known = torch.tensor([[0.30, 0.0, 0.0], [0.30, 0.29, 0.29]], dtype=torch.float64)
    unknown = torch.tensor([[0.30, 0.25, 0.0], [0.30, 0.28, 0.0]], dtype=torch.float64)
    found = [one for one in false_positive_rates(known, unknown, 1.0) if one.tau == 1.0]
    assert all(one.condition == 1 and one.excess <= 0 for one in found)
    assert any(one.fpr95 >= one.fpr95_mcm for one in found)


def test_the_largest_excess_is_of_all_thresholds() -> None:
    assert largest_excess(np.array([1.0, 2, 3]), np.array([0.0, 2.5, 3])) == pytest.approx(1 / 3)
    assert largest_excess(np.array([1.0, 2]), np.array([1.0, 2])) == 0
    assert largest_excess(np.array([0.0]), np.array([1.0])) == 0
