"""`deltaenergy explain`: pages and PNGs, exit codes, and mistakes told before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import Runner
from tests.cli.world import World
from tests.report.checks import check_page


def test_a_detector_s_images_on_a_page(command: Runner, world: World, tmp_path: Path) -> None:
    page, maps = tmp_path / "page.html", tmp_path / "maps"
    for out in (page, maps):
        options = ["--detector", world["detector"], "--out", out, "--method", "rollout"]
        result = command("explain", world["images"], *options)
        assert result.code == 0, result.err
        assert "6 images explained." in result.err and str(out) in result.err.replace("\n", "")
    shown = check_page(page.read_text(encoding="utf-8"))
    assert len(shown.all("article")) == 6 and len(list(maps.iterdir())) == 6


def test_class_names_without_a_detector(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    base = ["explain", photos / "cat", "--classes", "dog,cat", "--model", tiny_clip_folder, "--method", "value-path"]
    assert command(*base, "--out", tmp_path / "a.html").code == 0
    named = check_page((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert "none of these" not in named.text, "without a threshold there is no verdict"
    assert command(*base, "--target", "score", "--out", tmp_path / "b.html").code == 0
    assert "what drives the score" in (tmp_path / "b.html").read_text(encoding="utf-8")
    result = command(*base, "--target", "dgo", "--out", tmp_path / "c.html")
    assert result.code == 2 and "Did you mean 'dog'" in result.err


def test_unreadable_images_are_listed_and_the_others_done(command: Runner, photos: Path, tmp_path: Path) -> None:
    (photos / "cat" / "broken.jpg").write_text("x")
    page = tmp_path / "page.html"
    result = command("explain", photos / "cat", "--classes", "dog,cat", "--out", page)
    assert result.code == 1 and "broken.jpg" in result.err
    assert len(check_page(page.read_text(encoding="utf-8")).all("article")) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out"),
        (["--out", "p.html", "--method", "grad_cam"], "grad-cam"),
        (["--out", "p.html"], "--classes"),
        (["--out", "p.html", "--detector", "nowhere", "--classes", "dog"], "part of the detector"),
        (["--out", "p.html", "--detector", "nowhere"], "nowhere is not a folder"),
        (["--out", "p.html", "--classes", "dog", "--on", "batch=0"], "--on"),
    ],
)
def test_mistakes_are_told_with_the_remedy(
    command: Runner, photos: Path, inside: Path, arguments: list[str], message: str
) -> None:
    result = command("explain", photos, *arguments)
    assert result.code == 2 and message in " ".join(result.err.split())
    assert list(inside.iterdir()) == []


def test_a_feature_store_has_no_pixels(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    assert command("features", photos, "--model", tiny_clip_folder, "--out", tmp_path / "store").code == 0
    base = ["--classes", "dog,cat", "--model", tiny_clip_folder, "--out", tmp_path / "page.html"]
    result = command("explain", tmp_path / "store", *base)
    assert result.code == 2 and "not a feature store" in result.err
