"""guarded-delta-energy against its formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.scores import guarded_delta_energy
from tests.scores.reference import delta_energy
from tests.scores.test_fitted_delta_energy import cosines, fitted, inputs


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 20), k=st.integers(1, 40), seed=st.integers(0, 2**31), shift=st.floats(-0.3, 0.1))
def test_formula(n: int, k: int, seed: int, shift: float) -> None:
    calibration, s = cosines(50, k, seed), cosines(n, k, seed + 1) + shift
    contrast, level = delta_energy(calibration, 0.1, 1), calibration.max(axis=1)
    expected = (delta_energy(s, 0.1, 1) - contrast.mean()) / contrast.std()
    expected += np.minimum((s.max(axis=1) - level.mean()) / level.std() + 2, 0)
    values = fitted("guarded-delta-energy", calibration)(inputs(s)).numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)


def test_the_guard_acts_beyond_its_tolerance_alone() -> None:
    # One class: ΔE is s/τ = 10 s. Levels 0, 3 and 5 deviations below the mean.
    s = np.array([[0.30], [0.24], [0.20]])
    values = guarded_delta_energy(s, means=[3.0, 0.30], deviations=[0.5, 0.02], weight=2, tolerance=4)
    np.testing.assert_allclose(values, [0, -1.2, -2 - 2], atol=1e-12)


def test_equal_images_are_only_centred() -> None:
    s = cosines(1, 5, 0)
    for calibration in (s, np.repeat(s, 3, axis=0)):
        np.testing.assert_allclose(fitted("guarded-delta-energy", calibration)(inputs(s)).numpy(), 0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_keep_their_precision(dtype: type) -> None:
    values = guarded_delta_energy(cosines(4, 6, 1).astype(dtype), [1.0, 0.2], [1.0, 0.1])
    assert isinstance(values, np.ndarray) and values.dtype == dtype
