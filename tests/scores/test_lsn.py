"""lsn's score: the function against float64 NumPy and by hand; the score, which is of lsn's classifiers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.errors import InputError
from deltaenergy.scores import lsn, mcm
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES
from tests.scores.reference import probabilities

Floats = np.ndarray[Any, np.dtype[np.float64]]


def cosines(seed: int, negatives: int = 3, classes: int = 6) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (7, classes)), rng.uniform(-1, 1, (7, negatives, classes))


def reference(s: Floats, n: Floats, one: float = 1.0) -> Floats:
    far = [probabilities(one - n[:, m], 5.0).max(axis=1) for m in range(n.shape[1])]
    return probabilities(s, 1.0).max(axis=1) + np.mean(far, axis=0)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 9))
def test_against_numpy(seed: int, negatives: int, classes: int) -> None:
    s, n = cosines(seed, negatives, classes)
    np.testing.assert_allclose(lsn(s, n), reference(s, n), rtol=1e-12)


def test_by_hand() -> None:
    """Two classes: softmax(log 3, 0) = (¾, ¼); distances 5·(log 4, 0) over 5 give (⅘, ⅕), and (½, ½) where equal."""
    s = np.array([[np.log(3), 0.0]])
    n = np.array([[[1 - 5 * np.log(4), 1.0], [0.2, 0.2]]])
    assert lsn(s, n)[0] == pytest.approx(0.75 + (0.8 + 0.5) / 2, abs=1e-12)


def test_the_one_in_one_minus_cosine_is_irrelevant() -> None:
    s, n = cosines(1)
    np.testing.assert_allclose(lsn(s, n), reference(s, n, one=0.0), rtol=1e-12)
    np.testing.assert_allclose(lsn(s, n + 0.3), lsn(s, n), rtol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_is_at_least_two_over_k(seed: int, classes: int) -> None:
    s, n = cosines(seed, classes=classes)
    assert (lsn(s, n) >= 2 / classes - 1e-12).all()
    equal = lsn(np.full((1, classes), 0.3), np.full((1, 3, classes), -0.2))
    assert equal[0] == pytest.approx(2 / classes, rel=1e-12)


def test_equal_negatives_are_one_and_their_order_is_no_matter() -> None:
    s, n = cosines(2)
    np.testing.assert_allclose(lsn(s, np.repeat(n[:, :1], 3, axis=1)), lsn(s, n[:, :1]), rtol=1e-12)
    np.testing.assert_allclose(lsn(s, n[:, [2, 0, 1]]), lsn(s, n), rtol=1e-12)


def test_rises_with_the_distance_from_the_farthest_negative() -> None:
    s, n = cosines(3)
    farther = n.copy()
    rows = np.arange(len(n))
    farther[rows, 1, n[:, 1].argmin(axis=1)] -= 0.1
    assert (lsn(s, farther) > lsn(s, n)).all()


def test_arrays_and_tensors_of_any_precision() -> None:
    s, n = cosines(4)
    found = lsn(torch.from_numpy(s).float(), torch.from_numpy(n).half())
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), reference(s, n), atol=1e-3)
    assert lsn(s[:0], n[:0]).shape == (0,)


def test_what_does_not_fit_is_explained() -> None:
    s, n = cosines(5)
    for wrong in (n[:, 0], n[:3], n[..., :2], n[:, :0]):
        with pytest.raises(InputError, match=r"negative_similarities.*7, …, 6"):
            lsn(s, wrong)
    n[4, 1, 2] = np.nan
    with pytest.raises(InputError, match=r"negative_similarities.*row 4"):
        lsn(s, n)


@pytest.fixture(scope="module")
def tuned(tiny_clip: Model, train_set: TrainSet) -> Any:
    return de.tune(tiny_clip, CLASSES, train_set, "lsn", recipe={"epochs": 2})


class TestScore:
    def test_reads_the_classifier_s_negatives(self, tuned: Any, coloured: Path, tiny_clip: Model) -> None:
        detector = de.Detector(tuned, "lsn").calibrate(coloured, keep=0.9)
        z = tiny_clip.encode_images(coloured)  # type: ignore[attr-defined]
        n = np.einsum("nd,mkd->nmk", z, tuned.negative_features.numpy()).astype(np.float64)
        expected = reference(tuned.similarities(z).astype(np.float64), n)
        found = [verdict.score for verdict in detector.predict(coloured)]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(found - mcm(tuned.similarities(z))).min() > 0.1

    def test_a_detector_travels(self, tuned: Any, coloured: Path, tiny_clip: Model, tmp_path: Path) -> None:
        detector = de.Detector(tuned, "lsn").calibrate(coloured, keep=0.9)
        detector.save(tmp_path)
        loaded = de.Detector.load(tmp_path, model=tiny_clip)
        for a, b in zip(loaded.predict(coloured), detector.predict(coloured)):
            assert a.score == pytest.approx(b.score, abs=1e-6)

    def test_leaving_classes_out_leaves_their_negatives_out(self, tuned: Any, tiny_clip: Model, coloured: Path) -> None:
        some = ClassSubset(tuned, [0, 2])
        z = torch.from_numpy(tiny_clip.encode_images(coloured))  # type: ignore[attr-defined]
        found = de.Detector(some, "lsn").calibrate(z).calibration_scores
        s = tuned.similarities(z)[:, [0, 2]].astype(np.float64)
        n = np.einsum("nd,mkd->nmk", z.numpy(), tuned.negative_features.numpy()[:, [0, 2]]).astype(np.float64)
        np.testing.assert_allclose(np.sort(found), np.sort(reference(s, n)), atol=1e-5)

    def test_is_refused_for_any_other_classifier(self, tiny_clip: Model) -> None:
        classifier = de.ZeroShotClassifier(tiny_clip, CLASSES)
        with pytest.raises(InputError, match="by zero-shot: tune with lsn"):
            de.Detector(classifier, "lsn").calibrate(torch.eye(16))
        assert "only for classifiers tuned by lsn" in (de.make_score("lsn").missing or "")
        assert de.make_score("mcm").missing is None
