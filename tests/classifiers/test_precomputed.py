"""Classifiers on features that were computed elsewhere, and on some of another's classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deltaenergy import Detector, Model, PrecomputedClassifier, PrecomputedModel, ZeroShotClassifier
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.errors import ArtifactError, InputError


@pytest.fixture
def features() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_gives_what_the_model_itself_gives(tiny_clip: Model, features: np.ndarray) -> None:
    zero_shot = ZeroShotClassifier(tiny_clip, ["dog", "cat", "car"])
    given = PrecomputedClassifier(zero_shot.text_features, zero_shot.classes)
    np.testing.assert_array_equal(given.similarities(features), zero_shot.similarities(features))
    ours = Detector(given, "mcm").calibrate(features).predict(features)
    theirs = Detector(zero_shot, "mcm").calibrate(features).predict(features)
    assert [(v.label, v.score, v.p_value) for v in ours] == [(v.label, v.score, v.p_value) for v in theirs]


def test_detector_is_saved_and_loaded_with_the_model_it_names(features: np.ndarray, tmp_path: Path) -> None:
    model = PrecomputedModel(16, logit_scale=50, name="my encoder")
    detector = Detector(PrecomputedClassifier(features[:3], ["a", "b", "c"], model), "energy").calibrate(features)
    detector.save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector", model=PrecomputedModel(16, logit_scale=50, name="my encoder"))
    assert list(loaded.predict(features)) == list(detector.predict(features))
    with pytest.raises(ArtifactError, match="PrecomputedModel"):
        Detector.load(tmp_path / "detector")
    with pytest.raises(ArtifactError, match="another model"):
        Detector.load(tmp_path / "detector", model=PrecomputedModel(16, name="another encoder"))


def test_cannot_encode(features: np.ndarray) -> None:
    classifier = PrecomputedClassifier(features[:3], ["a", "b", "c"])
    with pytest.raises(InputError, match="cannot encode images"):
        classifier.similarities(["photo.jpg"])
    with pytest.raises(InputError, match="needs a text encoder"):
        classifier.model.encode_texts(["a dog"])


@pytest.mark.parametrize(
    ("rows", "scale", "message"),
    [(2, 1.0, "one row per class"), (3, 2.0, "unit length"), (3, float("nan"), "NaN")],
)
def test_bad_class_vectors(features: np.ndarray, rows: int, scale: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PrecomputedClassifier(features[:rows] * scale, ["a", "b", "c"])


def test_subset_removes_columns_and_is_not_saved(features: np.ndarray) -> None:
    whole = PrecomputedClassifier(features[:4], ["a", "b", "c", "d"])
    subset = ClassSubset(whole, [3, 1])
    assert subset.classes == ("d", "b")
    np.testing.assert_array_equal(subset.similarities(features), whole.similarities(features)[:, [3, 1]])
    np.testing.assert_array_equal(subset.text_features.numpy(), features[[3, 1]])
    patches = torch.from_numpy(features).view(5, 4, 16)
    expected = patches.numpy() @ features[[3, 1]].T
    np.testing.assert_allclose(subset.patch_similarities(patches).numpy(), expected, atol=1e-6)
    with pytest.raises(InputError, match="cannot be saved"):
        subset.save("nowhere")


@pytest.mark.parametrize("count", [1, 31, 33, 1025])
def test_a_row_has_the_same_bits_alone_with_others_and_in_a_verdict(count: int) -> None:
    """In similarities, probabilities and the closest classes alike."""
    rng = np.random.default_rng(count)
    rows, texts = rng.normal(size=(count, 24)), rng.normal(size=(37, 24))
    features, vectors = ((one / np.linalg.norm(one, axis=1, keepdims=True)).astype(np.float32) for one in (rows, texts))
    classifier = PrecomputedClassifier(vectors, [f"class {k}" for k in range(37)])
    similarities, shares = classifier.similarities(features), classifier.predict_proba(features)
    np.testing.assert_allclose(similarities, features.astype(np.float64) @ vectors.T, atol=1e-6)
    verdicts = Detector(classifier, "mcm").calibrate(features).predict(features, top_k=4)
    assert classifier.top_k(features, 4) == [list(verdict.top) for verdict in verdicts]
    for row, best in zip(shares.tolist(), classifier.top_k(features, 40)):
        assert dict(best) == {f"class {k}": share for k, share in enumerate(row)}
        assert [share for _, share in best] == sorted(row, reverse=True)
    for row in {0, count // 2, count - 1}:
        alone = features[row : row + 1]
        assert (classifier.similarities(alone)[0] == similarities[row]).all()
        assert (classifier.predict_proba(alone)[0] == shares[row]).all()
        assert classifier.top_k(alone, 4)[0] == list(verdicts[row].top)
