"""Every registered score and named setting, against the checks that other packages can run on theirs, and more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deltaenergy import Detector, Score, list_scores, make_score
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import parameters_of
from deltaenergy.errors import InputError
from deltaenergy.scores.clipn.tower import NoTower
from deltaenergy.scores.registry import get_score_class
from deltaenergy.testing import SCORE_CHECKS, tiny_model
from deltaenergy.testing.scores import OTHER_WORDS, classifier_for, looks_at_images
from tests.core.test_specs import HOSTILE

# Every score with its defaults, and every named setting of one.
SPECS = [
    spec for name in list_scores() for spec in (name, *(f"{name}:{preset}" for preset in get_score_class(name).presets))
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Candidates for scores that mine negatives, and a "no" tower whose every text is the opposite of the model's."""
    folder = tmp_path_factory.mktemp("scores")
    (folder / "words.txt").write_text("\n".join(OTHER_WORDS), encoding="utf-8")
    model = tiny_model()
    tower = NoTower(model, torch.zeros(1, model.text.width)).requires_grad_(False)
    for parameter in tower.projection.parameters():
        parameter.neg_()
    tower.save(folder / "no tower", model, {})
    return folder


def runnable(spec: str, files: Path) -> Score:
    """The score, with the files that it needs to run at all."""
    params = parameters_of(type(make_score(spec)))
    given: dict[str, Any] = {}
    if "words" in params:
        given = {"words": str(files / "words.txt"), **({"keep": 1.0} if "keep" in params else {})}
    if "nearest" in params:
        # Pairs of words mean nothing to a model of random weights: look at the nearest alone, prompted as unknowns are.
        given |= {"nearest": 1, "noun_templates": "the nice {}"}
    if "no_tower" in params:
        given = {"no_tower": str(files / "no tower")}
    return make_score(spec, **given)


@pytest.mark.parametrize("check", SCORE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", SPECS)
def test_contract(spec: str, check: Callable[[Score], None], files: Path) -> None:
    check(runnable(spec, files))


# --- specs --------------------------------------------------------------------------------------------------------

# Values that a parameter takes beyond what its type says.
ABOVE_ZERO = st.floats(min_value=1e-6, max_value=1e6, exclude_min=True)
SHARES = st.floats(min_value=0, max_value=1, exclude_min=True)
TEMPLATES = st.lists(HOSTILE, min_size=1, max_size=3).map(
    # "{|}" would be a second place once its bar is gone.
    lambda texts: "|".join(text.translate(str.maketrans("", "", "{}|")) + "{}" for text in texts)
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "c": st.integers(1, 50),
    "groups": st.integers(1, 1000),
    "reset": st.one_of(st.floats(-1e3, 1e3), st.just("background")),
    "epsilon": st.floats(0, 1),
    "weight": st.floats(0, 100),
    "percentile": st.floats(min_value=0, max_value=100, exclude_min=True),
    "quantile": st.floats(0, 1),
    "share": st.floats(0, 1),
    "keep": SHARES,
    "too_close": SHARES,
    "seed": st.integers(0, 2**40),
    "mode": st.sampled_from(["atd", "ctw"]),
    "noun_templates": TEMPLATES,
    "adjective_templates": TEMPLATES,
    "class_templates": st.one_of(st.just(""), TEMPLATES),
}


def value_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if name in VALUES:
        return VALUES[name]
    if type(None) in get_args(hint):
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    return {float: ABOVE_ZERO, int: st.integers(1, 100), bool: st.booleans(), str: HOSTILE}[hint]


@pytest.mark.parametrize("name", list_scores())
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_settings_survive_their_spec(name: str, data: st.DataObject) -> None:
    cls = get_score_class(name)
    chosen: dict[str, Any] = {}
    for parameter, hint in parameters_of(cls).items():
        if parameter in ("taus", "cs"):
            continue
        if data.draw(st.booleans(), label=f"change {parameter}"):
            strategy = value_of(parameter, hint)
            if name == "neglabel+delta-energy" or name == "csp+delta-energy":
                strategy = strategy if parameter != "reset" else st.floats(-1e3, 1e3)
            chosen[parameter] = data.draw(strategy, label=parameter)
    if "taus" in parameters_of(cls):
        pairs = data.draw(st.lists(st.tuples(ABOVE_ZERO, VALUES["c"]), min_size=1, max_size=4))
        chosen |= {"taus": [tau for tau, _ in pairs], "cs": [c for _, c in pairs]}
    score = make_score(name, **chosen)
    again = make_score(score.spec)
    assert again == score
    assert again.spec == score.spec
    assert again.params == score.params


@pytest.mark.parametrize(
    "spec",
    [
        "delta-energy(tau=abc)",
        "delta-energy(tau=nan)",
        "delta-energy(tau=)",
        "delta-energy(tau=[1])",
        "delta-energy(tau=-1)",
        "delta-energy(c=1.5)",
        "delta-energy(reset=middle)",
        "delta-energy:robst",
        "delta-energy(tua=1)",
        "csp(seed=1)+delta-energy",
        "csp:fast+delta-energy",
        "neglabel(keep=2)",
        "neglabel(words=a)b)",
        "msp(temperature='0.1')",
        "multi-delta-energy(taus=[1,2],cs=[1])",
    ],
)
def test_wrong_settings_are_refused_with_a_message(spec: str) -> None:
    with pytest.raises(InputError):
        make_score(spec)


def test_a_plus_belongs_to_the_name() -> None:
    score = make_score("csp+delta-energy( tau=0.1, words='my, list/a+b.txt' )")
    assert score.params["words"] == "my, list/a+b.txt" and score.params["tau"] == 0.1
    assert make_score(score.spec) == score
    with pytest.raises(InputError, match=r"csp\+delta-energy\(parameter"):
        make_score("csp(tau=0.1)+delta-energy")


# --- rows of features, whatever they come with --------------------------------------------------------------------

# Rows of features have no labels to learn from.
OF_FEATURES = [
    spec for spec in SPECS if not looks_at_images(make_score(spec)) and Need.LABELS not in make_score(spec).needs
]


@pytest.mark.parametrize("spec", OF_FEATURES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 200),
    classes=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    cuts=st.lists(st.integers(1, 199), max_size=4),
    keep=st.sampled_from([1.0, 0.95, 0.5]),
)
# 48 rows are three vectors of AVX-512, an odd number.
@example(count=36, classes=1, seed=0, cuts=[], keep=1.0)
def test_a_verdict_does_not_depend_on_the_batch(
    spec: str, files: Path, count: int, classes: int, seed: int, cuts: list[int], keep: float
) -> None:
    """Calibrated on some rows, then given them in other batches: the same bits, and with keep = 1 none rejected."""
    rng = np.random.default_rng(seed)
    names = [f"thing {number}" for number in range(classes)]
    classifier = classifier_for(make_score(spec).own_to, tuple(names))
    features = rng.normal(size=(count, classifier.model.feature_dim)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    detector = Detector(classifier, runnable(spec, files)).calibrate(features, keep, None)
    together = list(detector.predict(features))
    # Scorers that were cross-fitted have seen most of these rows: of them only keep = 1 is certain.
    if keep == 1 or not detector.score.needs_fit:
        assert sum(verdict.is_ood for verdict in together) <= count - math.ceil(round(keep * count, 9))
    order = rng.permutation(count)
    bounds = sorted({0, count, *(cut for cut in cuts if cut < count)})
    apart = [
        verdict for low, high in itertools.pairwise(bounds) for verdict in detector.predict(features[order[low:high]])
    ]
    for position, row in enumerate(order):
        found, expected = apart[position], together[row]
        assert (found.score, found.p_value, found.is_ood) == (expected.score, expected.p_value, expected.is_ood)
        assert (found.label, found.confidence) == (expected.label, expected.confidence)
