"""Which score a user gets unasked, with and without a text tower."""

from __future__ import annotations

import numpy as np

from deltaenergy import Detector, Model, PrecomputedClassifier, ZeroShotClassifier, make_score
from deltaenergy.scores.defaults import DEFAULT_SCORE, WITHOUT_TEXTS


def test_a_detector_has_the_default_of_its_model(tiny_clip: Model) -> None:
    assert Detector(ZeroShotClassifier(tiny_clip, ["dog", "cat"])).score.spec == "delta-energy+words"
    vectors = np.eye(4, dtype=np.float32)
    detector = Detector(PrecomputedClassifier(vectors, list("abcd")))
    assert detector.score.spec == "multi-delta-energy"
    features = np.abs(np.random.default_rng(0).normal(size=(40, 4))).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    assert len(detector.calibrate(features).predict(features)) == 40


def test_the_default_runs_on_features(tiny_clip: Model) -> None:
    features = np.random.default_rng(1).normal(size=(30, tiny_clip.feature_dim)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    detector = Detector(ZeroShotClassifier(tiny_clip, ["dog", "cat"])).calibrate(features, keep=1.0)
    assert not any(verdict.is_ood for verdict in detector.predict(features[7:9]))


def test_each_default_needs_no_more_than_its_place_has() -> None:
    assert not make_score(DEFAULT_SCORE).needs_fit and make_score(DEFAULT_SCORE).prompts == 1100
    assert make_score(WITHOUT_TEXTS).needs_fit and make_score(WITHOUT_TEXTS).prompts == 0
