"""`deltaenergy tune` end to end: the folder it writes is a detector like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runner import Runner
from tests.labelled_pictures import write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "train")


def common(tiny_clip_folder: Path, tmp_path: Path) -> list[object]:
    return ["--model", tiny_clip_folder, "--out", tmp_path / "out", "--epochs", 2, "--views", 2]


def test_the_result_is_a_detector(command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    options = common(tiny_clip_folder, tmp_path)
    done = command("tune", "--method", "ebm", "--train", pictures, "--shots", 4, "--seed", 1, *options)
    assert done.code == 0, done.err
    assert "epoch   2/2" in done.err and "e^L" in done.err and "accuracy" in done.err
    assert "training images that were not drawn" in done.err
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names[0].startswith("detector-") and names[1:] == ["detector.json", "training.json"]
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["method"] == "coop+ebm" and record["shots"] == 4 and len(record["sample"]["images"]) == 12
    scored = command("score", pictures, "--detector", tmp_path / "out", "--json")
    assert scored.code == 0 and "red car" in scored.out
    assert command("calibrate", pictures, "--detector", tmp_path / "out", "--out", tmp_path / "again").code == 0
    # The same again would overwrite a finished detector.
    again = command("tune", "--train", pictures, "--shots", 4, *options)
    assert again.code == 2 and "holds a detector already" in again.err
    assert command("tune", "--train", pictures, "--shots", 4, "--overwrite", *options).code == 0


def test_validation_search_and_json(command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    val = write_pictures(tmp_path / "val", seed=5)
    done = command(
        "tune", "--method", "clip-adapter", "--train", pictures, "--val", val, "--shots", 4, "--search", "--json",
        "--score", "mcm", *common(tiny_clip_folder, tmp_path),
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json
    assert len(found["searched"]) == 4 and found["validation"]["accuracy"] >= 0
    assert found["score"] == "mcm" and found["calibrated_on"] == f"images in {val}"


def test_all_images_trained_on_is_said_plainly(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    done = command("tune", "--train", pictures, "--shots", 6, *common(tiny_clip_folder, tmp_path))
    assert done.code == 0 and "no images beside those trained on" in " ".join(done.err.split())


def test_domains(command: Runner, tiny_clip_folder: Path, tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        write_pictures(tmp_path / "both" / domain)
    done = command("tune", "--train", tmp_path / "both", "--domains", "--shots", 2, *common(tiny_clip_folder, tmp_path))
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert {image["domain"] for image in record["sample"]["images"]} == {"art", "photo"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "emb"], "Did you mean 'ebm'"),
        (["--views", "few"], "--views must be a whole number or live"),
        (["--search"], "search needs validation images"),
        (["--score", "mcm,msp"], "one score"),
        (["--classes", "cat,dog"], "not among the 2 classes"),
        (["--lr", "-1"], "lr must be above 0"),
    ],
)
def test_wrong_use(
    command: Runner, tiny_clip_folder: Path, pictures: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = command("tune", "--train", pictures, "--shots", 2, *common(tiny_clip_folder, tmp_path), *arguments)
    assert done.code == 2 and message in " ".join(done.err.split())
    assert not (tmp_path / "out" / "detector.json").exists()


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
    import deltaenergy.artifact

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    options = ["tune", "--train", pictures, "--shots", 3, *common(tiny_clip_folder, tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(deltaenergy.artifact, "write_bound", full)
        failed = command(*options)
    assert failed.code == 2 and "No space left" in failed.err and "finished training is in" in failed.err
    assert not (tmp_path / "out" / "detector.json").exists()
    again = command(*options)
    assert again.code == 0 and "epoch" not in again.err
    assert (tmp_path / "out" / "detector.json").exists()
