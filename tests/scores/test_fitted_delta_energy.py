"""The ΔEnergies that learn from ID data: `delta-energy:robust` and `multi-delta-energy`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Detector, Model, ZeroShotClassifier, make_score
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.delta_energy import background_similarity
from deltaenergy.scores.multi_delta_energy import multi_delta_energy
from tests.scores.conftest import ANY_CLASSIFIER
from tests.scores.reference import delta_energy

FITTED = ["delta-energy:robust", "multi-delta-energy"]


def cosines(n: int, k: int, seed: int) -> np.ndarray:
    """Similarities that look like CLIP's: a background near 0.2 and one class that stands out."""
    rng = np.random.default_rng(seed)
    s = rng.normal(0.19, 0.03, (n, k))
    s[np.arange(n), rng.integers(0, k, n)] += rng.uniform(0, 0.12, n)
    return s


def inputs(s: np.ndarray) -> ScoreInputs:
    return ScoreInputs(torch.from_numpy(s), torch.zeros(len(s), 4))


def fitted(spec: str, calibration: np.ndarray) -> Scorer:
    return make_score(spec).bind(ANY_CLASSIFIER).fit(inputs(calibration))


def test_background_is_the_mean_over_pairs_that_do_not_match() -> None:
    # Row 1 without its 0.5, row 2 without its 0.9 (one of two equal ones stays): (0.1 + 0.3 + 0.9 + 0.2) / 4.
    s = torch.tensor([[0.1, 0.5, 0.3], [0.9, 0.9, 0.2]])
    assert background_similarity(s) == pytest.approx(1.5 / 4)
    assert background_similarity(torch.tensor([[0.3], [0.2]])) == 0.0


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 20), k=st.integers(2, 40), seed=st.integers(0, 2**31))
def test_robust_is_delta_energy_reset_to_the_background(n: int, k: int, seed: int) -> None:
    calibration, s = cosines(50, k, seed), cosines(n, k, seed + 1)
    others = np.sort(calibration, axis=1)[:, :-1]
    score = fitted("delta-energy:robust", calibration)
    np.testing.assert_allclose(score(inputs(s)).numpy(), delta_energy(s, 0.05, 1, others.mean()), rtol=1e-9)


def test_robust_ranks_a_single_class_by_its_similarity() -> None:
    score = fitted("delta-energy:robust", np.array([[0.2], [0.3]]))
    values = score(inputs(np.array([[0.1], [0.3], [0.2]])))
    np.testing.assert_allclose(values.numpy(), np.array([0.1, 0.3, 0.2]) / 0.05)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 20), k=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_multi_standardises_each_term_on_the_calibration_images(n: int, k: int, seed: int) -> None:
    calibration, s = cosines(50, k, seed), cosines(n, k, seed + 1)
    expected = np.zeros(n)
    for tau, c in [(0.01, 2), (0.1, 1), (1.0, 1)]:
        term = delta_energy(calibration, tau, c)
        expected += (delta_energy(s, tau, c) - term.mean()) / term.std()
    score = fitted("multi-delta-energy", calibration)
    np.testing.assert_allclose(score(inputs(s)).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_multi_with_one_image_or_equal_images_is_only_centred() -> None:
    s = cosines(1, 5, 0)
    for calibration in (s, np.repeat(s, 3, axis=0)):
        score = fitted("multi-delta-energy", calibration)
        np.testing.assert_allclose(score(inputs(s)).numpy(), 0, atol=1e-9)


def test_multi_takes_rounding_for_no_deviation() -> None:
    """Calibration images whose similarities are one unit in the last place apart, and an image far from both."""
    s = torch.from_numpy(cosines(1, 5, 0)).float()
    calibration = torch.cat([s, torch.nextafter(s, torch.ones(()))])
    score = make_score("multi-delta-energy").bind(ANY_CLASSIFIER)
    fitted = score.fit(ScoreInputs(calibration, torch.zeros(2, 4)))
    other = torch.from_numpy(cosines(20, 5, 1)).float()
    terms = [delta_energy(other.double().numpy(), tau, c) for tau, c in [(0.01, 2), (0.1, 1), (1.0, 1)]]
    assert fitted(ScoreInputs(other, torch.zeros(20, 4))).abs().max() < 2 * np.abs(terms).sum(axis=0).max()


def test_multi_of_one_term_ranks_as_that_delta_energy() -> None:
    s = cosines(200, 30, 3)
    values = multi_delta_energy(s, means=[0.5], deviations=[2.0], taus=[0.02], cs=[2])
    np.testing.assert_allclose(values, (delta_energy(s, 0.02, 2) - 0.5) / 2, rtol=1e-9)
    assert isinstance(values, np.ndarray)


@pytest.mark.parametrize("spec", FITTED)
def test_float32_agrees_with_float64(spec: str) -> None:
    calibration, s = cosines(300, 1000, 5), cosines(100, 1000, 6)
    values = []
    for dtype in (np.float32, np.float64):
        score = fitted(spec, calibration.astype(np.float32).astype(dtype))
        values.append(score(inputs(s.astype(np.float32).astype(dtype))).double().numpy())
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", FITTED)
def test_without_id_data_there_is_no_score(spec: str) -> None:
    score = make_score(spec).bind(ANY_CLASSIFIER)
    assert score.score.needs_fit and not score.fitted
    with pytest.raises(NotFittedError, match=r"known images.*calibrate"):
        score(inputs(cosines(3, 4, 0)))


def test_only_a_fitted_reset_needs_id_data() -> None:
    assert make_score("delta-energy").needs == frozenset()
    assert make_score("delta-energy(reset=0.2)").needs == frozenset()
    assert make_score("delta-energy(reset=background)").needs == {Need.ID_DATA}
    assert make_score("delta-energy:robust(reset=0.2)").needs == frozenset()


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("delta-energy:robust", "delta-energy:robust"),
        ("delta-energy:robust(c=2)", "delta-energy:robust(c=2)"),
        ("delta-energy(reset='background')", "delta-energy(reset=background)"),
        ("multi-delta-energy", "multi-delta-energy"),
        ("multi-delta-energy(taus=[0.01, 1], cs=[1, 2])", "multi-delta-energy(taus=[0.01,1],cs=[1,2])"),
        ("multi-delta-energy(taus=0.5,cs=3)", "multi-delta-energy(taus=[0.5],cs=[3])"),
    ],
)
def test_spec_and_score_name_each_other(spec: str, same: str) -> None:
    score = make_score(spec)
    assert score.spec == same
    assert make_score(score.spec) == score
    assert hash(make_score(score.spec)) == hash(score)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("delta-energy(reset=foreground)", "reset"),
        ("delta-energy:robust(tau=0)", "tau must be"),
        ("delta-energy:sturdy", "no preset 'sturdy'"),
        ("multi-delta-energy(taus=[0.1])", "taus 1, cs 3"),
        ("multi-delta-energy(taus=[],cs=[])", "taus must be a list"),
        ("multi-delta-energy(taus=[0.1,-1,1])", "taus must be"),
        ("multi-delta-energy(cs=[1,1,0])", "cs must be"),
        ("multi-delta-energy(taus=word)", r"taus.*'word'"),
    ],
)
def test_parameters_that_make_no_sense(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_score(spec)


@pytest.mark.parametrize("spec", FITTED)
def test_what_was_learned_is_saved_with_the_detector(spec: str, tiny_clip: Model, tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(40, tiny_clip.feature_dim)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    classifier = ZeroShotClassifier(tiny_clip, ["dog", "cat", "car", "sketch"])
    detector = Detector(classifier, spec)
    with pytest.raises(NotFittedError):
        detector.predict(features)
    detector.calibrate(features[:30])
    detector.save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector", model=tiny_clip)
    assert loaded.score.spec == spec
    assert [v.score for v in loaded.predict(features)] == [v.score for v in detector.predict(features)]
