"""`deltaenergy choose` on a folder of pictures: the table, JSON, the detector it writes, wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deltaenergy import Detector, Model, TowerModel, build_store
from deltaenergy.cli.main import run


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Four class folders with five pictures each."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog", "red_car", "sketch"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_prints_a_ranking_and_what_it_cannot_know(
    labelled: Path, tiny_clip_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--id", labelled, "--model", tiny_clip_folder, "-s", "mcm,energy", "-s", "max-logit")
    assert call("choose", *options) == 0
    printed = capsys.readouterr()
    assert all(name in printed.out for name in ("AUROC", "mcm", "energy", "max-logit"))
    assert "20 images of 4 classes" in printed.err
    assert "near unknowns only" in " ".join(printed.err.split())
    assert printed.out.split()[:4] == ["score", "AUROC", "interval", "behind"]
    assert "--score" in printed.err


def test_json_and_the_detector_it_writes(
    labelled: Path, tiny_clip_folder: Path, tiny_clip: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (labelled / "dog" / "broken.png").write_bytes(b"no picture")
    options = ("--id", labelled, "--model", tiny_clip_folder, "--out", tmp_path / "detector", "--json")
    assert call("choose", *options) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["best"] == result["ranking"][0]["score"]
    assert {"delta-energy:robust", "delta-energy(tau=1)", "react", "neglabel"} <= {
        entry["score"] for entry in result["ranking"]
    }
    assert set(result["ranking"][0]) == {"score", "auroc", "behind", "fpr95"}
    assert [entry["path"].endswith("broken.png") for entry in result["unreadable"]] == [True]
    detector = Detector.load(tmp_path / "detector", model=tiny_clip)
    assert detector.score.spec == result["best"]
    assert detector.classifier.classes == ("cat", "dog", "red car", "sketch")
    # A fitted score learns from half of the twenty, and the other half sets its threshold.
    assert len(detector.calibration_scores) == 20

    assert call("choose", "--id", labelled, "--detector", tmp_path / "detector", "-s", "mcm", "--json") == 1
    assert json.loads(capsys.readouterr().out)["best"] == "mcm"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--classes", "cat,dog,red car"], "is of class 'sketch', which is not among the 3 classes"),
        (["--score", "mmc"], "Unknown score 'mmc'. Did you mean"),
        (["--out", "{file}"], "is a file"),
    ],
)
def test_wrong_use(
    labelled: Path,
    tiny_clip_folder: Path,
    tmp_path: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    filled = [option.format(file=tmp_path / "file") for option in options]
    assert call("choose", "--id", labelled, "--model", tiny_clip_folder, *filled) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_all_are_those_that_work_on_features(
    labelled: Path, tiny_clip_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("choose", "--id", labelled, "--model", tiny_clip_folder, "--score", "all", "--json") == 0
    printed = capsys.readouterr()
    specs = {row["score"] for row in json.loads(printed.out)["ranking"]}
    assert {"mcm", "react", "multi-delta-energy", "neglabel", "delta-energy:robust"} <= specs
    assert not {"gl-mcm", "odin", "clipn"} & specs
    said = printed.err
    assert "gl-mcm" in said and "odin" in said and "choose uses only features" in said
    assert call("choose", "--id", labelled, "--model", tiny_clip_folder, "--score", "mcm,gl-mcm") == 2
    assert "'gl-mcm' needs patches: choose uses only features" in capsys.readouterr().err


def test_a_store_gives_the_ranking_of_its_images(
    labelled: Path, tiny_clip_folder: Path, tiny_clip: TowerModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_store(tiny_clip, labelled, tmp_path / "store")
    options = ("--model", tiny_clip_folder, "-s", "mcm,energy", "--json")
    assert call("choose", "--id", tmp_path / "store", *options) == 0
    from_store = json.loads(capsys.readouterr().out)
    assert call("choose", "--id", labelled, *options) == 0
    assert json.loads(capsys.readouterr().out) == from_store


def test_images_without_classes(tiny_clip_folder: Path, labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("choose", "--id", labelled / "cat", "--model", tiny_clip_folder) == 2
    assert "one folder per class" in capsys.readouterr().err


def test_choose_a_score_for_real_pictures(real_sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole journey with the bundled model: rank, save a detector with the best, put it to use."""
    detector = real_sets / "detector"
    assert call("choose", "--id", real_sets / "seen", "-s", "mcm,max-logit,energy", "--out", detector, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["score"] for row in found["ranking"]} == {"mcm", "max-logit", "energy"}
    assert found["classes"] == 4 and found["ranking"][0]["auroc"]["value"] > 0.6
    assert Detector.load(detector).score.spec == found["best"]
    assert call("score", real_sets / "new", real_sets / "textures", "--detector", detector, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["images"]
    known = [row["verdict"] for row in rows if "/new/" in row["path"]]
    other = [row["verdict"] for row in rows if "/textures/" in row["path"]]
    assert known.count("known") >= 18 and other.count("none of these") >= 6
