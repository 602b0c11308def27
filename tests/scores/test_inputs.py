"""What no score can use: every public function of scores, and the metrics, say so instead of computing with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deltaenergy import (
    Detector,
    LabelledFeatures,
    PrecomputedClassifier,
    PrecomputedModel,
    list_scores,
    make_score,
    scores,
    tune,
)
from deltaenergy.core.specs import parameters_of
from deltaenergy.errors import InputError
from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.id_like import id_like
from deltaenergy.scores.negprompt import negprompt
from deltaenergy.stats import metrics

RNG = np.random.default_rng(0)
S = RNG.normal(0.2, 0.05, (6, 4))
NEGATIVES = RNG.normal(0.2, 0.05, (6, 10))
FEATURES = RNG.normal(size=(6, 4))

# Every function of an array (N, K), with what else it must be given.
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "msp": (scores.msp, {}),
    "mcm": (scores.mcm, {}),
    "max_logit": (scores.max_logit, {}),
    "energy": (scores.energy, {}),
    "entropy": (scores.entropy, {}),
    "gen": (scores.gen, {}),
    "logit_gap": (scores.logit_gap, {}),
    "delta_energy": (delta_energy, {}),
    "multi_delta_energy": (scores.multi_delta_energy, {"means": [1.0, 2.0, 3.0], "deviations": [1.0, 2.0, 1.0]}),
    "neglabel": (scores.neglabel, {"negative_similarities": NEGATIVES, "groups": 3}),
    "delta_energy_words": (scores.delta_energy_words, {"word_similarities": NEGATIVES}),
    "clipn": (scores.clipn, {"no_similarities": S[::-1]}),
    "lsn": (scores.lsn, {"negative_similarities": RNG.normal(0.2, 0.05, (6, 3, 4))}),
    "id_like": (id_like, {"negative_similarities": NEGATIVES}),
    "negprompt": (negprompt, {"negative_similarities": RNG.normal(0.2, 0.05, (6, 4, 2))}),
    "knn": (scores.knn, {"known": RNG.normal(size=(9, 4))}),
    "mahalanobis": (scores.mahalanobis, {"means": FEATURES[:2], "root": np.eye(4)}),
    "react": (lambda features, **more: scores.react(lambda z: z, features, **more), {"bound": 1.0}),
}
NO_NUMBERS = [float("nan"), float("inf"), float("-inf")]
ARRAYS = [
    (name, argument)
    for name, (_, more) in FUNCTIONS.items()
    for argument in (None, *(key for key, value in more.items() if isinstance(value, np.ndarray)))
]


def test_every_public_function_is_here() -> None:
    public = {name for name in scores.__all__ if inspect.isfunction(getattr(scores, name))}
    others = {"array_function", "get_score_class", "list_scores", "make_score", "register_score", "local_mcm", "odin"}
    assert public - others <= set(FUNCTIONS)


@pytest.mark.parametrize("bad", NO_NUMBERS)
@pytest.mark.parametrize(("name", "argument"), ARRAYS)
def test_one_entry_that_is_no_number(name: str, argument: str | None, bad: float) -> None:
    function, more = FUNCTIONS[name]
    given = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in more.items()}
    values = S.copy()
    (values if argument is None else given[argument])[1, 2] = bad
    with pytest.raises(InputError, match=r"1 row.*row 1"):
        function(values, **given)


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
@pytest.mark.parametrize("form", ["reversed", "big-endian", "transposed", "tensor", "long double"])
def test_any_strides_and_byte_order_give_the_same(name: str, argument: str | None, form: str) -> None:
    function, more = FUNCTIONS[name]

    def laid_out(values: np.ndarray) -> Any:
        if form == "reversed":
            return values[::-1].copy()[::-1]
        if form == "big-endian":
            return values.astype(">f8")
        if form == "transposed":
            return np.asfortranarray(values)
        return torch.from_numpy(values.copy()) if form == "tensor" else values.astype(np.longdouble)

    expected = function(S.copy(), **more)
    values = laid_out(S) if argument is None else S.copy()
    given = more if argument is None else {**more, argument: laid_out(more[argument])}
    np.testing.assert_allclose(np.asarray(function(values, **given)), expected, rtol=1e-12)


@pytest.mark.parametrize("form", ["reversed", "big-endian", "long double", "read-only"])
def test_detectors_and_tuning_take_features_of_any_strides_and_byte_order(form: str) -> None:
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def laid_out(values: np.ndarray) -> np.ndarray:
        given = {"reversed": values[::-1].copy()[::-1], "big-endian": values.astype(">f4")}.get(form, values.copy())
        given = given.astype(np.longdouble) if form == "long double" else given
        given.flags.writeable = form != "read-only"
        return given

    def found(form: Callable[[np.ndarray], np.ndarray]) -> list[float]:
        classifier = PrecomputedClassifier(form(rows[:3]), ["a", "b", "c"])
        detector = Detector(classifier, "mcm").calibrate(form(rows), confidence=None)
        model = PrecomputedModel(4, class_vectors=(["a", "b", "c"], form(rows[:3])))
        train = LabelledFeatures(form(rows), [i % 3 for i in range(12)])
        tuned = tune(model, ["a", "b", "c"], train, "centroids", shots=4)
        return [one.score for one in detector.predict(form(rows))] + tuned.similarities(form(rows)).ravel().tolist()

    assert found(laid_out) == pytest.approx(found(np.copy), abs=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "values",
    [np.zeros(4), np.zeros((2, 3, 4)), np.zeros((6, 0)), np.full((6, 4), "a"), np.full((6, 4), 1j), "words", None],
    ids=["vector", "cube", "no column", "text", "complex", "a string", "nothing"],
)
def test_what_is_no_table_of_numbers(name: str, values: Any) -> None:
    function, more = FUNCTIONS[name]
    with pytest.raises(InputError):
        function(values, **more)


@pytest.mark.parametrize("bad", [0, 0.0, -1, *NO_NUMBERS, "1", None, True])
@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        *(
            (name, "temperature")
            for name in ("msp", "mcm", "energy", "entropy", "gen", "neglabel", "react", "delta_energy_words")
        ),
        *((name, "tau") for name in ("delta_energy", "delta_energy_words")),
        ("clipn", "logit_scale"),
        ("id_like", "logit_scale"),
    ],
)
def test_temperatures_must_be_positive(name: str, parameter: str, bad: Any) -> None:
    function, more = FUNCTIONS[name]
    with pytest.raises(InputError, match=f"{parameter} must be"):
        function(S, **{**more, parameter: bad})


@pytest.mark.parametrize(
    ("name", "parameter", "bad"),
    [
        ("neglabel", "groups", 0),
        ("neglabel", "groups", -3),
        ("neglabel", "groups", 2.5),
        ("neglabel", "groups", float("nan")),
        ("delta_energy", "c", 0),
        ("delta_energy", "c", True),
        ("delta_energy", "reset", float("nan")),
        ("delta_energy", "reset", "background"),
        ("multi_delta_energy", "deviations", [1.0, -1.0, 1.0]),
        ("multi_delta_energy", "means", [1.0, float("inf"), 1.0]),
        ("multi_delta_energy", "taus", [0.1, 0.2]),
        ("multi_delta_energy", "taus", [0.1, 0.2, 0]),
        ("delta_energy_words", "weight", -1),
        ("delta_energy_words", "weight", float("nan")),
        ("delta_energy_words", "word_similarities", NEGATIVES[:5]),
        ("knn", "k", 0),
        ("knn", "k", 1.5),
        ("knn", "known", np.zeros((0, 4))),
        ("knn", "known", np.zeros((3, 5))),
        ("mahalanobis", "root", np.eye(3)),
        ("mahalanobis", "means", np.zeros((2, 3))),
        ("react", "bound", float("nan")),
        ("react", "bound", float("inf")),
        ("neglabel", "negative_similarities", NEGATIVES[:5]),
        ("neglabel", "negative_similarities", NEGATIVES[:, :0]),
        ("neglabel", "negative_similarities", NEGATIVES[0]),
        ("id_like", "negative_similarities", NEGATIVES[:5]),
        ("id_like", "negative_similarities", NEGATIVES[:, :0]),
        ("negprompt", "negative_similarities", NEGATIVES[:5]),
        ("lsn", "negative_similarities", NEGATIVES),
        ("clipn", "no_similarities", S[:5]),
        ("clipn", "no_similarities", S[:, :3]),
        ("clipn", "mode", "atb"),
    ],
)
def test_other_arguments_that_make_no_sense(name: str, parameter: str, bad: Any) -> None:
    function, more = FUNCTIONS[name]
    with pytest.raises(InputError):
        function(S, **{**more, parameter: bad})


@pytest.mark.parametrize("name", list_scores())
@pytest.mark.parametrize("bad", NO_NUMBERS)
def test_no_registered_score_takes_a_setting_that_is_no_number(name: str, bad: float) -> None:
    numbers = [key for key, value in make_score(name).params.items() if isinstance(value, (int, float))]
    lists = [key for key, value in make_score(name).params.items() if isinstance(value, tuple)]
    assert set(numbers) | set(lists) <= set(parameters_of(type(make_score(name))))
    for parameter in numbers:
        with pytest.raises(InputError, match=parameter):
            make_score(name, **{parameter: bad})
    for parameter in lists:
        with pytest.raises(InputError, match=parameter):
            make_score(name, **{parameter: [bad]})


@pytest.mark.parametrize("bad", [0, -0.5])
def test_no_registered_score_takes_a_temperature_that_is_not_positive(bad: float) -> None:
    hot = [name for name in list_scores() if {"temperature", "tau"} & set(parameters_of(type(make_score(name))))]
    assert len(hot) > 8
    for name in hot:
        parameter = "tau" if "tau" in make_score(name).params else "temperature"
        with pytest.raises(InputError, match=f"{parameter} must be"):
            make_score(name, **{parameter: bad})


@pytest.mark.parametrize("patches", [torch.zeros(2, 3), torch.zeros(2, 0, 4), torch.full((2, 3, 4), float("nan"))])
def test_patches_are_looked_at(patches: torch.Tensor) -> None:
    with pytest.raises(InputError, match="patches"):
        scores.local_mcm(patches, lambda rows: rows, 4)


@pytest.mark.parametrize(
    ("pixels", "settings"),
    [
        (np.zeros((2, 3, 4)), {}),
        (np.full((2, 3, 4, 4), np.nan), {}),
        (np.zeros((2, 3, 4, 4)), {"std": (1.0, 0.0, 1.0)}),
        (np.zeros((2, 3, 4, 4)), {"std": (1.0, 1.0)}),
        (np.zeros((2, 3, 4, 4)), {"temperature": 0}),
        (np.zeros((2, 3, 4, 4)), {"epsilon": -1}),
        (np.zeros((2, 3, 4, 4)), {"epsilon": float("inf")}),
        (np.zeros((2, 3, 4, 4)), {"logit_scale": float("nan")}),
    ],
)
def test_odin_looks_at_its_arguments(pixels: np.ndarray, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        scores.odin(lambda x: x.mean(dim=(2, 3)), pixels, **settings)


@pytest.mark.parametrize("name", ["auroc", "aupr_in", "aupr_out", "fpr", "fpr_ood"])
def test_metrics_look_at_theirs(name: str) -> None:
    def function(id_scores: object, ood_scores: object) -> float:
        return getattr(metrics.RankedScores(id_scores, ood_scores), name)()

    good, other = np.array([0.4, 0.2, 0.9]), np.array([0.1, 0.3])
    expected = function(good, other)
    assert function(good[::-1], other.astype(">f4")) == expected
    assert function(torch.from_numpy(good), other.tolist()) == expected
    for bad in ([0.1, float("nan")], [], [[0.1]], ["a"], [1j], None):
        with pytest.raises(InputError, match="id_scores"):
            function(bad, other)
        with pytest.raises(InputError, match="ood_scores"):
            function(good, bad)


@pytest.mark.parametrize("rate", [0, -1, 1.5, float("nan"), float("inf")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(InputError, match="rate"):
        metrics.fpr([1.0], [0.0], rate)
    with pytest.raises(InputError, match="rate"):
        metrics.RankedScores([1.0], [0.0]).fpr_ood(rate)
