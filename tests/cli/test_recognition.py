"""Commands and calls say so when the model does not know the classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.recognition import UnknownClassesWarning
from tests.cli.runner import Runner


def noise_folder(folder: Path, classes: list[str], per_class: int) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


CLASSES = ["cat", "dog", "car", "tree"]


def test_a_random_model_is_found_out_everywhere(
    command: Runner, tiny_clip: Model, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    """calibrate, choose, evaluate and tune say so, in Python and on the command line."""
    pictures = noise_folder(tmp_path / "noise", CLASSES, 8)
    classifier = de.ZeroShotClassifier(tiny_clip, CLASSES)
    message = "of these 32 images correctly"
    with pytest.warns(UnknownClassesWarning, match=message):
        de.Detector(classifier, "mcm").calibrate(pictures)
    with pytest.warns(UnknownClassesWarning, match=message):
        de.choosing.choose(classifier, pictures, ["mcm"])
    with pytest.warns(UnknownClassesWarning, match=message):
        de.evaluate(classifier, ["mcm"], [("id", pictures)], resamples=10)
    out = ["--out", tmp_path / "b"]
    names = ["--model", tiny_clip_folder, "--classes", "cat,dog,car,tree"]
    for arguments in (
        ["calibrate", pictures, "--out", tmp_path / "a", *names],
        ["choose", "--id", pictures, "--score", "mcm", *names],
        ["evaluate", "--id", pictures, "--score", "mcm", *names],
        ["tune", "--train", pictures, "--val", pictures, "--shots", 4, "--method", "centroids", *names[:2], *out],
    ):
        done = command(*arguments)
        assert done.code == 0, done.err
        assert message in " ".join(done.err.split()), arguments
