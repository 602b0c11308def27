"""Tuning the bundled model, on real pictures where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.source import labelled_folders
from deltaenergy.tuning.views import CachedViews

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]


@pytest.fixture(scope="module")
def lite() -> Model:
    return de.load_model("lite")


def test_words_for_a_context_give_the_zero_shot_texts(lite: Model) -> None:
    """The shared prefix on lite's own tower and finish, against its ordinary pass."""
    nothing = CachedViews(torch.zeros(1, 1, lite.feature_dim), torch.zeros(1, dtype=torch.long))
    built = CoOp(context_init="a photo of a").build(lite, CLASSES, nothing, torch.Generator())
    expected = de.ZeroShotClassifier(lite, CLASSES).text_features
    torch.testing.assert_close(built.text_features, expected, atol=1e-5, rtol=0)


def test_real_pictures_are_learned_and_the_detector_travels(lite: Model, shared_data: Path, tmp_path: Path) -> None:
    train = labelled_folders(shared_data / "images" / "pacs" / "cartoon")
    tuned = de.tune(lite, CLASSES, train, "ebm", shots=4, seed=1, views=2, recipe={"epochs": 40})
    logs = tuned.record["epochs"]
    assert np.mean([log["loss"] for log in logs[-5:]]) < 0.9 * np.mean([log["loss"] for log in logs[:5]])
    assert np.mean([log["accuracy"] for log in logs[-5:]]) > np.mean([log["accuracy"] for log in logs[:5]])
    features = lite.encode_images(train[:20])
    de.Detector(tuned, "delta-energy").calibrate(features).save(tmp_path)
    loaded = de.Detector.load(tmp_path)
    np.testing.assert_allclose(loaded.classifier.similarities(features), tuned.similarities(features), atol=1e-6)
