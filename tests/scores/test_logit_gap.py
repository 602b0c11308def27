"""logit-gap against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.scores import logit_gap, max_logit


def reference(s: np.ndarray, others: int) -> np.ndarray:
    ordered = -np.sort(-s.astype(np.float64), axis=1)
    return (ordered[:, :1] - ordered[:, 1 : others + 1]).mean(axis=1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    classes=st.sampled_from([2, 3, 50, 1000]),
    others=st.sampled_from([1, 5, 88, 2000]),
    single=st.booleans(),
)
def test_equal_to_the_reference(seed: int, classes: int, others: int, single: bool) -> None:
    s = np.random.default_rng(seed).uniform(-1, 1, (6, classes))
    if single:
        s = s.astype(np.float32)
    np.testing.assert_allclose(logit_gap(s, others), reference(s, others), atol=1e-6 if single else 1e-12)


def test_a_share_counts_the_classes() -> None:
    s = np.random.default_rng(0).uniform(-1, 1, (5, 40))
    np.testing.assert_allclose(logit_gap(s, share=0.1), reference(s, 4))
    np.testing.assert_allclose(logit_gap(s, others=2, share=0.1), reference(s, 4))
    np.testing.assert_allclose(logit_gap(s, share=0.001), reference(s, 1))
    np.testing.assert_allclose(logit_gap(s, share=1.0), reference(s, 39))


def test_worked_by_hand() -> None:
    """0.5 − (0.3 + 0.1)/2; then 0.5 − 0.3."""
    s = np.array([[0.1, 0.5, -0.9, 0.3]])
    assert logit_gap(s, 2) == pytest.approx([0.3])
    assert logit_gap(s, 1) == pytest.approx([0.2])


def test_the_default_is_the_released_number() -> None:
    s = np.random.default_rng(0).uniform(0.1, 0.3, (4, 200))
    np.testing.assert_allclose(logit_gap(s), reference(s, 88))


def test_with_one_class_it_is_the_cosine() -> None:
    s = np.array([[0.2], [0.3]])
    np.testing.assert_array_equal(logit_gap(s), max_logit(s))
