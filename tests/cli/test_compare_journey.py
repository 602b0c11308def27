"""Compare detectors through the command line, on drawn pictures and, where they are, on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import Runner
from tests.colours import paint_sets
from tests.report.checks import check_page


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return paint_sets(tmp_path)


@pytest.fixture
def detectors(command: Runner, sets: Path, tiny_clip_folder: Path, tmp_path: Path) -> list[Path]:
    made = []
    for score in ("mcm", "max-logit"):
        made.append(tmp_path / "made" / score)
        options = ["--classes", "red,green,blue", "--model", tiny_clip_folder, "--score", score]
        assert command("calibrate", sets / "known", *options, "--out", made[-1]).code == 0
    return made


def options(sets: Path, detectors: list[Path]) -> list[object]:
    chosen = [part for folder in detectors for part in ("--detector", folder)]
    return ["--id", sets / "known", "--shifted", sets / "dark", "--open", sets / "grey", *chosen]


def test_two_detectors_and_zero_shot(command: Runner, sets: Path, detectors: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = command("evaluate", *options(sets, detectors), "--zero-shot", "--report", page, "--json")
    assert result.code == 0
    found = result.json
    assert found["baseline"] == "zero-shot" and list(found["detectors"]) == ["zero-shot", "mcm", "max-logit"]
    # The same classifier: zero-shot differs from the first in its threshold alone.
    changes = {(row["detector"], row["metric"], row["closed"]): row["difference"] for row in found["differences"]}
    assert changes["mcm", "accuracy", "known"] == changes["mcm", "auroc", "known"] == 0
    for name in ("mcm", "max-logit"):
        alone = command("evaluate", *options(sets, [detectors[name == "max-logit"]]), "--json").json
        assert found["detectors"][name]["detection"] == alone["detection"]
    assert "mcm against zero-shot" in check_page(page.read_text(encoding="utf-8")).text
    printed = command("evaluate", *options(sets, detectors)).out
    assert "AUROC, known images" in printed and "Differences to mcm" in printed


def test_zero_shot_beside_a_score_that_learns_from_images(
    command: Runner, sets: Path, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    """It learns from the ID images then, as `evaluate` of zero-shot alone lets it."""
    model = ["--classes", "red,green,blue", "--model", tiny_clip_folder, "--score", "mahalanobis"]
    assert command("calibrate", sets / "known", *model, "--out", tmp_path / "made").code == 0
    found = command("evaluate", *options(sets, [tmp_path / "made"]), "--zero-shot", "--json").json
    alone = command("evaluate", *options(sets, []), *model, "--json").json
    assert found["detectors"]["zero-shot"]["detection"] == alone["detection"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--zero-shot", "--score", "mcm"], "--score"),
        (["--zero-shot", "--classes", "a,b"], "--classes is part of"),
        (["--detector", "SAME"], "given twice"),
        (["--detector", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_wrong_use(command: Runner, sets: Path, detectors: list[Path], extra: list[str], message: str) -> None:
    arguments = [detectors[0] if part == "SAME" else part for part in extra]
    result = command("evaluate", *options(sets, detectors[:1]), *arguments)
    assert result.code == 2 and message in result.err and result.out == ""


def test_zero_shot_alone_is_what_evaluate_does_anyway(command: Runner, sets: Path) -> None:
    result = command("evaluate", "--id", sets / "known", "--zero-shot")
    assert result.code == 2 and "--zero-shot needs --detector" in result.err


def test_real_pictures(command: Runner, real_sets: Path) -> None:
    made = []
    for score in ("mcm", "max-logit"):
        made += ["--detector", real_sets / score]
        named = ["--classes", "dog,elephant,guitar,house", "--score", score, "--out", made[-1]]
        assert command("calibrate", real_sets / "seen", *named).code == 0
    sets = ["--id", real_sets / "new", "--open", real_sets / "textures"]
    found = command("evaluate", *sets, *made, "--zero-shot", "--json").json
    assert list(found["detectors"]) == ["zero-shot", "mcm", "max-logit"]
    for one in found["detectors"].values():
        assert one["accuracy"][0]["accuracy"] >= 0.9 and one["detection"][0]["auroc"] >= 0.9
    same = {row["difference"] for row in found["differences"] if row["metric"] == "accuracy"}
    assert same == {0}, "one classifier, so one accuracy"
