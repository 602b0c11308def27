"""knn against scikit-learn's neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from deltaenergy import Detector, PrecomputedClassifier, make_score
from deltaenergy.scores import knn
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.knn import MAX_KEPT, evenly
from tests.scores.conftest import ANY_CLASSIFIER


def unit(rows: int, size: int, seed: int) -> np.ndarray:
    features = np.random.default_rng(seed).normal(size=(rows, size))
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def neighbour(features: np.ndarray, known: np.ndarray, k: int) -> np.ndarray:
    """Distances to the k-th neighbour, the farthest if there are fewer."""
    found = NearestNeighbors(n_neighbors=min(k, len(known))).fit(known).kneighbors(features)[0]
    return found[:, -1]


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 20), m=st.integers(1, 60), k=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_new_images_are_as_far_as_their_kth_neighbour(n: int, m: int, k: int, seed: int) -> None:
    features, known = unit(n, 12, seed), unit(m, 12, seed + 1)
    np.testing.assert_allclose(knn(features, known, k), -neighbour(features, known, k), atol=1e-12)
    single = knn(features.astype(np.float32), known.astype(np.float32), k)
    np.testing.assert_allclose(single, -neighbour(features, known, k), atol=2e-6)


@pytest.mark.parametrize("k", [1, 3, 100])
def test_an_image_is_not_its_own_neighbour(k: int) -> None:
    known = unit(30, 12, 0)
    others = [neighbour(known[i : i + 1], np.delete(known, i, axis=0), k)[0] for i in range(30)]
    np.testing.assert_allclose(knn(known, known, k), -np.array(others), atol=1e-12)
    # Encoded again in another batch, it differs by rounding.
    again = known + 1e-6 * unit(30, 12, 1)
    np.testing.assert_allclose(knn(again, known, k), -np.array(others), atol=1e-5)


def test_with_nothing_but_itself_it_is_near() -> None:
    one = unit(1, 12, 0)
    np.testing.assert_array_equal(knn(one, one), [0.0])
    np.testing.assert_array_equal(knn(one, np.repeat(one, 4, axis=0), k=2), [0.0])
    # Encoded again, a little off: it is still itself, at no distance.
    again = one + 0.004 * unit(1, 12, 1)
    np.testing.assert_array_equal(knn(again / np.linalg.norm(again), one), [0.0])


def test_at_most_so_many_features_are_kept() -> None:
    rows = torch.arange(25_000, dtype=torch.float32)[:, None]
    kept = evenly(rows, MAX_KEPT)[:, 0]
    assert len(kept) == MAX_KEPT and kept[0] == 0 and kept[-1] == 24_999
    assert kept.diff().min() >= 2 and kept.diff().max() <= 3
    assert torch.equal(evenly(rows[:7], 10), rows[:7])


def test_it_learns_features_and_not_similarities() -> None:
    known, new = unit(20, 4, 3).astype(np.float32), unit(5, 4, 4).astype(np.float32)
    nothing = torch.zeros(20, 4)
    scorer = make_score("knn(k=2)").bind(ANY_CLASSIFIER).fit(ScoreInputs(nothing, torch.from_numpy(known)))
    values = scorer(ScoreInputs(nothing[:5], torch.from_numpy(new)))
    np.testing.assert_allclose(values.numpy(), -neighbour(new, known, 2), atol=1e-6)


def test_new_images_of_the_same_kind_are_kept_as_promised() -> None:
    """Leaving an image out of its own neighbourhood makes the threshold honest: 95 % of 4,000 new ones are kept."""
    classifier = PrecomputedClassifier(unit(3, 16, 0).astype(np.float32), ["a", "b", "c"])
    detector = Detector(classifier, "knn").calibrate(unit(400, 16, 1).astype(np.float32), keep=0.95)
    kept = np.mean([not verdict.is_ood for verdict in detector.predict(unit(4000, 16, 2).astype(np.float32))])
    assert 0.92 < kept < 0.98
