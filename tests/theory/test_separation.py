"""The appendix's expansions for many classes, by their formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltaenergy.theory.separation import many_classes_at


def cosines(rows: int, classes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.1, 0.3, (rows, classes)))


def test_all_classes_by_hand() -> None:
    s, tau = cosines(50, 40, 0), 0.2
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
    s = cosines(30, 100, 1)
    found = many_classes_at(s, cosines(30, 100, 2), 1.0, np.random.default_rng(0))
    assert [one.classes for one in found] == [2, 4, 8, 16, 32, 64, 100]
    assert found[0].assumption == 0 and found[-1].assumption == 1
    assert found[-1].error < 0.05 and found[-1].error_mcm < 0.01
    ratios = [one.ratio for one in found]
    assert ratios == sorted(ratios)


def test_at_a_small_temperature_one_class_may_outweigh_all_others() -> None:
    s = cosines(30, 100, 1)
    s[:, 0] = 0.6
    (last,) = [one for one in many_classes_at(s, None, 0.01, np.random.default_rng(0)) if one.classes == 100]
    assert last.assumption == 0 and last.ratio < 1e-10 and np.isfinite(last.error)


def test_one_class_has_nothing_to_compare_with() -> None:
    assert many_classes_at(cosines(5, 1, 0), None, 0.1, np.random.default_rng(0)) == []
