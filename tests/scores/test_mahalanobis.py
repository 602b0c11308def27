"""mahalanobis against scikit-learn's covariance estimators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf, ledoit_wolf

from deltaenergy import make_score
from deltaenergy.scores import mahalanobis
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.mahalanobis import MIN_OF_CLASS, shrunk_covariance
from tests.scores.conftest import ANY_CLASSIFIER


def clusters(sizes: list[int], size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features around one centre per class, and the class of each."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), size))
    return centres[labels] + 0.3 * rng.normal(size=(len(labels), size)) * rng.uniform(0.2, 2, size), labels


def fit(features: np.ndarray, labels: np.ndarray, classes: int) -> Scorer:
    similarities = torch.from_numpy(np.eye(classes)[labels])
    return make_score("mahalanobis").bind(ANY_CLASSIFIER).fit(ScoreInputs(similarities, torch.from_numpy(features)))


def values(scorer: Scorer, features: np.ndarray) -> np.ndarray:
    tensor = torch.from_numpy(features)
    return scorer(ScoreInputs(torch.zeros(len(tensor), 4, dtype=tensor.dtype), tensor)).numpy()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 60), size=st.integers(2, 30), seed=st.integers(0, 2**31))
def test_shrinkage_is_that_of_ledoit_and_wolf(n: int, size: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, size)) * np.linspace(0.1, 2, size)
    expected = ledoit_wolf(rows, assume_centered=True)[0]
    np.testing.assert_allclose(shrunk_covariance(torch.from_numpy(rows)).numpy(), expected, atol=1e-10)


def test_distance_to_the_nearest_class_mean_with_one_covariance() -> None:
    known, labels = clusters([40, 25, 60, 15], 6, 0)
    new = clusters([5, 5, 5, 5], 6, 1)[0]
    means = np.stack([known[labels == k].mean(axis=0) for k in range(4)])
    estimate = LedoitWolf(assume_centered=True).fit(known - means[labels])
    expected = -np.min([estimate.mahalanobis(new - mean) for mean in means], axis=0)
    np.testing.assert_allclose(values(fit(known, labels, 4), new), expected, rtol=1e-4)


def test_small_classes_share_the_mean_of_all() -> None:
    known, labels = clusters([30, MIN_OF_CLASS, MIN_OF_CLASS - 1, 2], 5, 2)
    scorer = fit(known, labels, 4)
    own = [known[labels == k].mean(axis=0) for k in (0, 1)]
    np.testing.assert_allclose(scorer.learned("means").numpy(), [*own, known.mean(axis=0)], rtol=1e-5, atol=1e-6)
    few = fit(*clusters([3, 4, 5], 5, 3), 4)
    assert len(few.learned("means")) == 1


@pytest.mark.parametrize("count", [1, 2, 30, 200])
def test_few_images_in_many_dimensions(count: int) -> None:
    """The covariance stays invertible, and what was learned fits in single precision."""
    rng = np.random.default_rng(count)
    known = rng.normal(size=(count, 512)) + 20 * rng.normal(size=512)
    known = (known / np.linalg.norm(known, axis=1, keepdims=True)).astype(np.float32)
    scorer = fit(known, np.zeros(count, int), 4)
    found = values(scorer, known)
    assert np.isfinite(found).all() and (found <= 0).all()
    other = rng.normal(size=(10, 512)).astype(np.float32)
    assert values(scorer, other / np.linalg.norm(other, axis=1, keepdims=True)).max() < found.min()


def test_function_takes_means_and_a_root_of_the_precision() -> None:
    rng = np.random.default_rng(5)
    features, means, root = rng.normal(size=(7, 3)), rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    precision = root @ root.T
    expected = [max(-(z - mean) @ precision @ (z - mean) for mean in means) for z in features]
    np.testing.assert_allclose(mahalanobis(features, means, root), expected)
