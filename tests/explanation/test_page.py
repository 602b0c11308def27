"""Pages and PNGs of many images: complete, readable by everyone, and no file of the user's replaced."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation.page import png_names, write_explanations
from tests.report.checks import check_page


@pytest.fixture
def judge(tiny_clip: de.Model, photos: Path) -> de.Detector:
    return de.Detector(de.ZeroShotClassifier(tiny_clip, ["dog", "cat"]), "mcm").calibrate(photos, confidence=None)


def test_a_page_has_two_pictures_with_words_for_each_image(judge: de.Detector, photos: Path, tmp_path: Path) -> None:
    (photos / "broken.png").write_text("no picture")
    file = tmp_path / "out" / "page.html"
    written = write_explanations(judge, photos, file, method="rollout", target="score", command="deltaenergy explain …")
    assert (written.images, len(written.unreadable)) == (8, 1)
    page = check_page(file.read_text(encoding="utf-8"))
    assert len(page.all("article")) == 8
    words = [image["alt"] or "" for image in page.all("img")]
    assert sum(alt.startswith("Heatmap of") and "what drives the score, by rollout" in alt for alt in words) == 8
    assert sum(alt.endswith("as the model saw it") for alt in words) == 8
    verdicts = judge.predict(photos)
    assert page.text.count("none of these") >= sum(verdict.is_ood for verdict in verdicts)
    assert page.text.count("ΔEnergy by class") == 8 and "broken.png" in page.text
    assert "deltaenergy explain …" in page.text and "rollout" in page.text
    assert sorted(path.name for path in file.parent.iterdir()) == ["page.html"], "nothing else is left"


def test_one_png_per_image_under_its_own_name(judge: de.Detector, photos: Path, tmp_path: Path) -> None:
    write_explanations(judge, photos, tmp_path / "maps", method="value-path")
    # Both class folders have a 0.png.
    names = sorted(path.name for path in (tmp_path / "maps").iterdir())
    assert names == sorted([f"{i}.png" for i in range(4)] + [f"{i}-2.png" for i in range(4)])
    found = de.explain(judge, photos, method="value-path")
    with Image.open(tmp_path / "maps" / "0-2.png") as saved:
        one = next(one for one in found if one.id.endswith("dog/0.png"))
        np.testing.assert_array_equal(np.asarray(saved), np.asarray(one.overlay()))
        assert saved.info["Description"] == one.in_words
    found.save(tmp_path / "again")
    for path in (tmp_path / "maps").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_explanations_in_memory_make_the_same_page(judge: de.Detector, photos: Path, tmp_path: Path) -> None:
    write_explanations(judge, photos, tmp_path / "streamed.html", method="value-path", command="x")
    found = de.explain(judge, photos, method="value-path")
    de.write_report(found, tmp_path / "held.html", command="x")
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("streamed", "held")]
    without_time = [re.sub(r"\d{4}-\d\d-\d\d(T[\d:+]+)?", "", page) for page in pages]
    assert without_time[0] == without_time[1]


def test_files_of_the_user_are_never_touched(judge: de.Detector, photos: Path) -> None:
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    with pytest.raises(InputError, match="would be replaced"):
        write_explanations(judge, photos, photos / "cat")
    with pytest.raises(InputError, match="would be replaced"):
        de.explain(judge, photos, method="value-path").save(photos / "cat")
    assert {path: path.read_bytes() for path in photos.rglob("*.png")} == before


def test_hostile_names_stay_inside(judge: de.Detector, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    name = "<script>alert(1)</script>\u202e.png".replace("/", "∕")
    Image.new("RGB", (40, 40), "green").save(folder / name)
    for out in ("page.html", "maps"):
        write_explanations(judge, folder, tmp_path / out, method="value-path")
    assert "<script" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    check_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    first, second = png_names(["image 0", "image 0"], tmp_path / "new")
    assert first != second


def test_a_rejected_image_first_says_why_then_what_supports_its_class(
    judge: de.Detector, photos: Path, tmp_path: Path
) -> None:
    """Verdict, then how many known images score as low, then the heatmap; a kept image has no reasons."""
    judge.calibrate(photos / "dog", keep=0.5)
    verdicts = {verdict.path: verdict for verdict in judge.predict(photos)}
    write_explanations(judge, photos, tmp_path / "page.html", method="value-path")
    _, *cards = (tmp_path / "page.html").read_text(encoding="utf-8").split("<article")
    assert len(cards) == 8 and any(verdict.is_ood for verdict in verdicts.values())
    for card, verdict in zip(cards, verdicts.values()):
        assert card.index("</span>") < card.index("<img"), "the verdict comes first"
        if verdict.is_ood:
            as_low = int((judge.calibration_scores <= verdict.score).sum())
            why = card.index(f"It was rejected: {as_low} of 4 known images score as low")
            assert card.index(verdict.verdict) < why < card.index("<img") < card.index("supports")
        else:
            assert "It was" not in card
