"""Every example of `--help` runs as it stands, in a folder that holds what the examples name."""

from __future__ import annotations

import io
import shlex
import shutil
from pathlib import Path

import pytest

from deltaenergy.cli.main import app  # which registers the commands
from deltaenergy.cli.shell.app import EXAMPLES
from tests.cli.runner import Runner
from tests.cli.world import World, write_images

# What needs a cluster, datasets, an extra, some seconds, or does not end; each has tests of its own.
NOT_HERE = ("--ray", "DATA", "openvino", "onnx", "serve", "demo", "bench", "--score all")
MODEL = ("score", "sort", "adapt", "calibrate", "choose", "evaluate", "explain", "tune", "features")
LINES = [line for lines in EXAMPLES.values() for line in lines if not any(part in line for part in NOT_HERE)]
assert app


@pytest.fixture(scope="module")
def filled(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good/ and few/ (of dogs and cats), photos/, other/, detectors, a table of verdicts, a store, results."""
    root = tmp_path_factory.mktemp("examples")
    for name in ("good", "more", "few", "sketches"):
        shutil.copytree(world["images"], root / name)
    for name in ("other", "photos", "today", "inbox"):
        write_images(root / name, ["0.jpg", "1.jpg", "2.jpg"])
    shutil.copytree(world["results"], root / "results")
    shutil.copytree(world["store"], root / "store")
    shutil.copy(root / "photos" / "0.jpg", root / "dog.jpg")
    for name in ("detector", "tuned", "second"):
        shutil.copytree(world["detector"], root / name)
    return root


@pytest.mark.parametrize("line", LINES)
def test_an_example_runs(
    line: str, command: Runner, world: World, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "here"
    shutil.copytree(filled, place)
    monkeypatch.chdir(place)
    words = shlex.split(line.split("|")[-1])[1:]
    if words[0] in MODEL and not {"--detector", "--model"} & set(words):
        words += ["--model", str(world["model"])]  # for speed
    monkeypatch.setattr("sys.stdin", io.StringIO("photos/0.jpg\nphotos/1.jpg\n"))
    if words[0] in ("calibrate", "tune", "choose", "features") and "--out" in words:
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    if words[0] == "choose":
        words += ["--score", "mcm"]
    if words[0] == "adapt":
        words += ["--method", f"tanl(count=2,words='{world['words']}')"]
    if words[0] == "undo":
        command("sort", "inbox", "--detector", "detector", "--into", "sorted")
    if "verdicts.parquet" in words:
        command("score", "today", "--detector", "detector", "--out", "verdicts.parquet")
    result = command(*words)
    assert result.code == 0, result.err
