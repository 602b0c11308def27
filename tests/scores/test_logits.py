"""msp, mcm, max-logit, energy and entropy against float64 NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import entropy as shannon

from deltaenergy import scores
from deltaenergy.errors import InputError

REFERENCES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "msp": lambda s, t: softmax(s / t, axis=1).max(axis=1),
    "mcm": lambda s, t: softmax(s / t, axis=1).max(axis=1),
    "energy": lambda s, t: t * logsumexp(s / t, axis=1),
    "entropy": lambda s, t: -shannon(softmax(s / t, axis=1), axis=1),
}


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    classes=st.sampled_from([1, 2, 3, 50, 1000]),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
    single=st.booleans(),
)
def test_equal_to_the_reference(name: str, seed: int, classes: int, temperature: float, single: bool) -> None:
    similarities = np.random.default_rng(seed).uniform(-1, 1, (6, classes))
    if single:
        similarities = similarities.astype(np.float32)
    actual = getattr(scores, name)(similarities, temperature)
    expected = REFERENCES[name](similarities.astype(np.float64), temperature)
    np.testing.assert_allclose(actual, expected, rtol=2e-5 if single else 1e-10, atol=2e-6 if single else 1e-12)
    assert actual.dtype == similarities.dtype


def test_max_logit() -> None:
    similarities = np.array([[0.1, 0.3, 0.3], [-0.5, -0.2, -0.9]])
    np.testing.assert_array_equal(scores.max_logit(similarities), [0.3, -0.2])


def test_defaults_are_the_papers() -> None:
    similarities = np.random.default_rng(0).uniform(0.1, 0.3, (4, 5))
    np.testing.assert_allclose(scores.msp(similarities), REFERENCES["msp"](similarities, 0.01))
    np.testing.assert_allclose(scores.mcm(similarities), REFERENCES["mcm"](similarities, 1.0))
    np.testing.assert_allclose(scores.energy(similarities), REFERENCES["energy"](similarities, 0.01))


@pytest.mark.parametrize("name", ["msp", "mcm", "max_logit", "energy", "entropy", "delta_energy"])
def test_bad_similarities_are_named(name: str) -> None:
    function = getattr(scores, name)
    bad = np.zeros((4, 3))
    bad[2, 1] = np.nan
    with pytest.raises(InputError, match=r"1 row, first in row 2"):
        function(bad)
    with pytest.raises(InputError, match="shape"):
        function(np.zeros(3))
    with pytest.raises(InputError, match="at least one class"):
        function(np.zeros((3, 0)))
    assert function(np.zeros((0, 3))).shape == (0,)
