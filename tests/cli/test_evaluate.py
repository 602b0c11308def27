"""`deltaenergy evaluate`: the table, JSON, the report, exit codes, and what it says to wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltaenergy import build_store
from deltaenergy.cli.main import run
from deltaenergy.evaluation.sets import short_names
from tests.colours import paint, paint_sets
from tests.report.checks import check_page


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return paint_sets(tmp_path)


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run(["evaluate", *(str(argument) for argument in arguments)])
    return int(stop.value.code or 0)


def options(sets: Path, model: Path) -> list[object]:
    return ["--id", sets / "known", "--shifted", sets / "dark", "--open", sets / "grey", "--model", model]


def test_prints_accuracy_and_detection_for_every_score(sets, tiny_clip_folder, capsys):
    assert call(*options(sets, tiny_clip_folder), "-s", "mcm", "-s", "delta-energy(tau=0.1,c=1)") == 0
    printed = capsys.readouterr().out
    for expected in (
        "known",
        "dark",
        "grey",
        "AUROC",
        "FPR95",
        "accuracy",
        "mcm",
        "delta-energy(tau=0.1,c=1)",
        "known (known, 19) against grey (open, 8)",
        "Best of 2 scores: ",
    ):
        assert expected in printed


def test_json_report_and_classes_from_the_folders(sets, tiny_clip_folder, tmp_path, capsys):
    (sets / "known" / "red").rename(sets / "known" / "dark_red")
    (sets / "dark" / "red").rename(sets / "dark" / "Dark-Red")
    report = tmp_path / "new folder" / "r.html"
    assert call(*options(sets, tiny_clip_folder), "--json", "--report", report, "--limit", 6) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["provenance"]["classes"] == ["blue", "dark red", "green"]
    assert {row["images"] for row in found["accuracy"]} == {6}
    scores = ["delta-energy+words", "delta-energy+words(weight=0)"]  # the second is judged from names alone
    assert [(row["score"], row["closed"]) for row in found["detection"]] == [
        (score, closed) for closed in ("known", "dark") for score in scores
    ]
    assert "from class names only" in found["provenance"]["guarantee"]
    assert str(report) in printed.err.replace("\n", "")
    check_page(report.read_text(encoding="utf-8"))


def test_unreadable_pictures_are_listed_and_the_exit_code_is_one(sets, tiny_clip_folder, tmp_path, capsys):
    (sets / "grey" / "broken.png").write_bytes(b"text")
    assert call(*options(sets, tiny_clip_folder), "--report", tmp_path / "r.html") == 1
    printed = capsys.readouterr()
    assert "broken.png" in printed.err and "AUROC" in printed.out
    assert "broken.png" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_all_scores_show_the_default_in_the_report(sets, tiny_clip_folder, tmp_path, capsys):
    assert call(*options(sets, tiny_clip_folder), "-s", "all", "--limit", 4, "--report", tmp_path / "r.html") == 0
    page = check_page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "score delta-energy+words ·" in page.text
    assert "mcm" in capsys.readouterr().out


def test_a_detector_brings_classifier_score_and_threshold(sets, tiny_clip_folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(
            [
                "calibrate", str(sets / "known"), "--out", str(tmp_path / "detector"), "--classes", "red,green,blue",
                "--score", "mcm", "--model", str(tiny_clip_folder), "--keep", "0.5",
            ]
        )  # fmt: skip
    assert not stop.value.code
    threshold = json.loads((tmp_path / "detector" / "detector.json").read_text())["calibration"]["threshold"]
    capsys.readouterr()
    chosen = ["--id", sets / "known", "--open", sets / "grey", "--detector", tmp_path / "detector", "--json"]
    assert call(*chosen) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["threshold"] for row in found["kept"]} == {threshold}
    assert {row["score"] for row in found["kept"]} == {"mcm"}
    assert call(*chosen, "--score", "energy") == 0
    assert {row["score"] for row in json.loads(capsys.readouterr().out)["kept"]} == {"energy"}
    assert call(*chosen, "--classes", "a,b") == 2
    assert "part of the detector" in capsys.readouterr().err


def test_without_open_set(sets, tiny_clip_folder, capsys):
    assert call("--id", sets / "known", "--model", tiny_clip_folder) == 0
    printed = capsys.readouterr()
    assert "accuracy" in printed.out and "--open" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--score", "mcn"], "Did you mean 'mcm'"),
        (["--report", "report.pdf"], "must end in .html"),
        (["--report", "."], "is a folder"),
        (["--open", "no such folder"], "no such folder"),
        (["--keep", "2"], "keep must be"),
        (["--template", "a photo"], "exactly one {}"),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_two(sets, tiny_clip_folder, capsys, arguments, message):
    assert call("--id", sets / "known", "--model", tiny_clip_folder, *arguments) == 2
    printed = capsys.readouterr()
    assert message in " ".join(printed.err.split()) and printed.out == ""


def test_flat_folder_without_classes(sets, tiny_clip_folder, capsys):
    assert call("--id", sets / "grey", "--model", tiny_clip_folder) == 2
    assert "--classes" in capsys.readouterr().err


def test_folder_that_is_no_class(sets, tiny_clip_folder, capsys):
    paint(sets / "dark" / "purple" / "0.png", (100, 0, 100))
    assert call(*options(sets, tiny_clip_folder)) == 2
    assert "'purple'" in capsys.readouterr().err


def test_set_names_are_the_last_parts_that_differ():
    assert short_names(["data/pacs/photo", "data/food"]) == {"data/pacs/photo": "photo", "data/food": "food"}
    assert short_names(["a/x/test", "a/y/test", "b"]) == {"a/x/test": "x/test", "a/y/test": "y/test", "b": "b"}
    assert short_names(["./test", "/test/test"]) == {"./test": "test", "/test/test": "test/test"}


def test_stores_give_what_their_images_give(sets, tiny_clip, tiny_clip_folder, tmp_path, capsys):
    for name in ("known", "dark", "grey"):
        build_store(tiny_clip, sets / name, tmp_path / f"{name}.store", shard_size=5)
    found = []
    for ending in ("", ".store"):
        named = [*("--id", f"{sets}/known{ending}"), *("--shifted", f"{sets}/dark{ending}")]
        assert call(*named, "--open", f"{sets}/grey{ending}", "--model", tiny_clip_folder, "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    images, stored = found
    assert stored["provenance"]["classes"] == images["provenance"]["classes"] == ["blue", "green", "red"]
    for key in ("accuracy", "detection", "kept"):
        assert len(images[key]) == len(stored[key]) > 0
        for ours, theirs in zip(stored[key], images[key]):
            for column, value in theirs.items():
                same = ours[column].removesuffix(".store") if isinstance(value, str) else ours[column]
                assert same == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), column


def test_a_store_without_labels_leaves_out_of_all_what_learns_from_classes(
    sets, tiny_clip, tiny_clip_folder, tmp_path, capsys
):
    build_store(tiny_clip, sets / "grey", tmp_path / "flat.store")
    arguments = ["--id", tmp_path / "flat.store", "--classes", "grey", "--model", tiny_clip_folder, "-s", "all"]
    assert call(*arguments) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "interneg (needs labels: no image has a class)" in said


def test_a_damaged_store_is_told_before_a_model_is_loaded(sets, tiny_clip, tmp_path, capsys):
    build_store(tiny_clip, sets / "known", tmp_path / "known.store")
    next((tmp_path / "known.store").rglob("*.arrow")).unlink()
    assert call("--id", tmp_path / "known.store", "--model", "no/such/model") == 2
    assert "known.store" in capsys.readouterr().err
