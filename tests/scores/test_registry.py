"""Scores by name, preset and parameters; and the one that a user gets unasked."""

from __future__ import annotations

import numpy as np
import pytest

from deltaenergy import Detector, Model, PrecomputedClassifier, ZeroShotClassifier, list_scores, make_score
from deltaenergy.core.specs import split
from deltaenergy.errors import InputError
from deltaenergy.scores.registry import DEFAULT_SCORE, DEFAULT_WITHOUT_TEXTS, get_score_class


def test_the_papers_names_are_known() -> None:
    assert {"msp", "mcm", "max-logit", "energy", "entropy", "delta-energy"} <= set(list_scores())


@pytest.mark.parametrize("name", list_scores())
def test_every_score_explains_itself(name: str) -> None:
    cls = get_score_class(name)
    assert cls.summary and cls.formula and cls.paper
    assert make_score(name).spec == name


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("msp", {"temperature": 0.01}),
        ("mcm", {"temperature": 1.0}),
        ("energy", {"temperature": 0.01}),
        ("entropy", {"temperature": 0.01}),
        ("gen", {"gamma": 0.1, "top_m": 100, "temperature": 0.01}),
        ("logit-gap", {"others": 88, "share": 0.0}),
        ("react", {"percentile": 90.0, "temperature": 0.01}),
        ("odin", {"temperature": 1000.0, "epsilon": 0.0014}),
        ("gl-mcm", {"temperature": 1.0, "weight": 1.0}),
        ("delta-energy", {"tau": 0.01, "c": 2, "reset": 0.0}),
        ("interneg", {"count": 2000, "groups": 5, "temperature": 0.01}),
    ],
)
def test_defaults_are_the_published_ones(name: str, params: dict[str, float]) -> None:
    found = make_score(name).params
    assert {key: found[key] for key in params} == params


def test_parameters_in_the_name() -> None:
    score = make_score(" delta-energy( tau = 1, c=1 ) ")
    assert score.params == {**make_score("delta-energy").params, "tau": 1, "c": 1}
    assert make_score(score.spec) == score
    assert make_score("msp", temperature=0.5).spec == "msp(temperature=0.5)"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("delta-enrgy", "Did you mean 'delta-energy'"),
        ("delta-energy(tua=1)", "Did you mean 'tau'"),
        ("delta-energy(1)", "parameter=value"),
        ("delta-energy(", r"a \) is missing"),
        ("msp:nothing", "no preset 'nothing'"),
        ("max-logit(c=1)", "parameter 'c'"),
        ("", "has no name"),
    ],
)
def test_wrong_specs_say_what_is_wrong(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_score(spec)


def test_neither_name_nor_score() -> None:
    with pytest.raises(InputError, match="score must be a name"):
        make_score(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not with a Score object"):
        make_score(make_score("msp"), temperature=1)


def test_commas_separate_scores_but_not_parameters() -> None:
    assert split("msp, delta-energy(tau=1,c=1),mcm,", ",") == ["msp", "delta-energy(tau=1,c=1)", "mcm"]


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
    assert make_score(DEFAULT_WITHOUT_TEXTS).needs_fit and make_score(DEFAULT_WITHOUT_TEXTS).prompts == 0
