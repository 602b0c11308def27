"""Theorem 2's inequality by counting, where its condition holds and where it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.scores import delta_energy, mcm
from deltaenergy.theory.false_positives import false_positive_rates, largest_excess


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
