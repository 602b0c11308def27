"""`calibrate --confidence --by-class` and `score --fdr` as a user would type them."""

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


def test_calibrate_says_what_is_guaranteed(command: Runner, base: list[str], many: Path, tmp_path: Path) -> None:
    """Of 50 images the second lowest score is the threshold on average, the lowest with 90% confidence."""
    result = command("calibrate", many, *base, "--out", tmp_path / "d")
    assert result.code == 0
    told = "95% of new images like these are kept on average, at least 92.4% with 90% confidence (set on 50 images)"
    assert told in " ".join(result.err.split())
    strict = command("calibrate", many, *base, "--out", tmp_path / "e", "--confidence", "0.9", "--json")
    found = json.loads(strict.out)
    assert found["guarantee"]["confidence"] == 0.9 and found["guarantee"]["at_least"] is None
    saved = de.Detector.load(tmp_path / "d")
    assert saved.guarantee is not None and saved.guarantee.confidence is None
    assert saved.threshold == saved.calibration_scores[1] and found["threshold"] == saved.calibration_scores[0]
    result = command("score", many, "--detector", tmp_path / "d")
    assert told in " ".join(result.err.split())


def test_score_prints_the_guarantee_of_its_score(command: Runner, tiny_clip_folder: Path, many: Path) -> None:
    model = ["--model", tiny_clip_folder, "--classes", "dog,cat"]
    told = " ".join(command("score", many, *model, "--score", "mcm", "--id", many).err.split())
    assert "95% of new images like these are kept on average" in told
    told = " ".join(command("score", many, *model, "--score", "react", "--id", many).err.split())
    assert "About 95% of new images" in told and "5 folds" in told
    refused = command("score", many, *model, "--score", "react", "--id", many, "--fdr", "0.4")
    assert refused.code == 2 and "fdr" in refused.err


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
    assert refused.code == 2 and "--detector" not in refused.err and "one threshold" in " ".join(refused.err.split())


def test_too_few_images_are_told(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    for result in (
        command("calibrate", photos, *base, "--out", tmp_path / "d", "--classes", "dog,cat"),
        command("score", photos, *base, "--id", photos),
    ):
        assert result.code == 0
        assert "needs 19 images" in " ".join(result.err.split()) and "Warning" not in result.err


@pytest.mark.parametrize("ending", ["csv", "jsonl", "pipe", "json"])
def test_false_discoveries_of_a_folder(
    command: Runner, base: list[str], many: Path, photos: Path, tmp_path: Path, ending: str
) -> None:
    """Every form of output has the verdicts of scipy's Benjamini–Hochberg on the p-values of the whole folder."""
    out = [] if ending in ("pipe", "json") else ["--out", str(tmp_path / f"found.{ending}")]
    options = ["--id", str(many), "--fdr", "0.4", "--on", "batch=3", *(["--json"] if ending == "json" else [])]
    result = command("score", photos, *base, *options, *out)
    assert result.code == 0 and "at most 40% are known" in " ".join(result.err.split())
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
    ],
)
def test_wrong_use_of_score(command: Runner, base: list[str], photos: Path, arguments: list[str], message: str) -> None:
    result = command("score", photos, *base, *[text.format(photos=photos) for text in arguments])
    assert result.code == 2 and message in " ".join(result.err.split())


def test_wrong_use_of_calibrate(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    result = command("calibrate", *files, *base, "--out", tmp_path / "d", "--by-class")
    assert result.code == 2 and "--by-class needs the class of each image" in " ".join(result.err.split())
    result = command("calibrate", photos, *base, "--out", tmp_path / "d", "--by-class", "--keep", "1")
    assert result.code == 2 and "--keep below 1" in " ".join(result.err.split())
    result = command("calibrate", photos, *base, "--out", tmp_path / "d", "--confidence", "1")
    assert result.code == 2 and "--confidence must be above 0 and below 1" in result.err
    result = command("calibrate", photos, *base, "--out", tmp_path / "d", "--confidence", "high")
    assert result.code == 2 and "'--confidence'" in result.err
    assert not (tmp_path / "d").exists()
