"""The model does not know these classes: the rule, and where it is told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.class_check import (
    UnknownClassesWarning,
    class_accuracy,
    names_by_chance,
    random_words,
    warn_if_unknown,
)


@pytest.mark.parametrize(
    ("correct", "images", "classes", "unknown"),
    [
        (10, 100, 10, True),  # what guessing gives
        (17, 100, 10, True),  # better than guessing may be: P(≥ 17) = 0.0206
        (30, 100, 10, False),
        (40, 1000, 102, True),  # surely better than 1 %, and still knows nothing
        (500, 1000, 102, False),
        (0, 100, 2, True),
        (9, 10, 2, False),  # too few images to tell
        (5, 10, 2, False),
        (100, 100, 1, False),  # nothing to know
    ],
)
def test_the_rule(correct: int, images: int, classes: int, unknown: bool) -> None:
    assert names_by_chance(correct, images, classes) is unknown


def labelled(labels: list[str | None]) -> list[ImageItem]:
    return [ImageItem(f"{i}", b"", label) for i, label in enumerate(labels)]


@pytest.mark.filterwarnings("ignore:Duplicate class names")
def test_labels_tell_and_others_do_not() -> None:
    names = ["a", "b", "c", "a"]  # a name that stands twice is one class
    classifier = de.PrecomputedClassifier(np.eye(4), names)
    predicted = np.arange(90) % 3
    right: list[str | None] = [names[k] for k in predicted]
    wrong: list[str | None] = [names[(k + 1) % 3] for k in predicted]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_unknown(classifier, labelled(right), predicted)
        warn_if_unknown(classifier, labelled(right), np.where(predicted == 0, 3, predicted))
        warn_if_unknown(classifier, labelled(["2019"] * 90), predicted)
        warn_if_unknown(classifier, labelled([None] * 90), predicted)
    with pytest.warns(UnknownClassesWarning, match=r"names 0 %.* 90 images"):
        warn_if_unknown(classifier, labelled(wrong), predicted)


@pytest.mark.filterwarnings("ignore:Duplicate class names")
def test_accuracy_by_class_worked_by_hand() -> None:
    """a stands twice and is one class; d has no image; b is worst, and of its equals the one with more images first."""
    names = ["a", "b", "c", "a", "d"]
    items = labelled(["a", "a", "b", "B", "b", "b", "c", "c"])
    found = class_accuracy(names, items, np.array([0, 3, 0, 1, 2, 4, 2, 1]))
    assert found is not None
    assert found.rows == (("a", 2, 2), ("b", 4, 1), ("c", 2, 1))
    assert found.images == 8 and found.share == 0.5
    assert found.worst(5) == [("b", 4, 1), ("c", 2, 1)] and found.worst(1) == [("b", 4, 1)]
    assert class_accuracy(names, [*items[:7], *labelled([None])], np.zeros(8, np.int64)) is None
    assert class_accuracy(names, labelled(["2019"]), np.zeros(1, np.int64)) is None
    assert class_accuracy(names, [], np.zeros(0, np.int64)) is None


def test_random_words_are_none_of_the_classes_and_stay_the_same() -> None:
    words = random_words(100, ["chair"])
    assert len(set(words)) == 100 and words == random_words(100, ["chair"])
    assert words[0] not in random_words(100, [words[0].upper()])


def test_the_bundled_model_knows_real_things(shared_data: Path) -> None:
    """Real animals and things pass without a word; the same pictures under wrong names do not."""
    model = de.load_model("lite")
    kinds = ["dog", "elephant", "giraffe", "guitar", "horse"]
    items = [
        ImageItem(f"{kind} {path.name}", path, kind)
        for kind in kinds
        for path in sorted((shared_data / "images" / "pacs" / "photo" / kind).glob("*"))[:6]
    ]
    classifier: Any = de.ZeroShotClassifier(model, kinds)
    found = classifier.similarities(items)
    features = model.encode_images(items)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_unknown(classifier, items, found.argmax(axis=1))
        unlabelled = [ImageItem(item.id, item.source) for item in items]
        warn_if_unknown(classifier, unlabelled, found.argmax(axis=1), features)
    strange = de.ZeroShotClassifier(model, ["blorptle", "quizzelwick", "snarfin", "trondlebax", "wumbly"])
    with pytest.warns(UnknownClassesWarning, match="random words"):
        warn_if_unknown(strange, unlabelled, found.argmax(axis=1), features)
