"""Labels and class names: one matching for every command, exact names first, and errors that name image and label."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaenergy import Model, ZeroShotClassifier, choose
from deltaenergy.core.classes import ClassFinder, class_indices, class_names, first_of_name, normal_name
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.evaluation import evaluate
from deltaenergy.theory import check_theory
from deltaenergy.tuning.fewshot import sample_few_shots

WORDS = st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1, max_size=6)


def labelled(*labels: str | None) -> list[ImageItem]:
    return [ImageItem(f"{number}.png", b"", label) for number, label in enumerate(labels)]


@pytest.mark.parametrize("label", ["golden retriever", "golden-retriever", "Golden_Retriever", "golden   retriever"])
def test_case_and_separators_do_not_matter(label: str) -> None:
    assert class_indices(labelled(label), ["cat", "golden retriever"], "Images") == [1]


@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from([" ", "_", "-", "  ", "_-"]), st.booleans())
def test_a_name_is_found_however_it_is_written(words: list[str], separator: str, decomposed: bool) -> None:
    name = " ".join(words)
    written = separator.join(words)
    if decomposed:
        written = unicodedata.normalize("NFD", written)
    assert ClassFinder(["another one entirely", name]).find(written) == 1
    assert normal_name(written) == normal_name(name)


def test_an_exact_name_goes_before_a_similar_one() -> None:
    items = labelled("red_car", "DOG", "Red-car")
    assert class_indices(items, ["Red_Car", "red_car", "DOG"], "Images") == [1, 2, 0]
    assert first_of_name(["Red_Car", "red_car", "DOG", "dog"]) == [0, 0, 2, 2]


def test_class_names_come_from_labels_in_order_and_once() -> None:
    items = labelled("red_car", None, "DOG", "Red car", "t-shirt", " _ ")
    assert class_names(items) == ["red car", "DOG", "t-shirt"]
    assert class_indices(labelled("T-Shirt"), class_names(items), "Images") == [2]


def test_an_unknown_label_names_the_image_the_near_class_and_the_others() -> None:
    with pytest.raises(InputError) as found:
        class_indices(labelled("cat", "dgo", "dgo", "elk"), ["dog", "cat"], "Validation images")
    message = str(found.value)
    assert message.startswith("Validation images: 1.png is of class 'dgo', which is not among the 2 classes.")
    assert "Did you mean 'dog'?" in message and "Neither are 'elk'." in message and "(3 in all)" in message


def test_a_thousand_classes_are_not_listed() -> None:
    classes = [f"kind {number}" for number in range(1000)]
    with pytest.raises(InputError) as found:
        class_indices(labelled("knid 7"), classes, "Images")
    assert "Did you mean" in str(found.value) and len(str(found.value)) < 300


def test_an_image_without_label_is_named() -> None:
    with pytest.raises(InputError, match=r"1\.png has no class label"):
        class_indices(labelled("cat", None), ["cat"], "Training images")


def test_every_part_of_the_package_matches_alike(tiny_clip: Model, photos: Path) -> None:
    """Folders `golden-retriever` and `CAT` for classes `golden retriever` and `cat`."""
    (photos / "dog").rename(photos / "golden-retriever")
    (photos / "cat").rename(photos / "CAT")
    classes = ["golden retriever", "cat"]
    classifier = ZeroShotClassifier(tiny_clip, classes)
    from deltaenergy.source import load_images

    items = load_images(photos)
    truth = [0 if "golden" in item.id else 1 for item in items]
    assert evaluate(classifier, ["mcm"], [("x", photos)]).sets[0].labels.tolist() == truth
    assert choose(classifier, photos, ["mcm"], resamples=5).classes == 2
    assert sample_few_shots(items, classes, 2, seed=1).labels == [0, 0, 1, 1]
    assert check_theory(classifier, items).images == 8
