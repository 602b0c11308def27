"""react: the bound against NumPy's percentile, the score against clipped cosines worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Detector, ZeroShotClassifier, make_score
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.scores.base import ScoreInputs
from tests.scores.reference import log_sum_exp


def unit_rows(n: int, d: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@settings(max_examples=20, deadline=None)
@given(percentile=st.floats(1, 100), seed=st.integers(0, 2**31))
def test_react_equals_numpy(classifier: ZeroShotClassifier, percentile: float, seed: int) -> None:
    known, z = unit_rows(30, 16, seed), unit_rows(5, 16, seed + 1)
    score = make_score("react", percentile=percentile)
    score.prepare(classifier)
    score.fit(ScoreInputs(torch.zeros(30, 4), torch.from_numpy(known)))
    bound = np.percentile(known.astype(np.float32), percentile)
    assert float(score.state["bound"]) == pytest.approx(float(bound))
    texts = classifier.text_features.double().numpy()
    expected = 0.01 * log_sum_exp(np.minimum(z, float(bound)) @ texts.T / 0.01)
    values = score(ScoreInputs(torch.from_numpy(z @ texts.T), torch.from_numpy(z)))
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_the_hundredth_percentile_of_the_same_images_is_energy(classifier: ZeroShotClassifier) -> None:
    z = torch.from_numpy(unit_rows(20, 16, 0)).float()
    inputs = ScoreInputs(classifier.similarities_of_features(z), z)
    score = make_score("react", percentile=100)
    score.prepare(classifier)
    score.fit(inputs)
    np.testing.assert_allclose(score(inputs).numpy(), make_score("energy")(inputs).numpy(), atol=1e-6)


def test_the_bound_is_saved_with_the_detector(classifier: ZeroShotClassifier, tmp_path: Path) -> None:
    z = unit_rows(50, 16, 1).astype(np.float32)
    detector = Detector(classifier, "react(percentile=80)").calibrate(z)
    detector.save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector", model=classifier.model)
    assert torch.equal(loaded.score.state["bound"], detector.score.state["bound"])
    assert [v.score for v in loaded.predict(z)] == [v.score for v in detector.predict(z)]


def test_it_must_be_fitted(classifier: ZeroShotClassifier) -> None:
    score = make_score("react")
    score.prepare(classifier)
    with pytest.raises(NotFittedError, match="calibrate"):
        score(ScoreInputs(torch.zeros(1, 4), torch.zeros(1, 16)))


@pytest.mark.parametrize("params", [{"percentile": 0}, {"percentile": 101}, {"temperature": 0}])
def test_bad_parameters_are_named(params: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(params))):
        make_score("react", **params)
