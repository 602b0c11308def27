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
from deltaenergy.scores import react
from deltaenergy.scores.base import ScoreInputs
from tests.scores.reference import log_sum_exp


def unit_rows(n: int, d: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@settings(max_examples=20, deadline=None)
@given(percentile=st.floats(1, 100), seed=st.integers(0, 2**31))
def test_react_equals_numpy(classifier: ZeroShotClassifier, percentile: float, seed: int) -> None:
    known, z = unit_rows(30, 16, seed), unit_rows(5, 16, seed + 1)
    unfitted = make_score("react", percentile=percentile).bind(classifier)
    scorer = unfitted.fit(ScoreInputs(torch.zeros(30, 4), torch.from_numpy(known)))
    bound = np.percentile(known.astype(np.float32), percentile)
    assert float(scorer.state["bound"]) == pytest.approx(float(bound))
    texts = classifier.text_features.double().numpy()
    expected = 0.01 * log_sum_exp(np.minimum(z, float(bound)) @ texts.T / 0.01)
    values = scorer(ScoreInputs(torch.from_numpy(z @ texts.T), torch.from_numpy(z)))
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-9, atol=1e-9)
    # Fitting gave a new scorer; the first has learned nothing.
    assert not unfitted.fitted and not unfitted.state


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 6),
    k=st.integers(1, 8),
    bound=st.floats(-0.5, 1),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_the_function_equals_its_formula(n: int, k: int, bound: float, temperature: float, seed: int) -> None:
    z, texts = unit_rows(n, 12, seed) if n else np.zeros((0, 12)), unit_rows(k, 12, seed + 1)
    logits = np.where(z < bound, z, bound) @ texts.T / temperature
    expected = temperature * log_sum_exp(logits) if n else np.zeros(0)
    found = react(lambda clipped: clipped @ texts.T, z, bound, temperature)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    tensor = react(lambda clipped: clipped @ torch.from_numpy(texts).T, torch.from_numpy(z), bound, temperature)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_the_function_names_what_is_wrong_with_its_features() -> None:
    z = unit_rows(3, 4, 0)
    with pytest.raises(InputError, match=r"features.*\(4,\)"):
        react(lambda clipped: clipped, z[0], 0.5)
    z[1, 2] = np.inf  # clipping would make an ordinary number of it
    with pytest.raises(InputError, match=r"features have NaN.*row 1"):
        react(lambda clipped: clipped, z, 0.5)


def test_the_hundredth_percentile_of_the_same_images_is_energy(classifier: ZeroShotClassifier) -> None:
    z = torch.from_numpy(unit_rows(20, 16, 0)).float()
    inputs = ScoreInputs(classifier.similarities_of_features(z), z)
    scorer = make_score("react", percentile=100).bind(classifier).fit(inputs)
    energy = make_score("energy").bind(classifier)
    np.testing.assert_allclose(scorer(inputs).numpy(), energy(inputs).numpy(), atol=1e-6)


def test_the_bound_is_saved_with_the_detector(classifier: ZeroShotClassifier, tmp_path: Path) -> None:
    z = unit_rows(50, 16, 1).astype(np.float32)
    detector = Detector(classifier, "react(percentile=80)").calibrate(z)
    detector.save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector", model=classifier.model)
    assert set(loaded.score_state) == {f"fold{k}.bound" for k in range(5)}
    assert torch.equal(loaded.scorer.learned("bound"), detector.scorer.learned("bound"))
    assert [v.score for v in loaded.predict(z)] == [v.score for v in detector.predict(z)]


def test_two_detectors_that_share_a_score_do_not_change_each_other(classifier: ZeroShotClassifier) -> None:
    score, z = make_score("react"), unit_rows(40, 16, 2).astype(np.float32)
    first = Detector(classifier, score).calibrate(z[:20])
    before = [verdict.score for verdict in first.predict(z)]
    second = Detector(classifier, score).calibrate(z[20:])
    assert [verdict.score for verdict in first.predict(z)] == before
    assert float(first.scorer.learned("bound")) != float(second.scorer.learned("bound"))
    # Calibrated again, it forgets what it learned before.
    assert float(first.calibrate(z[20:]).scorer.learned("bound")) == float(second.scorer.learned("bound"))


def test_it_must_be_fitted(classifier: ZeroShotClassifier) -> None:
    scorer = make_score("react").bind(classifier)
    with pytest.raises(NotFittedError, match="calibrate"):
        scorer(ScoreInputs(torch.zeros(1, 4), torch.zeros(1, 16)))


@pytest.mark.parametrize("params", [{"percentile": 0}, {"percentile": 101}, {"temperature": 0}])
def test_bad_parameters_are_named(params: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(params))):
        make_score("react", **params)
