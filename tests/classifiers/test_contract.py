"""Every contract check over every registered tuning method, EBM on every method that takes it, and some settings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.classifiers.methods import METHODS, Method, list_methods, make_method
from deltaenergy.testing.methods import METHOD_CHECKS
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES

TAKE_EBM = [name for name, cls in METHODS.items() if issubclass(cls, Method) and cls.takes_terms]
# Settings that a tiny model and a dozen images can bear.
SMALL = {"id-like": "id-like(crops=8,selected=2,outliers=5)"}
SPECS = [
    *(SMALL.get(name, name) for name in list_methods()),
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


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_method(spec: str, check: Callable[[Method], None]) -> None:
    check(make_method(spec))


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_lowers_the_loss(method: str, tiny_clip: de.Model, train_set: TrainSet) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method=method, recipe={"epochs": 12})
    for stage in range(1, 1 + len(make_method(method).stages)):
        losses = [log["loss"] for log in classifier.record["epochs"] if log["stage"] == stage]
        # Views are drawn anew in every epoch, so single epochs vary.
        assert np.mean(losses[-4:]) < np.mean(losses[:3]), f"stage {stage}"
