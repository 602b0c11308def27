"""`deltaenergy tune` end to end: the folder it writes is a detector like any other."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from deltaenergy.source import labelled_folders
from deltaenergy.tuning.fewshot import sample_few_shots
from tests.cli.runner import Runner
from tests.labelled_pictures import write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "train")


def common(tiny_clip_folder: Path, tmp_path: Path) -> list[object]:
    return ["--model", tiny_clip_folder, "--out", tmp_path / "out", "--recipe", "epochs=2,views=2"]


def test_the_result_is_a_detector(command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    options = common(tiny_clip_folder, tmp_path)
    done = command("tune", "--method", "ebm", "--train", pictures, "--shots", 4, "--seed", 1, *options)
    assert done.code == 0, done.err
    assert "epoch   2  loss" in done.err and "e^L" in done.err and "accuracy" in done.err
    assert "unused training images" in done.err
    extra, *names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names[0].startswith("detector-") and names[1:] == ["detector.json"] and extra == "deltaenergy-training.json"
    record = json.loads((tmp_path / "out" / "deltaenergy-training.json").read_text())
    assert record["method"] == "coop+ebm" and record["shots"] == 4 and len(record["sample"]["images"]) == 12
    scored = command("score", pictures, "--detector", tmp_path / "out", "--json")
    assert scored.code == 0 and "red car" in scored.out
    assert command("calibrate", pictures, "--detector", tmp_path / "out", "--out", tmp_path / "again").code == 0
    # The same again would overwrite a finished detector.
    again = command("tune", "--train", pictures, "--shots", 4, *options)
    assert again.code == 2 and "already contains a detector" in again.err
    assert command("tune", "--train", pictures, "--shots", 4, "--overwrite", *options).code == 0
    record = json.loads((tmp_path / "out" / "deltaenergy-training.json").read_text())
    assert record["method"] == "lp++"


def test_validation_search_and_json(command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    val = write_pictures(tmp_path / "val", seed=5)
    done = command(
        "tune", "--method", "clip-adapter", "--train", pictures, "--val", val, "--shots", 4, "--search", "--json",
        "--score", "mcm", *common(tiny_clip_folder, tmp_path),
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json
    assert len(found["searched"]) == 4
    best = max(found["searched"], key=lambda one: (one["accuracy"], -one["loss"]))
    assert found["method"] == best.pop("method") and found["validation"] == best
    assert found["score"] == "mcm" and found["calibrated_on"] == "validation images"


def test_all_images_trained_on_is_said_plainly(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    done = command("tune", "--train", pictures, "--shots", 6, *common(tiny_clip_folder, tmp_path))
    assert done.code == 0 and "set on those" in " ".join(done.err.split())


def test_domains(command: Runner, tiny_clip_folder: Path, tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        write_pictures(tmp_path / "both" / domain)
    done = command("tune", "--train", tmp_path / "both", "--domains", "--shots", 2, *common(tiny_clip_folder, tmp_path))
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out" / "deltaenergy-training.json").read_text())
    assert {image["domain"] for image in record["sample"]["images"]} == {"art", "photo"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "emb"], "Did you mean 'ebm'"),
        (["--recipe", "views=few"], "--recipe views"),
        (["--recipe", "epoch=2"], "Did you mean 'epochs'"),
        (["--search"], "--search needs validation images: pass --val"),
        (["--score", "mcm,msp"], "one score"),
        (["--classes", "cat,dog"], "not among the 2 classes"),
        (["--recipe", "lr=-1"], "lr must be"),
        (["--keep", "1.5"], "--keep must be above 0"),
    ],
)
def test_wrong_use(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = command("tune", "--train", pictures, "--shots", 2, *common(tiny_clip_folder, tmp_path), *arguments)
    assert done.code == 2 and message in " ".join(done.err.split())
    assert not (tmp_path / "out" / "detector.json").exists()


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("clipn", "no_tower"),
        ("negprompt", "tuned by negprompt"),
        ("gl-mcm", "no patch features"),
        ("odin", "needs pixels"),
        ("interneg", "needs labels: none of the known images has a class"),
    ],
)
def test_a_score_that_cannot_run_is_refused_before_any_work(
    command: Runner,
    tiny_clip_folder: Path,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: str,
    message: str,
) -> None:
    """Not even the model is loaded. The threshold is set on a feature store, or on images without classes."""
    given = tmp_path / "given"
    if score == "interneg":
        shutil.copytree(pictures / "cat", given)
    else:
        assert command("features", pictures, "--out", given, "--model", tiny_clip_folder).code == 0

    def no_model(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("deltaenergy.models.on.On.load_model", no_model)
    done = command(
        "tune", "--train", pictures, "--id", given, "--score", score, "--shots", 2,
        *common(tiny_clip_folder, tmp_path),
    )  # fmt: skip
    assert done.code == 2 and message in " ".join(done.err.split()), done.err
    assert not (tmp_path / "out").exists()


def test_the_promise_is_that_of_calibrate(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    """Six images that were not drawn: enough for half of new images, not for 95%."""
    options = ["--train", pictures, "--method", "centroids", "--shots", 4, "--score", "mcm"]
    options += [*common(tiny_clip_folder, tmp_path), "--overwrite"]
    told = " ".join(command("tune", *options).err.split())
    assert told.count("lowest score of the 6 images") == 1 and "needs 19 images" in told
    found = command("tune", *options, "--keep", "0.5", "--json").json["guarantee"]
    assert (found["keep"], found["confidence"], found["images"]) == (0.5, None, 6)


def test_a_missing_folder_is_named(command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    done = command("tune", "--train", tmp_path / "trian", *common(tiny_clip_folder, tmp_path))
    assert done.code == 2 and "Did you mean" in done.err


def test_methods_lists_tuning(command: Runner) -> None:
    rows = {row["name"]: row for row in command("methods", "--json").json}
    assert rows["coop"]["kind"] == "tuning method" and rows["ebm"]["kind"] == "tuning term"
    assert rows["ebm"]["defaults"] == {"weight": 1.0, "p": 0.6, "loss_tau": 1.0}
    assert rows["locoop"]["needs"] == ["labelled images", "patches"]
    assert "λ0" in command("methods", "ebm").out


def test_a_full_disk_at_the_end_loses_nothing(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltaenergy.detector.saved

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    options = ["tune", "--method", "ebm", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(deltaenergy.detector.saved, "write_bound", full)
        failed = command(*options)
    assert failed.code == 2 and "No space left" in failed.err and "finished training is in" in failed.err
    assert not (tmp_path / "out" / "detector.json").exists()
    again = command(*options)
    assert again.code == 0 and "epoch" not in again.err
    assert (tmp_path / "out" / "detector.json").exists()


def test_a_folder_called_checkpoints_is_left_alone(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    """A user's own files in --out survive a run, a second one with --overwrite, and one that is refused."""
    own = {name: f"mine {name}" for name in ("checkpoints/a.txt", "training.json", "views.safetensors", "epoch-1.txt")}
    for name, text in own.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(text)
    options = ["tune", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path)]
    assert command(*options).code == 0
    detector = (tmp_path / "out" / "detector.json").read_bytes()
    for wrong in (["--method", "emb"], ["--keep", "nan"], ["--id", tmp_path / "nowhere"], ["--recipe", "lr=0"]):
        assert command(*options, "--overwrite", *wrong).code == 2
        assert (tmp_path / "out" / "detector.json").read_bytes() == detector
    assert command(*options, "--overwrite", "--method", "tip-adapter").code == 0
    for name, text in own.items():
        assert (tmp_path / "out" / name).read_text() == text
    left = {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("detector")}
    assert left == {"checkpoints", "training.json", "views.safetensors", "epoch-1.txt", "deltaenergy-training.json"}


def test_a_file_of_the_user_s_with_our_name_is_not_replaced(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "deltaenergy-training.json").write_text("mine")
    done = command("tune", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path))
    assert done.code == 2 and "was not written by deltaenergy" in done.err
    assert (tmp_path / "out" / "deltaenergy-training.json").read_text() == "mine"


def test_images_that_were_trained_on_are_left_out_of_the_threshold(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    options = [
        "tune",
        "--train",
        pictures,
        "--shots",
        4,
        "--method",
        "tip-adapter",
        *common(tiny_clip_folder, tmp_path),
    ]
    done = command(*options, "--id", pictures)
    assert done.code == 0 and "12 of the 18 images for the threshold were trained on" in " ".join(done.err.split())
    record = json.loads((tmp_path / "out" / "detector.json").read_text())
    assert record["calibration"]["images"] == 6
    again = command(*options, "--overwrite", "--val", pictures)
    assert again.code == 0 and "12 of the 18 validation images are also trained on" in " ".join(again.err.split())


def test_an_unreadable_training_image_is_replaced(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    for name in ("cat", "dog", "red_car"):
        (pictures / name / "0.png").write_bytes(b"no image")
    done = command("tune", "--train", pictures, "--shots", 5, "--json", *common(tiny_clip_folder, tmp_path))
    assert done.code == 1, done.err
    assert "3 unreadable training images" in done.err
    assert done.json["images"] == 15
    assert {Path(one["path"]).name for one in done.json["unreadable"]} == {"0.png"}


def test_unused_images_that_cannot_be_read_set_no_threshold(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    """The training images set it, which is said, and there is no guarantee."""
    items = labelled_folders(pictures)
    drawn = sample_few_shots(items, ["cat", "dog", "red_car"], 5, 1).items
    unused = [item for item in items if item not in drawn]
    assert len(unused) == 3
    for item in unused:
        Path(item.id).write_bytes(b"no image")
    done = command("tune", "--train", pictures, "--shots", 5, "--seed", 1, *common(tiny_clip_folder, tmp_path))
    assert done.code == 1 and "There are only training images" in " ".join(done.err.split())
    assert de.Detector.load(tmp_path / "out").require_calibration().guarantee.trained


def test_two_runs_in_one_folder_do_not_meet(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    import subprocess
    import sys

    script = """
import sys
from deltaenergy.files import lock_folder
with lock_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        done = command("tune", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path))
        assert done.code == 2 and str(tmp_path / "out") in done.err
    finally:
        holder.communicate()
    assert command("tune", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path)).code == 0


def test_before_and_after_stand_side_by_side(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    """In the table, in --json and in the training's record; the numbers are those of the images that were not drawn."""
    options = ["tune", "--train", pictures, "--shots", 4, *common(tiny_clip_folder, tmp_path)]
    done = command(*options, "--method", "linear-probe")
    assert done.code == 0, done.err
    heading, before_row, after_row = done.out.splitlines()[:3]
    assert heading.split() == ["method", "accuracy", "gain", "AUROC", "gain"]
    assert before_row.startswith("zero-shot ") and after_row.startswith("linear-probe ") and after_row.endswith("kept")
    assert "Measured on 6 unused training images" in " ".join(done.err.split())
    record = json.loads((tmp_path / "out" / "deltaenergy-training.json").read_text())
    found = command(*options, "--method", "linear-probe", "--overwrite", "--json").json
    assert found["comparison"] == record["comparison"] and found["chosen"]["c"] > 0
    before, after = found["comparison"]["rows"]
    assert (before["method"], after["method"]) == ("zero-shot", "linear-probe") and found["method"] == "linear-probe"
    gain = after["accuracy"]["value"] - before["accuracy"]["value"]
    assert after["accuracy_gain"]["value"] == pytest.approx(gain, abs=1e-9)
    assert all(row["auroc"] is not None for row in (before, after))
    # Each class has a colour of its own: what the images show is easy, what a random tower says of names is not.
    assert after["accuracy"]["value"] == 1.0


def test_without_other_images_the_drawn_ones_are_cross_validated(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    options = ["tune", "--train", pictures, "--shots", 6, "--json", *common(tiny_clip_folder, tmp_path)]
    found = command(*options, "--method", "centroids").json["comparison"]
    assert found["measured_on"] == "training images, cross-validated" and found["images"] == 18
    assert all(row["accuracy"] is not None and row["auroc"] is not None for row in found["rows"])
    # A prompt learner is not trained five times more; nothing is measured, and nothing is claimed.
    assert command(*options, "--method", "coop", "--overwrite").json["comparison"] is None


def test_several_methods_are_tuned_on_the_same_views_and_the_best_is_kept(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltaenergy.tuning.prepare as prepare

    encoded: list[object] = []
    real = prepare.encode_views

    def count(model: object, items: object, views: object, *rest: object) -> object:
        encoded.append(views)
        return real(model, items, views, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "encode_views", count)
    methods = ["task-res", "coop", "centroids", "tip-adapter", "linear-probe"]
    options = ["tune", "--train", pictures, "--shots", 4, "--json", *common(tiny_clip_folder, tmp_path)]
    found = command(*options, *(word for name in methods for word in ("--method", name))).json
    assert sorted(map(str, encoded)) == ["2", "test"]
    rows = found["comparison"]["rows"]
    assert [row["method"] for row in rows] == ["zero-shot", *methods]
    # AUROC of coop is not measured, so that accuracy decides; the first of those that are alike.
    assert rows[2]["auroc"] is None and "would have to be tuned 5 times more" in rows[2]["note"]
    best = max(rows, key=lambda row: row["accuracy"]["value"])
    assert found["method"] == found["comparison"]["kept"] == best["method"]
    assert not (tmp_path / "out" / ".deltaenergy-tuning").exists()


def test_auto_goes_on_after_a_kill(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltaenergy.pipeline as tuned_detector
    import deltaenergy.training.loop as loop
    import deltaenergy.tuning.prepare as prepare

    epochs: list[int] = []
    before_measuring: list[int] = []
    real_epoch, real_compare = loop._StageRun.epoch, tuned_detector.measure_gain

    def count_epoch(run: Any, *rest: Any) -> Any:
        epochs.append(1)
        return real_epoch(run, *rest)

    def look(*given: Any, **options: Any) -> Any:
        before_measuring.append(len(epochs))
        return real_compare(*given, **options)

    monkeypatch.setattr(tuned_detector, "AUTO", ("centroids", "task-res", "clip-adapter"))
    options = ["tune", "--train", pictures, "--shots", 4, "--method", "auto", "--json"]
    options += ["--model", tiny_clip_folder, "--recipe", "epochs=3,views=2"]
    whole = command(*options, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    assert [row["method"] for row in whole.json["comparison"]["rows"]] == [
        "zero-shot",
        "centroids",
        "task-res",
        "clip-adapter",
    ]

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuned_detector, "measure_gain", killed)
        assert command(*options, "--out", tmp_path / "out").code == 130
    assert not (tmp_path / "out" / "detector.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "encode_views", killed)  # the views are there
        patch.setattr(loop._StageRun, "epoch", count_epoch)
        patch.setattr(tuned_detector, "measure_gain", look)
        again = command(*options, "--out", tmp_path / "out")
    assert again.code == 0, again.err
    assert before_measuring == [0] and epochs  # all epochs were there, too; measuring alone tunes anew
    assert {**again.json, "detector": ""} == {**whole.json, "detector": ""}


def test_methods_that_cannot_be_compared_are_refused_before_training(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    options = ["tune", "--train", pictures, *common(tiny_clip_folder, tmp_path), "--shots", 6]
    done = command(*options, "--method", "coop", "--method", "centroids")
    assert done.code == 2 and "coop cannot be tuned again for each fold" in " ".join(done.err.split())
    assert "epoch" not in done.err
    done = command(*options, "--method", "auto", "--method", "centroids")
    assert done.code == 2 and "pass only auto" in done.err


def test_a_feature_store_trains_what_needs_only_features(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    store = tmp_path / "train.store"
    assert command("features", pictures, "--model", tiny_clip_folder, "--out", store).code == 0
    options = ["tune", "--train", store, "--shots", 4, "--json", *common(tiny_clip_folder, tmp_path)]
    from_store = command(*options, "--method", "linear-probe")
    assert from_store.code == 0, from_store.err
    folder = ["tune", "--train", pictures, "--shots", 4, "--json", *common(tiny_clip_folder, tmp_path)]
    from_folder = command(*folder, "--method", "linear-probe", "--overwrite").json
    assert from_store.json["classes"] == from_folder["classes"] and from_store.json["images"] == 12
    assert from_store.json["threshold"] == pytest.approx(from_folder["threshold"], abs=1e-5)
    assert from_store.json["comparison"]["images"] == 6
    # A prompt learner needs features of images, and the text tower, which is there.
    assert command(*options, "--method", "coop", "--overwrite").code == 0
    for method, lacking in (("maple", "pixels"), ("locoop", "patches")):
        done = command(*options, "--method", method, "--overwrite")
        assert done.code == 2 and f"{method} needs {lacking}" in " ".join(done.err.split())


def test_a_store_without_labels_is_explained(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        path.rename(flat / f"{number}.png")
    assert command("features", flat, "--model", tiny_clip_folder, "--out", tmp_path / "s").code == 0
    done = command("tune", "--train", tmp_path / "s", *common(tiny_clip_folder, tmp_path))
    assert done.code == 2 and "none of the training images has a class" in " ".join(done.err.split())


def test_settings_without_effect_are_told(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    done = command("tune", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path))
    assert done.code == 0 and "lp++ is not trained in epochs: epochs changes nothing" in " ".join(done.err.split())


def test_the_default_is_the_package_s() -> None:
    from deltaenergy.cli.commands.tune import DEFAULT_METHOD, DEFAULT_VIEWS

    assert importlib.import_module("deltaenergy.tuning.tune").DEFAULT_METHOD == DEFAULT_METHOD
    assert importlib.import_module("deltaenergy.tuning.prepare").DEFAULT_VIEWS == DEFAULT_VIEWS


def test_few_shots_with_auto_on_real_pictures(command: Runner, shared_data: Path, tmp_path: Path) -> None:
    """The whole journey: a folder of real breeds, every quick method, the best kept, and put to use."""
    breeds = ("Abyssinian", "Bengal", "Birman", "Bombay", "beagle", "pug")
    for breed in breeds:
        (tmp_path / "train" / breed).mkdir(parents=True)
        for path in sorted((shared_data / "images" / "oxford_pets" / breed).iterdir())[:7]:
            (tmp_path / "train" / breed / path.name).symlink_to(path)
    done = command(
        "tune", "--train", tmp_path / "train", "--method", "auto", "--shots", 4, "--recipe", "views=1",
        "--score", "mcm", "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json["comparison"]
    assert found["images"] == 18 and found["measured_on"] == "unused training images"
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["zero-shot", "centroids", "linear-probe", "lp++", "clap", "tip-adapter-f", "task-res"]
    quality = {name: row["accuracy"]["value"] + row["auroc"]["value"] for name, row in rows.items()}
    assert done.json["method"] == max(quality, key=lambda name: quality[name])
    # Cats and dogs that differ by breed are told apart from four pictures each better than by name.
    assert rows[done.json["method"]]["accuracy"]["value"] > rows["zero-shot"]["accuracy"]["value"]
    unused = sorted((shared_data / "images" / "oxford_pets" / "pug").iterdir())[7:]
    scored = command("score", *unused, "--detector", tmp_path / "out", "--json")
    assert scored.code == 0 and "pug" in scored.out
