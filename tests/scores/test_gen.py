"""gen against float64 NumPy, in which 1 − p is the sum of the other probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.scores import gen, msp


def reference(s: np.ndarray, gamma: float, top_m: int, temperature: float) -> np.ndarray:
    found = []
    for row in s.astype(np.float64) / temperature:
        powers = np.exp(row - row.max())
        p = powers / powers.sum()
        others = np.array([np.delete(powers, k).sum() for k in range(len(p))]) / powers.sum()
        terms = p**gamma * others**gamma
        found.append(-terms[np.argsort(-p, kind="stable")[:top_m]].sum())
    return np.array(found)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    classes=st.sampled_from([1, 2, 3, 50, 300]),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
    gamma=st.sampled_from([0.1, 0.5, 1.0]),
    top_m=st.sampled_from([1, 10, 100]),
    single=st.booleans(),
)
def test_equal_to_the_reference(
    seed: int, classes: int, temperature: float, gamma: float, top_m: int, single: bool
) -> None:
    s = np.random.default_rng(seed).uniform(-0.2, 0.4, (6, classes))
    if single:
        s = s.astype(np.float32)
    actual = gen(s, gamma, top_m, temperature)
    expected = reference(s, gamma, top_m, temperature)
    np.testing.assert_allclose(actual, expected, rtol=2e-5 if single else 1e-10, atol=1e-6 if single else 1e-12)
    assert actual.dtype == s.dtype


def test_worked_by_hand() -> None:
    """p = (½, ¼, ¼): with γ = 1, ½·½ + ¼·¾ + ¼·¾; with the largest alone, ½·½."""
    s = np.log([[0.5, 0.25, 0.25]])
    assert gen(s, 1.0, 3, 1.0) == pytest.approx([-0.625])
    assert gen(s, 1.0, 1, 1.0) == pytest.approx([-0.25])


def test_defaults_are_the_published_ones_at_clips_temperature() -> None:
    s = np.random.default_rng(0).uniform(0.1, 0.3, (4, 300))
    np.testing.assert_array_equal(gen(s), gen(s, gamma=0.1, top_m=100, temperature=0.01))


def test_a_probability_that_rounds_to_one_still_tells_images_apart() -> None:
    """1 − p is 1e-9 and 1e-10, which single precision cannot show in p itself."""
    s = np.array([[0.3, 0.3 - 0.0921], [0.3, 0.3 - 0.0691]], np.float32)
    assert np.ptp(msp(s)) < 1e-2
    first, second = gen(s)
    assert first > second + 0.05
    np.testing.assert_allclose([first, second], reference(s, 0.1, 100, 0.01), rtol=1e-4)
