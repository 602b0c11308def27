"""The canonical class names: right against the reference, hashed, and found again from folders and split files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from deltaenergy.data.catalogue.class_names import ClassName, NameList, name_list, read_names, template_ensemble
from deltaenergy.errors import ArtifactError, InputError

# As the data sets' papers count them.
SIZES = {
    "imagenet": 1000,
    "imagenet-a": 200,
    "imagenet-r": 200,
    "imagenet-10": 10,
    "imagenet-20": 20,
    "imagenet-100": 100,
    "caltech101": 102,
    "dtd": 47,
    "eurosat": 10,
    "fgvc-aircraft": 100,
    "flowers102": 102,
    "food101": 101,
    "oxford-pets": 37,
    "pacs": 7,
    "stanford-cars": 196,
    "sun397": 397,
    "ucf101": 101,
    "vlcs": 5,
    "waterbirds": 2,
}


def test_imagenet_equals_the_reference(shared_data: Path) -> None:
    reference = shared_data.parent / "reference" / "imagenet1k.csv"
    if not reference.is_file():
        pytest.skip("no reference list beside the data")
    with reference.open(encoding="utf-8", newline="") as file:
        rows = [(row["wnid"], row["name"], row["superclass"]) for row in csv.DictReader(file)]
    classes = name_list("imagenet").classes
    assert [(entry.key, entry.name, entry.superclass) for entry in classes] == rows


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_keys(name: str) -> None:
    names = name_list(name)
    assert len(names.classes) == len(set(names.keys)) == SIZES[name]
    assert all(text and text == text.strip() and "_" not in text and "  " not in text for text in names.names)
    for entry in names.classes:
        assert names.find(entry.key) is entry


def test_imagenet_names_that_stand_twice() -> None:
    names = name_list("imagenet").names
    assert sorted({name for name in names if names.count(name) > 1}) == ["missile", "sunglasses"]


@pytest.mark.parametrize(
    ("dataset", "text", "key"),
    [
        ("imagenet", "n01440764_tench", "n01440764"),
        ("imagenet", "n01440764", "n01440764"),
        ("oxford-pets", "American Bulldog", "american_bulldog"),
        ("oxford-pets", "abyssinian", "Abyssinian"),
        ("ucf101", "Apply_Eye_Makeup", "ApplyEyeMakeup"),
        ("sun397", "indoor church", "c/church/indoor"),
        ("sun397", "a/abbey", "a/abbey"),
        ("stanford-cars", "2012 Audi TTS Coupe", "Audi TTS Coupe 2012"),
        ("caltech101", "faces_easy", "Faces_easy"),
        ("dtd", "polka_dotted", "polka-dotted"),
        ("eurosat", "Annual Crop Land", "AnnualCrop"),
    ],
)
def test_classes_are_found_by_what_people_write(dataset: str, text: str, key: str) -> None:
    entry = name_list(dataset).find(text)
    assert entry is not None
    assert entry.key == key


@pytest.mark.parametrize("text", ["n99999999", "nothing", "", "missile"])
def test_unknown_and_ambiguous_texts_are_no_class(text: str) -> None:
    assert name_list("imagenet").find(text) is None


def test_every_change_to_a_list_changes_its_hash() -> None:
    base = [ClassName("a", "x"), ClassName("b", "y")]
    variants = [
        base[::-1],
        base[:1],
        [ClassName("a", "x"), ClassName("b", "z")],
        [ClassName("c", "x"), ClassName("b", "y")],
        [ClassName("a", "x", "s"), ClassName("b", "y")],
        [ClassName("ax", ""), ClassName("b", "y")],
    ]
    hashes = {NameList(tuple(variant)).hash for variant in [base, *variants]}
    assert len(hashes) == len(variants) + 1


def test_an_edited_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hashes.json").write_text('{"pacs": "0123"}')
    (tmp_path / "pacs.csv").write_text("key,name\ndog,hound\n")
    with pytest.raises(ArtifactError, match="were changed"):
        read_names(tmp_path, "pacs")


def test_templates() -> None:
    assert len(template_ensemble("imagenet")) == 80
    assert "a photo of a {}." in template_ensemble("caltech101")
    for name in ("imagenet", "dtd", "eurosat", "oxford-pets"):
        assert all(text.count("{}") == 1 for text in template_ensemble(name))
    with pytest.raises(InputError, match="Did you mean 'dtd'"):
        template_ensemble("dtdd")
