"""Every contract check over every registered tuning method, EBM on every method that takes it, and some settings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.classifiers.methods import METHODS, Method, list_methods, make_method
from deltaenergy.core.needs import Need
from deltaenergy.scores.registry import list_scores, make_score
from deltaenergy.testing.methods import METHOD_CHECKS, every_score_works_on_it
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES
from tests.sampling import spread

TAKE_EBM = [name for name, cls in METHODS.items() if issubclass(cls, Method) and cls.takes_terms]
# Settings that a tiny model and a dozen images can bear.
SMALL = {"id-like": "id-like(crops=8,selected=2,outliers=5)"}
PLAIN = [SMALL.get(name, name) for name in list_methods()]
SPECS = [
    *PLAIN,
    *(f"{name}+ebm" for name in TAKE_EBM if name != "coop"),
    "coop(name_position=middle)",
    "coop(class_specific=True)",
    "dplclip(serve=image)",
    "dplclip(serve=batch)",
    "lsn(positives=cocoop)",
    "promptsrc(vision_tokens=0)",
    "plot(pooled=True)",
    "croft(as_released=True)",
]
TRAINED = [name for name in SPECS if make_method(name).trains]


def some_scores(spec: str) -> list[str]:
    """The method's own score, and one or two of every kind of need; others for the next method.

    What a loss or a setting changes is the same classifier for a score: those meet one kind each.
    """
    kinds: dict[frozenset[Need], list[str]] = defaultdict(list)
    for name in list_scores():
        kinds[make_score(name).needs].append(name)
    number = SPECS.index(spec)
    # Of the many scores that need nothing further, two.
    chosen = {names[place % len(names)] for names in kinds.values() for place in range(number, number + len(names), 5)}
    if spec not in PLAIN:
        chosen = {sorted(chosen)[number % len(chosen)]}
    return sorted(chosen | {make_method(spec).classifier.own_score or "delta-energy"})


CHECKS = [check for check in METHOD_CHECKS if check is not every_score_works_on_it]


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        *(pytest.param(spec, check) for spec in PLAIN for check in CHECKS),
        # A loss or a setting more: each meets a third of the checks, and each check a third of them.
        *spread(SPECS[len(PLAIN) :], CHECKS, 3),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_method(spec: str, check: Callable[[Method], None]) -> None:
    check(make_method(spec))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scores_of_every_kind_work_on_every_method(spec: str) -> None:
    every_score_works_on_it(make_method(spec), some_scores(spec))


@pytest.mark.campaign
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_score_works_on_every_method(spec: str) -> None:
    every_score_works_on_it(make_method(spec))


def test_every_score_is_met_by_some_methods() -> None:
    met = Counter(name for spec in SPECS for name in some_scores(spec))
    assert set(met) == set(list_scores()) and min(met.values()) >= 3


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_lowers_the_loss(method: str, tiny_clip: de.Model, train_set: TrainSet) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method=method, recipe={"epochs": 12})
    for stage in range(1, 1 + len(make_method(method).stages)):
        losses = [log["loss"] for log in classifier.record["epochs"] if log["stage"] == stage]
        # Views are drawn anew in every epoch, so single epochs vary.
        assert np.mean(losses[-4:]) < np.mean(losses[:3]), f"stage {stage}"
