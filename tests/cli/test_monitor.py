"""`deltaenergy monitor`: pictures and tables in, a state that goes on, words, JSON and a page out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from tests.cli.runner import Runner


def draw(folder: Path, count: int, seed: int, *, noise: bool) -> Path:
    """Kinds of red, or noise."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        colour = rng.integers((180, 0, 0), (255, 60, 60))
        pixels = rng.integers(0, 255, (32, 32, 3)) if noise else np.clip(colour + rng.normal(0, 8, (32, 32, 3)), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def place(tiny_clip: de.TowerModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector of red pictures, by the mean of some of these, and pictures: known ones, and noise."""
    root = tmp_path_factory.mktemp("monitor")
    draw(root / "good", 200, 0, noise=False)
    draw(root / "new", 30, 11, noise=False)
    draw(root / "noise", 12, 2, noise=True)
    mean = tiny_clip.encode_images(draw(root / "red", 30, 3, noise=False)).mean(axis=0, keepdims=True)
    classifier = de.PrecomputedClassifier(mean / np.linalg.norm(mean), ["red"], tiny_clip)
    detector = de.Detector(classifier, "max-logit").calibrate(root / "good", 0.9, 0.8)
    detector.save(root / "detector")
    return root


def test_known_pictures_then_noise(place: Path, tmp_path: Path, command: Runner) -> None:
    state = tmp_path / "state.json"
    base = ["--detector", place / "detector", "--state", state]
    first = command("monitor", place / "new", *base, "--json")
    assert first.code == 0 and first.json["images"] == 30 and first.json["changed"] is False
    assert "New images: 30" in first.err
    assert command("monitor", *base, "--exit-code").code == 0, "nothing has changed yet"
    again = command("monitor", place / "noise", *base, "--report", tmp_path / "page.html")
    assert again.code == 0 and "The images have changed" in again.out
    assert "Last rejected: " in again.out and "011.png" in again.out
    assert "Which images" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert command("monitor", *base, "--exit-code").code == 3 and "of the 0 before" not in again.out
    told = command("monitor", *base, "--json").json
    assert told["changed"] is True and told["images"] == 42, "without images the state is told of"
    assert told["since"] is not None and 20 <= told["since"] <= 34
    detector = de.Detector.load(place / "detector")
    expected = de.Monitor(detector)
    expected.watch(place / "new")
    expected.watch(place / "noise")
    assert told["evidence"] == pytest.approx(expected.status.evidence)
    assert told["alarms"] == expected.status.alarms


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_of_score_is_as_good_as_its_pictures(place: Path, tmp_path: Path, command: Runner, ending: str) -> None:
    table = tmp_path / f"verdicts.{ending}"
    assert command("score", place / "new", "--detector", place / "detector", "--out", table).code == 0
    base = ["monitor", "--detector", place / "detector", "--json", "--state"]
    from_table = command(*base, tmp_path / "a.json", table)
    assert from_table.code == 0 and "in the table" in from_table.err
    from_pictures = command(*base, tmp_path / "b.json", place / "new")
    first, second = from_table.json, from_pictures.json
    assert first["evidence"] == pytest.approx(second["evidence"], abs=1e-9)
    assert first["flagged"] == second["flagged"] and first["classes"] == second["classes"]


def test_unreadable_pictures_are_listed_and_left_out(place: Path, tmp_path: Path, command: Runner) -> None:
    (tmp_path / "broken.png").write_bytes(b"?")
    arguments = ["--detector", place / "detector", "--state", tmp_path / "s" / "state.json"]
    result = command("monitor", tmp_path / "broken.png", place / "new" / "000.png", *arguments)
    assert result.code == 1 and "broken.png" in result.err
    assert "0 of 1 image" in result.out or "1 of 1 image" in result.out


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (["--alpha", "0"], "alpha must be above 0"),
        (["nothing-here/"], "nothing-here"),
        ([], "does not exist yet"),
        (["--report", "page.txt"], "must end in .html"),
    ],
)
def test_mistakes(place: Path, inside: Path, command: Runner, extra: list[str], told: str) -> None:
    images = [] if told == "does not exist yet" or extra[0] == "nothing-here/" else [place / "new" / "000.png"]
    result = command("monitor", "--detector", place / "detector", "--state", "state.json", *images, *extra)
    assert result.code == 2 and told in " ".join(result.err.split())
    assert not (inside / "state.json").exists()


def test_a_state_of_another_detector(place: Path, tmp_path: Path, command: Runner) -> None:
    state = tmp_path / "state.json"
    image = place / "new" / "000.png"
    assert command("monitor", image, "--detector", place / "detector", "--state", state).code == 0
    de.Detector.load(place / "detector").calibrate(place / "new", 0.9, 0.8).save(tmp_path / "other")
    before = state.read_bytes()
    result = command("monitor", image, "--detector", tmp_path / "other", "--state", state)
    assert result.code == 2 and "another detector" in result.err and state.read_bytes() == before
