"""The equivalences that docs/scores.md states, on cosines like CLIP's and, where present, on real CLIP features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from deltaenergy.scores import clipn, delta_energy, energy, entropy, max_logit, mcm, msp, multi_delta_energy


def like_clip(n: int = 400, k: int = 200, seed: int = 0) -> np.ndarray:
    """Cosines with CLIP's statistics: each picture has its own background, and one class stands out."""
    rng = np.random.default_rng(seed)
    s = rng.normal(rng.normal(0.18, 0.02, (n, 1)), 0.03, (n, k))
    s[np.arange(n), rng.integers(0, k, n)] += rng.uniform(0, 0.15, n)
    return s


@pytest.fixture(scope="module")
def real(shared_data: Path) -> np.ndarray:
    """Cosines of real CLIP ViT-B/16: 2,450 pictures, 1,000 ImageNet names."""
    folder = shared_data / "clip_vit_b16"
    images = np.load(folder / "images.npy").astype(np.float64)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    return images @ np.load(folder / "imagenet_text_a_photo_of_a.npy").astype(np.float64).T


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(spearmanr(one, other).statistic)


def test_mcm_is_msp_at_temperature_one() -> None:
    s = like_clip()
    np.testing.assert_array_equal(mcm(s), msp(s, temperature=1.0))
    np.testing.assert_array_equal(mcm(s, temperature=0.01), msp(s))


def test_one_reset_at_small_tau_ranks_as_msp() -> None:
    s = like_clip()
    order = np.argsort(msp(s), kind="stable")
    np.testing.assert_array_equal(np.argsort(delta_energy(s, tau=0.01, c=1), kind="stable"), order)
    # The second term is what changes the ranking.
    assert not np.array_equal(np.argsort(delta_energy(s, tau=0.01, c=2), kind="stable"), order)


def test_mcm_ranks_almost_as_the_maximum_above_the_mean() -> None:
    s = like_clip()
    assert correlation(mcm(s), s.max(axis=1) - s.mean(axis=1)) > 0.999


def test_energy_is_bounded_by_max_logit() -> None:
    s = like_clip()
    for temperature in (1.0, 0.01, 1e-4):
        above = energy(s, temperature) - max_logit(s)
        assert (above >= -1e-12).all()
        assert (above <= temperature * np.log(s.shape[1]) + 1e-12).all()
    np.testing.assert_allclose(energy(s, 1e-6), max_logit(s), atol=1e-5)


def test_with_one_class_delta_energy_is_the_similarity() -> None:
    s = like_clip(k=1)
    for tau, reset in [(0.01, 0.0), (0.05, 0.2), (1.0, 0.0)]:
        np.testing.assert_allclose(delta_energy(s, tau, 1, reset), (s[:, 0] - reset) / tau, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose([msp(s), mcm(s), entropy(s)], np.repeat([[1.0], [1.0], [0.0]], len(s), axis=1))


def test_multi_of_one_pair_ranks_as_that_delta_energy() -> None:
    s = like_clip()
    single = multi_delta_energy(s, means=[3.0], deviations=[0.2], taus=[0.1], cs=[1])
    np.testing.assert_array_equal(np.argsort(single), np.argsort(delta_energy(s, tau=0.1, c=1)))


def test_clipn_with_one_no_for_everything_ranks_as_max_logit() -> None:
    s = like_clip()
    scores = clipn(s, np.full_like(s, 0.25), mode="ctw", logit_scale=20)
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(max_logit(s)))


def test_rankings_on_real_features(real: np.ndarray) -> None:
    np.testing.assert_array_equal(np.argsort(delta_energy(real, 0.01, 1)), np.argsort(msp(real)))
    assert correlation(mcm(real), real.max(axis=1) - real.mean(axis=1)) > 0.999
    assert correlation(delta_energy(real, 1.0, 1), max_logit(real)) > 0.985
    assert correlation(delta_energy(real, 0.1, 1), mcm(real)) > 0.99
    assert correlation(energy(real), max_logit(real)) > 0.98


def test_real_cosines_do_not_meet_the_theorems_condition(real: np.ndarray) -> None:
    """s_max ≤ τ ln 2 fails for every picture at τ = 0.01, and would need τ above 0.5 to hold for all."""
    largest = real.max(axis=1)
    assert largest.min() > 0.2 > 0.01 * np.log(2)
    assert largest.max() < 0.41
    assert 0.57 < largest.max() / np.log(2) < 0.59
