"""What the package prints, writes and computes is what it was when that was last recorded (tests/golden/record.py)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deltaenergy.scores.interneg import InterNeg
from deltaenergy.scores.negatives.pools import wordnet_pool
from tests.golden.compare import CLOSE, COSINES, DATA, differences, load, save
from tests.golden.scene import Scene
from tests.golden.sections import LONG, SECTIONS

OF_AN_ENCODER = {"cosines", "scores_lite", "methods_lite"}
NAMES = [pytest.param(name, marks=[pytest.mark.campaign] if name in LONG else []) for name in SECTIONS]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_clip_folder: Path) -> Any:
    """A scene in the current folder, with help texts as wide everywhere."""
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERMINAL_WIDTH", "100")
        yield Scene(folder, tiny_clip_folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_moved(name: str, built: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # Recorded with all words.
    monkeypatch.setattr(InterNeg, "pool", property(lambda score: wordnet_pool(score.exclude.split())))
    found = SECTIONS[name](built)
    if os.environ.get("DELTAENERGY_RECORD_GOLDENS"):
        save(name, found)
    expected, exact = load(name)
    # What ran before in the same process can move the last bit of an image encoder's product.
    close = COSINES if exact or name == "cosines" else CLOSE
    assert not differences(expected, found, exact and name not in OF_AN_ENCODER, close=close)[:20]


def test_only_sections_are_recorded() -> None:
    assert {file.stem for file in DATA.glob("*.json")} == set(SECTIONS)


def test_differences_worked_by_hand() -> None:
    old = {"a": [1.0, "x", True], "b": {"BITS": "1"}, "n": float("nan")}
    assert not differences(old, {"a": [1.0, "x", True], "b": {"BITS": "1"}, "n": float("nan")}, exact=True)
    near = {"a": [1.0 + CLOSE / 2, "x", True], "b": {"BITS": "2"}, "n": float("nan")}
    assert not differences(old, near, exact=False)
    assert len(differences(old, near, exact=True)) == 2
    assert differences(old, {**old, "a": [1.0 + 2 * CLOSE, "x", True]}, exact=False)
    assert differences(old, {**old, "a": [1.0, "y", True]}, exact=False)
    assert differences(old, {**old, "a": [1.0, "x", 1]}, exact=False)
    assert differences(old, {**old, "a": [1.0, "x"]}, exact=False)
    assert differences(old, {"a": old["a"], "b": old["b"]}, exact=False)
    page = "<p>score 0.123</p>" * 200
    assert not differences(page, page.replace("0.123", "0.124"), exact=False)
    assert differences(page, page.replace("0.123", "0.124"), exact=True)
    assert differences(page, page.replace("score", "Score"), exact=False)
