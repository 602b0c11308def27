"""`deltaenergy explain --paper-figure`: page and JSON, what is printed, and mistakes told before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runner import Runner
from tests.report.checks import check_page


def test_page_json_and_claims(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "figure.html"
    base = ["explain", "--paper-figure", "--known", photos / "dog", "--unknown", photos / "cat", "--out", page]
    words = [*base, "--classes", "dog,cat", "--model", tiny_clip_folder]
    result = command(*words)
    assert result.code == 0, result.err
    check_page(page.read_text(encoding="utf-8"))
    saved = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert saved["sets"]["known"]["images"] == saved["sets"]["unknown"]["images"] == 4
    for claim in saved["claims"]:
        said = f"{'holds' if claim['holds'] else 'does not hold'}: {claim['claim']}."
        assert said in " ".join(result.out.split())
    # The same again replaces its own files, but nobody else's.
    (photos / "dog" / "broken.jpg").write_bytes(b"")
    result = command(*words)
    assert result.code == 1 and "broken.jpg" in result.err
    page.with_suffix(".json").write_text('{"mine": 1}', encoding="utf-8")
    result = command(*words)
    assert result.code == 2 and "file of your own" in " ".join(result.err.split())
    assert page.with_suffix(".json").read_text(encoding="utf-8") == '{"mine": 1}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--paper-figure"], "--known is missing"),
        (["--paper-figure", "--known", "{photos}"], "--unknown is missing"),
        (["--paper-figure", "--known", "{photos}", "--unknown", "{photos}"], "--out is missing"),
        (["--paper-figure", "--known", "{photos}", "--unknown", "{photos}", "--out", "a.txt"], "must end in .html"),
        (["--paper-figure", "--known", "nowhere", "--unknown", "{photos}", "--out", "a.html"], "nowhere"),
        (["--paper-figure", "{photos}"], "IMAGES has no part"),
        (["--paper-figure", "--method", "grad-cm"], "Did you mean 'grad-cam'"),
        (["--known", "{photos}"], "for --paper-figure"),
        (["--out", "page.html"], "Give the images to explain"),
    ],
)
def test_mistakes_are_told_with_the_remedy(
    command: Runner, photos: Path, inside: Path, arguments: list[str], message: str
) -> None:
    result = command("explain", *(argument.format(photos=photos) for argument in arguments))
    assert result.code == 2 and message in " ".join(result.err.split())
    assert list(inside.iterdir()) == []
