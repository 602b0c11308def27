"""`calibrate --confidence --by-class` and `score --confidence --fdr` as a user would type them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

import deltaenergy as de
from tests.cli.runner import Runner


@pytest.fixture
def base(tiny_clip_folder: Path) -> list[str]:
    return ["--model", str(tiny_clip_folder), "--classes", "dog,cat", "--score", "energy"]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Fifty pictures of noise in two class folders."""
    rng = np.random.default_rng(0)
    for i in range(50):
        path = tmp_path / "many" / ("dog" if i % 2 else "cat") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, size=(24, 24, 3), dtype=np.uint8)).save(path)
    return tmp_path / "many"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_calibrate_says_what_it_promises(command: Runner, base: list[str], many: Path, tmp_path: Path) -> None:
    result = command("calibrate", many, *base, "--out", tmp_path / "d")
    assert result.code == 0
    assert "at least 95 % are accepted, with 90 % confidence (set on 50 images)" in " ".join(result.err.split())
    found = json.loads(command("calibrate", many, *base, "--out", tmp_path / "e", "--confidence", "none", "--json").out)
    assert found["guarantee"]["confidence"] is None
    saved = de.Detector.load(tmp_path / "d")
    assert saved.guarantee is not None and saved.guarantee.confidence == 0.9
    assert saved.threshold is not None and saved.threshold < found["threshold"], "a promise costs something"
    result = command("score", many, "--detector", tmp_path / "d")
    assert "with 90 % confidence" in " ".join(result.err.split())


def test_score_says_which_promise_is_whose(command: Runner, base: list[str], many: Path) -> None:
    """Fitted scores set their threshold on 25 of the images, others on all 50."""
    told = " ".join(command("score", many, *base, "--score", "mcm", "--score", "react", "--id", many).err.split())
    assert "energy, mcm: Of new images like these, at least 95 % are accepted, with 90 % confidence (set on 50" in told
    assert "react: At least 95 % of the 25 calibration images are accepted" in told
    told = " ".join(command("score", many, *base, "--score", "react", "--id", many, "--fdr", "0.4").err.split())
    assert "With 25 calibration images no p-value is below 0.038" in told


def test_calibrate_by_class(command: Runner, base: list[str], many: Path, tmp_path: Path) -> None:
    options = ["--by-class", "--keep", "0.6", "--confidence", "0.5", "--json"]
    found = json.loads(command("calibrate", many, *base, *options, "--out", tmp_path / "d").out)
    assert {*found["guarantee"]["own"], *found["guarantee"]["pooled"]} == {"dog", "cat"}
    assert list(found["class_thresholds"]) == found["guarantee"]["own"] and found["class_thresholds"]
    verdicts = rows_of(command("score", many, "--detector", tmp_path / "d").out)
    for row in verdicts:
        bound = found["class_thresholds"].get(row["label"], found["threshold"])
        assert abs(float(row["score"]) - bound) < 1e-4 or (row["is_ood"] == "True") == (float(row["score"]) < bound)
    refused = command("score", many, "--detector", tmp_path / "d", "--fdr", "0.1")
    assert refused.code == 2 and "without by_class" in " ".join(refused.err.split())


def test_too_few_images_are_told(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    for result in (
        command("calibrate", photos, *base, "--out", tmp_path / "d", "--classes", "dog,cat"),
        command("score", photos, *base, "--id", photos),
    ):
        assert result.code == 0
        assert "takes 45 images" in " ".join(result.err.split()) and "Warning" not in result.err


@pytest.mark.parametrize("ending", ["csv", "jsonl", "pipe", "json"])
def test_false_discoveries_of_a_folder(
    command: Runner, base: list[str], many: Path, photos: Path, tmp_path: Path, ending: str
) -> None:
    """Every form of output has the verdicts of scipy's Benjamini–Hochberg on the p-values of the whole folder."""
    out = [] if ending in ("pipe", "json") else ["--out", str(tmp_path / f"found.{ending}")]
    options = ["--id", str(many), "--fdr", "0.4", "--batch-size", "3", *(["--json"] if ending == "json" else [])]
    result = command("score", photos, *base, *options, *out)
    assert result.code == 0 and "at most 40 % are known ones" in " ".join(result.err.split())
    if ending == "json":
        document = json.loads(result.out)
        assert document["fdr"] == 0.4
        rows = document["images"]
    elif ending == "pipe":
        rows = rows_of(result.out)
    elif ending == "csv":
        rows = rows_of((tmp_path / "found.csv").read_text())
    else:
        rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    p = np.array([float(row["p_value"]) for row in rows])
    expected = stats.false_discovery_control(p, method="bh") <= 0.4
    assert len(rows) == 8 and [str(row["is_ood"]) == "True" for row in rows] == expected.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fdr", "0.1"], "--fdr needs known images"),
        (["--fdr", "1.5", "--id", "{photos}"], "--fdr must be above 0 and below 1"),
        (["--fdr", "nan", "--id", "{photos}"], "--fdr must be above 0 and below 1"),
        (["--confidence", "1", "--id", "{photos}"], "--confidence must be above 0 and below 1"),
        (["--confidence", "high", "--id", "{photos}"], "--confidence must be above 0 and below 1"),
    ],
)
def test_wrong_use_of_score(command: Runner, base: list[str], photos: Path, arguments: list[str], message: str) -> None:
    result = command("score", photos, *base, *[text.format(photos=photos) for text in arguments])
    assert result.code == 2 and message in " ".join(result.err.split())


def test_wrong_use_of_calibrate(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    result = command("calibrate", *files, *base, "--out", tmp_path / "d", "--by-class")
    assert result.code == 2 and "each image's class" in " ".join(result.err.split())
    result = command("calibrate", photos, *base, "--out", tmp_path / "d", "--by-class", "--keep", "1")
    assert result.code == 2 and "--keep below 1" in " ".join(result.err.split())
    assert not (tmp_path / "d").exists()
