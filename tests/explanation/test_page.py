"""Pages and PNGs of many images: complete, readable by everyone, and gone on with after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation import Explainer, explain
from deltaenergy.explanation.page import png_names, write_explanations
from tests.report.checks import check_page


@pytest.fixture
def judge(tiny_clip: de.Model, photos: Path) -> de.Detector:
    return de.Detector(de.ZeroShotClassifier(tiny_clip, ["dog", "cat"]), "mcm").calibrate(photos, confidence=None)


def count_explained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each batch explains from now on."""
    seen: list[int] = []
    plain = Explainer.explain_batch

    def counted(self: Explainer, batch: Any) -> Any:
        seen.append(len(batch.items))
        return plain(self, batch)

    monkeypatch.setattr(explain.Explainer, "explain_batch", counted)
    return seen


def test_a_page_has_two_pictures_with_words_for_each_image(judge: de.Detector, photos: Path, tmp_path: Path) -> None:
    (photos / "broken.png").write_text("no picture")
    file = tmp_path / "out" / "page.html"
    written = write_explanations(judge, photos, file, method="rollout", target="score", command="deltaenergy explain …")
    assert (written.images, written.from_before, len(written.unreadable)) == (8, 0, 1)
    page = check_page(file.read_text(encoding="utf-8"))
    assert len(page.all("article")) == 8
    words = [image["alt"] or "" for image in page.all("img")]
    assert sum(alt.startswith("Map over") and "what moves the score, by rollout" in alt for alt in words) == 8
    assert sum(alt.endswith("as the model saw it") for alt in words) == 8
    verdicts = judge.predict(photos)
    assert page.text.count("none of these") >= sum(verdict.is_ood for verdict in verdicts)
    assert page.text.count("ΔEnergy taken apart") == 8 and "broken.png" in page.text
    assert "deltaenergy explain …" in page.text and "rollout" in page.text
    assert sorted(path.name for path in file.parent.iterdir()) == ["page.html"], "nothing else is left"


def test_one_png_per_image_under_its_own_name(judge: de.Detector, photos: Path, tmp_path: Path) -> None:
    write_explanations(judge, photos, png=tmp_path / "maps", method="value-path")
    # Both class folders have a 0.png.
    names = sorted(path.name for path in (tmp_path / "maps").iterdir())
    assert names == sorted([f"{i}.png" for i in range(4)] + [f"{i}-2.png" for i in range(4)])
    found = de.explain(judge, photos, method="value-path")
    with Image.open(tmp_path / "maps" / "0-2.png") as saved:
        one = next(one for one in found if one.id.endswith("dog/0.png"))
        np.testing.assert_array_equal(np.asarray(saved), np.asarray(one.overlay()))
        assert saved.info["Description"] == one.in_words


def test_a_killed_run_goes_on_where_it_stopped(
    judge: de.Detector, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, file = tmp_path / "whole.html", tmp_path / "page.html"
    options: dict[str, Any] = {"method": "rollout", "batch_size": 2}
    write_explanations(judge, photos, whole, png=tmp_path / "maps", **options)
    plain, calls = Explainer.explain_batch, 0

    def dies(self: Explainer, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return plain(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Explainer, "explain_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            write_explanations(judge, photos, file, png=tmp_path / "others", **options)
    assert not file.exists() and len(list((tmp_path / "page.html.parts").glob("0*.json"))) == 4
    seen = count_explained(monkeypatch)
    steps: list[tuple[int, int | None]] = []
    written = write_explanations(
        judge, photos, file, png=tmp_path / "others", progress=lambda *step: steps.append(step), **options
    )
    assert sum(seen) == 4 and (written.images, written.from_before) == (8, 4) and steps[-1] == (8, 8)
    assert not (tmp_path / "page.html.parts").exists()

    def cards(path: Path) -> str:
        text = path.read_text(encoding="utf-8")
        return text[text.index("<article") : text.rindex("</article>")]

    assert cards(file) == cards(whole)
    for path in (tmp_path / "maps").iterdir():
        assert path.read_bytes() == (tmp_path / "others" / path.name).read_bytes()


@pytest.mark.parametrize("change", ["target", "image", "damage", "detector"])
def test_what_changed_is_done_anew(
    judge: de.Detector, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    file, parts = tmp_path / "page.html", tmp_path / "page.html.parts"
    with monkeypatch.context() as patch:
        patch.setattr("deltaenergy.explanation.page._write_page", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_explanations(judge, photos, file, method="value-path")
    assert len(list(parts.glob("0*.json"))) == 8
    seen, target, expected = count_explained(monkeypatch), "class", 8
    if change == "target":
        target = "score"
    elif change == "image":
        Image.new("RGB", (30, 30), "red").save(photos / "cat" / "1.png")
        expected = 1
    elif change == "damage":
        (parts / "000002.json").write_text("{")
        (parts / "000003.json").write_text(json.dumps({"format": "another"}))
        expected = 2
    else:
        judge.calibrate(photos, keep=0.5)
    write_explanations(judge, photos, file, method="value-path", target=target)
    assert sum(seen) == expected
    check_page(file.read_text(encoding="utf-8"))


def test_files_of_the_user_are_never_touched(judge: de.Detector, photos: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    with pytest.raises(InputError, match="is a file of your own"):
        write_explanations(judge, photos, png=photos / "cat")
    parts = tmp_path / "page.html.parts"
    parts.mkdir()
    (parts / "letter.txt").write_text("mine")
    (parts / "000000.json").write_text("{}")
    with pytest.raises(InputError, match="holds something"):
        write_explanations(judge, photos, tmp_path / "page.html")
    (parts / "letter.txt").unlink()
    with pytest.raises(InputError, match="did not write"):
        write_explanations(judge, photos, tmp_path / "page.html")
    assert (parts / "000000.json").read_text() == "{}"
    (parts / "000000.json").unlink()
    parts.rmdir()
    parts.write_text("a file")
    with pytest.raises(InputError, match="is a file"):
        write_explanations(judge, photos, tmp_path / "page.html")
    assert {path: path.read_bytes() for path in photos.rglob("*.png")} == before


def test_hostile_names_stay_inside(judge: de.Detector, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    name = "<script>alert(1)</script>\u202e.png".replace("/", "∕")
    Image.new("RGB", (40, 40), "green").save(folder / name)
    write_explanations(judge, folder, tmp_path / "page.html", png=tmp_path / "maps", method="value-path")
    assert "<script" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    check_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    items = [de.load_images([Image.new("RGB", (4, 4))])[0]] * 2
    assert png_names(items, None)[0] != png_names(items, None)[1]


def test_without_a_place_there_is_nothing_to_do(judge: de.Detector, photos: Path) -> None:
    with pytest.raises(InputError, match="give a page to write"):
        write_explanations(judge, photos)
