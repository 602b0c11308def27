"""The section on an evaluation's worst mistakes: which it shows, and that it shows what is true of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.evaluation import Evaluation
from deltaenergy.explanation.page import mistakes_section
from deltaenergy.report import write_report
from deltaenergy.report.images import judged_images
from tests.cli.runner import Runner
from tests.colours import ColourModel, paint_sets
from tests.report.checks import Page, check_page


def evaluated(root: Path, images: Any = None, score: str = "max-logit") -> Evaluation:
    # Of red and green alone: blue pictures are named wrongly or rejected, and grey ones may be kept.
    classifier = de.ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    known = images if images is not None else [("known", root / "known")]
    return de.evaluate(classifier, [score], known, [], [("grey", root / "grey")], keep=1.0)


def test_the_worst_of_each_kind_come_first(tmp_path: Path) -> None:
    evaluation = evaluated(paint_sets(tmp_path))
    pictures = [p for one in evaluation.sets for p in judged_images(evaluation, one)]
    kinds = {kind: [p for p in pictures if getattr(p, kind)] for kind in ("wrongly_kept", "wrong_class")}
    assert kinds["wrong_class"], "the blue picture in the red folder"
    section = mistakes_section(evaluation, 1)
    write_report(evaluation, tmp_path / "report.html", more=[section])
    page = check_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert len(page.all("article")) == sum(bool(found) for found in kinds.values())
    text = Page(str(section.body)).text
    assert "blue after all.png" in text and "is red" in text and "blue" in text
    assert "p nan" not in text
    maps = [image["alt"] or "" for image in page.all("img") if (image.get("alt") or "").startswith("Heatmap of")]
    assert any("blue after all.png: what supports blue" in words for words in maps)


def test_without_mistakes_it_says_so(tmp_path: Path) -> None:
    root = paint_sets(tmp_path)
    (root / "known" / "red" / "blue after all.png").unlink()
    classifier = de.ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    evaluation = de.evaluate(classifier, ["max-logit"], [("known", root / "known")], [], [], keep=1.0)
    assert "There are no mistakes" in str(mistakes_section(evaluation, 3).body)


def test_a_score_without_a_gradient_is_shown_by_covering_parts(tmp_path: Path, tiny_clip: de.Model) -> None:
    root = paint_sets(tmp_path)
    classifier = de.ZeroShotClassifier(tiny_clip, ["red", "green", "blue"])
    evaluation = de.evaluate(classifier, ["odin"], [("known", root / "known")], [], [("grey", root / "grey")])
    section = mistakes_section(evaluation, 1)
    assert "what drives the score, by occlusion" in str(section.body)


def test_images_of_a_store_are_found_by_their_files(tmp_path: Path) -> None:
    root, model = paint_sets(tmp_path), ColourModel()
    store = de.build_store(model, root / "known", tmp_path / "store")
    evaluation = evaluated(root, [("known", store)])
    assert "blue after all.png" in str(mistakes_section(evaluation, 1).body)
    (root / "known" / "red" / "blue after all.png").unlink()
    with pytest.raises(InputError, match="no longer exists"):
        mistakes_section(evaluation, 1)


def test_on_the_command_line(command: Runner, tmp_path: Path, tiny_clip_folder: Path) -> None:
    root, report = paint_sets(tmp_path), tmp_path / "report.html"
    base = ["evaluate", "--id", root / "known", "--open", root / "grey", "--model", tiny_clip_folder, "-s", "mcm"]
    assert command(*base, "--explain", 2, "--report", report).code == 0
    page = check_page(report.read_text(encoding="utf-8"))
    assert 0 < len(page.all("article")) <= 6 and "Worst mistakes, explained" in page.text
    result = command(*base, "--explain", 2)
    assert result.code == 2 and "--report" in result.err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys)
