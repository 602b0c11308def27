"""`--on` and `check-model` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import Runner


@pytest.fixture
def openvino(own_cache: Path) -> str:
    pytest.importorskip("openvino", reason="pip install 'deltaenergy[openvino]'")
    return "openvino"


def test_a_journey_on_another_backend(
    command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path, openvino: str
) -> None:
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat"]
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    done = command("calibrate", photos, *base, "--score", "mcm", "--out", fast, "--on", openvino)
    assert done.code == 0, done.err
    assert command("calibrate", photos, *base, "--score", "mcm", "--out", slow).code == 0
    shown = command("score", photos, "--detector", fast, "--json")
    assert shown.code == 0 and shown.json["model"]["backend"] == openvino
    assert command("score", photos, "--detector", fast, "--on", openvino).code == 0
    refused = command("score", photos, "--detector", fast, "--on", "torch")
    assert refused.code == 2 and "was calibrated with openvino in fp32" in " ".join(refused.err.split())
    refused = command("score", photos, "--detector", slow, "--on", openvino)
    assert refused.code == 2 and "was calibrated with torch in fp32" in " ".join(refused.err.split())

    odin = command("score", photos, *base, "--score", "odin", "--on", openvino)
    assert odin.code == 2 and "--on torch" in " ".join(odin.err.split())
    every = command("evaluate", "--id", photos, *base, "--score", "all", "--on", openvino)
    assert every.code == 0 and "the backend openvino has no gradients" in " ".join(every.err.split())

    store = tmp_path / "store"
    assert command("features", photos, "--model", tiny_clip_folder, "--out", store, "--on", openvino).code == 0
    assert command("score", store, "--detector", fast).code == 0
    mixed = command("score", store, "--detector", slow)
    assert mixed.code == 2 and "backend: store 'openvino', given 'torch'" in " ".join(mixed.err.split())

    arguments = ["check-model", tiny_clip_folder, "--id", photos, "--on", openvino, "--score", "mcm"]
    told = command(*arguments)
    assert told.code == 0 and "8 of 8 agree" in told.out and "Not shown to be equal" in told.out
    (photos / "dog" / "broken.png").write_text("x")
    found = command(*arguments, "--open", photos, "--json")
    assert found.code == 1, "an unreadable image, as everywhere"
    assert found.json["labels_differ"] == 0 and found.json["equal"] is False and found.json["speed"] > 0
    assert abs(found.json["auroc_difference"]["value"]) < 1e-6


def test_eight_bits_on_torch(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat", "--on", "int8"]
    assert command("calibrate", photos, *base, "--score", "mcm", "--out", tmp_path / "fast").code == 0
    shown = command("score", photos, "--detector", tmp_path / "fast", "--json")
    assert shown.code == 0 and shown.json["model"]["precision"] == "int8"
    refused = command("score", photos, "--detector", tmp_path / "fast", "--on", "fp32")
    assert refused.code == 2 and "was calibrated with torch in int8" in " ".join(refused.err.split())
    odin = command("score", photos, *base, "--score", "odin")
    assert odin.code == 2 and "--on fp32" in " ".join(odin.err.split())
    arguments = ["check-model", tiny_clip_folder, "--id", photos, "--on", "int8", "--score", "mcm"]
    checked = command(*arguments, "--json")
    assert checked.code == 0 and checked.json["precision"] == "int8" and checked.json["equal"] is False
    lite = command("score", photos, "--classes", "dog,cat", "--model", "lite", "--on", "int8")
    assert lite.code == 2 and "--on openvino" in " ".join(lite.err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "openvin"], "Did you mean 'openvino'"),
        (["--on", "openvino,int4"], "Did you mean 'int8'"),
        (["--on", "onnx,int8"], "int8 runs on 'torch' or 'openvino'"),
        (["--on", "cpu,cuda"], "two words of one kind: cpu and cuda"),
        (["--on", "cpu,batch=many"], "batch must be a whole number"),
        (["--on", "int8", "--int8-images", "x"], "--int8-images are only for"),
        (["--on", "openvino", "--int8-images", "x"], "--int8-images are only for"),
    ],
)
@pytest.mark.parametrize("name", ["score", "calibrate", "features", "explain"])
def test_what_does_not_go_together_is_told_before_any_work(
    command: Runner, photos: Path, tmp_path: Path, name: str, options: list[str], message: str
) -> None:
    if "--int8-images" in options and name in ("score", "explain"):
        message = "No such option"  # it is set where a detector is made
    more = [] if name == "features" else ["--classes", "dog,cat"]
    more += [] if name == "score" else ["--out", str(tmp_path / ("page.html" if name == "explain" else "out"))]
    done = command(name, photos, "--model", "no-such/model", *more, *options)
    assert done.code == 2 and message in " ".join(done.err.split())


def test_check_model_says_what_it_lacks(command: Runner, photos: Path, tmp_path: Path) -> None:
    plain = command("check-model", "lite", "--id", photos)
    assert plain.code == 2 and "--on must name another backend" in " ".join(plain.err.split())
    loose = photos / "dog"
    unlabelled = command("check-model", "lite", "--id", loose, "--on", "onnx")
    assert unlabelled.code == 2 and "have no classes" in " ".join(unlabelled.err.split())
    twice = command("check-model", "lite", "--id", photos, "--on", "onnx", "--score", "mcm,msp")
    assert twice.code == 2 and "--score must be one score" in " ".join(twice.err.split())
