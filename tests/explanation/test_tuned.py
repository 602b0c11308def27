"""Classifiers by every tuning method can be explained; one that gives no gradient says so by name."""

from __future__ import annotations

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.testing.samples import random_pictures
from deltaenergy.tuning.prepare import TrainSet
from tests.classifiers.test_contract import SMALL
from tests.labelled_pictures import CLASSES


@pytest.mark.parametrize("name", de.list_methods())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_tuned_classifier(name: str, tiny_clip: de.Model, train_set: TrainSet) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method=SMALL.get(name, name), recipe={"epochs": 1})
    similarities = classifier.similarities(random_pictures(2))
    for method in ("auto", "value-path", "rollout", "occlusion"):
        if Need.PIXELS in classifier.needs_to_predict and method in ("value-path", "rollout"):
            with pytest.raises(InputError, match=r"no gradient.*occlusion"):
                de.explain(classifier, random_pictures(2), method=method)
            continue
        if name == "plot" and method == "rollout":
            with pytest.raises(InputError, match=r"patches.*value-path"):
                de.explain(classifier, random_pictures(2), method=method)
            continue
        found = de.explain(classifier, random_pictures(2), method=method)
        if method == "auto":
            read_elsewhere = bool(classifier.needs_to_predict & {Need.PIXELS, Need.PATCHES})
            assert found[0].method == ("occlusion" if read_elsewhere else "rollout")
        for one, row in zip(found, similarities):
            assert np.isfinite(one.heatmap).all() and one.heatmap.max() > one.heatmap.min()
            assert one.label == CLASSES[int(row.argmax())]
            assert one.value == pytest.approx(float(row.max()), abs=1e-5)
