"""Commands and calls say so when the model does not know the classes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.detector.class_check import UnknownClassesWarning
from deltaenergy.evaluation import compare
from deltaenergy.evaluation.choose import OnlyStandIns
from deltaenergy.evaluation.run import NoOpenSet
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
        de.choose(classifier, pictures, ["mcm"])
    with pytest.warns(UnknownClassesWarning, match="The detector 'other' names .* " + message):
        compare(
            {"one": de.Detector(classifier, "mcm"), "other": de.Detector(classifier, "energy")}, pictures, resamples=10
        )
    with pytest.warns(UnknownClassesWarning, match=message):
        de.evaluate(classifier, ["mcm"], [("id", pictures)], resamples=10)
    out = ["--out", tmp_path / "b"]
    names = ["--model", tiny_clip_folder, "--classes", "cat,dog,car,tree"]
    for arguments in (
        ["calibrate", pictures, "--out", tmp_path / "a", *names],
        ["choose", "--id", pictures, "--score", "mcm", *names],
        ["evaluate", "--id", pictures, "--score", "mcm", *names],
        ["evaluate", "--id", pictures, "--detector", tmp_path / "a", "--zero-shot"],
        ["tune", "--train", pictures, "--val", pictures, "--shots", 4, "--method", "centroids", *names[:2], *out],
    ):
        done = command(*arguments)
        assert done.code == 0, done.err
        assert message in " ".join(done.err.split()), arguments


def test_what_could_not_be_judged_is_said_by_calls_and_commands_alike(
    command: Runner, tiny_clip: Model, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    pictures = noise_folder(tmp_path / "noise", CLASSES, 2)
    classifier = de.ZeroShotClassifier(tiny_clip, CLASSES)
    names = ["--model", tiny_clip_folder, "--score", "mcm"]
    with pytest.warns(NoOpenSet) as said:
        de.evaluate(classifier, "mcm", pictures, resamples=10)
    done = command("evaluate", "--id", pictures, *names)
    assert str(said[0].message).replace("`open_sets`", "--open") in " ".join(done.err.split())
    with pytest.warns(OnlyStandIns) as said:
        choice = de.choose(classifier, pictures, ["mcm"])
    assert str(said[0].message) == choice.caveat
    done = command("choose", "--id", pictures, *names)
    assert " ".join(done.err.split()).count(choice.caveat) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoOpenSet)
        de.evaluate(classifier, "mcm", pictures, open_sets=noise_folder(tmp_path / "other", ["x"], 3), resamples=10)


def test_calibrate_prints_the_accuracy_and_the_worst_classes(
    command: Runner, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    pictures = noise_folder(tmp_path / "noise", CLASSES, 8)
    names = ["--model", tiny_clip_folder, "--classes", ",".join(CLASSES)]
    shown = command("calibrate", pictures, "--out", tmp_path / "detector", *names)
    assert shown.code == 0 and "ccuracy" in shown.err and "deltaenergy tune" in shown.err
    assert any(name in shown.err.partition("ccuracy")[2] for name in CLASSES), "the worst classes are named"
    told = command("calibrate", pictures, "--out", tmp_path / "other", *names, "--json").json
    assert 0 <= told["accuracy"] <= 1
