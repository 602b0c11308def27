"""Verdicts for FiftyOne, by the documented schema of its FiftyOneImageClassificationDataset, and tables in and out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from deltaenergy.detector.fiftyone import names_fiftyone, write_fiftyone
from deltaenergy.errors import InputError
from tests.cli.runner import Runner
from tests.colours import paint


def read_as_the_importer(folder: Path) -> dict[str, dict[str, Any]]:
    """The samples by path, as the importer reads them: a manifest in place of data/, targets by position."""
    assert not (folder / "data").exists(), "the importer would take data/ rather than data.json"
    manifest = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    paths = {Path(key).stem: value for key, value in manifest.items()}
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    assert set(labels) == {"classes", "labels"}
    samples = {}
    for uuid, target in labels["labels"].items():
        assert set(target) <= {"label", "confidence", "attributes"}
        reserved = {"id", "tags", "label", "confidence", "logits"}
        assert not reserved & set(target["attributes"]), "attributes become fields beside these"
        assert all(key.isidentifier() for key in target["attributes"])
        path = paths[uuid]
        assert Path(path).is_absolute() and Path(path).is_file()
        samples[path] = {**target["attributes"], "label": labels["classes"][target["label"]], **_sure(target)}
    return samples


def _sure(target: dict[str, Any]) -> dict[str, Any]:
    assert target["confidence"] is None or isinstance(target["confidence"], float)
    return {"confidence": target["confidence"]}


def test_labels_paths_and_attributes(tmp_path: Path) -> None:
    files = [paint(tmp_path / "in" / f"a.b {i}.png", (i, 0, 0)) for i in range(3)]
    rows = [
        {"path": str(files[0]), "label": "cat", "confidence": 0.9, "score": 1.5, "p_value": 0.4, "is_ood": False},
        {"path": str(files[1]), "label": "dog", "confidence": 0.5, "score": math.nan, "p_value": 0.1, "is_ood": True},
        {"path": str(files[2]), "label": "dog", "confidence": 0.7, "score": 2.0, "p_value": None, "is_ood": None},
        {"path": "x.tar/1.png", "label": "dog", "confidence": 0.7, "score": 2.0, "p_value": None, "is_ood": None},
    ]
    assert write_fiftyone(tmp_path / "fiftyone", rows, ["cat", "dog", "cat"]) == (3, 1)
    samples = read_as_the_importer(tmp_path / "fiftyone")
    known, unknown, open_ = (samples[str(file)] for file in files)
    assert (known["label"], known["confidence"], known["score"], known["is_ood"]) == ("cat", 0.9, 1.5, False)
    assert (unknown["label"], unknown["closest_class"], unknown["score"]) == ("none of these", "dog", None)
    assert open_["label"] == "dog" and open_["p_value"] is None


def test_a_class_called_none_of_these_is_told_apart(tmp_path: Path) -> None:
    file = paint(tmp_path / "a.png", (0, 0, 0))
    row = {"path": str(file), "label": "none of these", "confidence": 1.0, "is_ood": True}
    write_fiftyone(tmp_path / "fiftyone", [row], ["none of these"])
    assert read_as_the_importer(tmp_path / "fiftyone")[str(file)]["label"] == "none of these (by deltaenergy)"


def test_a_folder_with_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fiftyone" / "data").mkdir(parents=True)
    with pytest.raises(InputError, match="choose another folder"):
        write_fiftyone(tmp_path / "fiftyone", [], [])
    assert not (tmp_path / "fiftyone" / "labels.json").exists()


@pytest.mark.parametrize(
    ("name", "expected"), [("fiftyone", True), ("out/my.fiftyone", True), ("a.csv", False), ("fifty", False)]
)
def test_which_folders_are_meant(name: str, expected: bool) -> None:
    assert names_fiftyone(Path(name)) is expected


def test_score_writes_it(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    base = ["score", photos, "--model", tiny_clip_folder, "--classes", "dog,cat", "--score", "mcm"]
    out = tmp_path / "fiftyone"
    result = command(*base, "--id", photos, "--out", f"{out}/")
    assert result.code == 0 and "8 images written" in result.err
    samples = read_as_the_importer(out)
    assert len(samples) == 8 and all({"score_name", "score", "is_ood"} <= set(sample) for sample in samples.values())
    assert {Path(path).parent.name for path in samples} == {"cat", "dog"}
    wrong = command(*base, "--out", tmp_path / "elsewhere")
    assert wrong.code == 2 and "fiftyone" in wrong.err
    (tmp_path / "x.fiftyone" / "data").mkdir(parents=True)
    refused = command(*base, "--out", tmp_path / "x.fiftyone")
    assert refused.code == 2 and "choose another" in refused.err
