"""Eight bits on OpenVINO: unit features near torch's, bound to the images that set the ranges."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.backends.openvino import LEAST, MOST, calibration_pixels
from deltaenergy.models.base import TowerModel
from deltaenergy.source import as_source
from tests.models.backends.conftest import Load, skip_without

INT8 = {"backend": "openvino", "precision": "int8"}


def test_features_are_unit_and_near_and_those_of_one_tower(
    load: Load, tiny_clip_folder: Path, pictures: Path, tmp_path: Path, shared_exports: Path
) -> None:
    model, plain = load(tiny_clip_folder, **INT8, calibration_images=pictures), de.load_model(tiny_clip_folder)
    pixels = torch.cat([batch.pixels for batch in plain.stream(pictures) if batch.pixels is not None])
    found, expected = model.image_features(pixels), plain.image_features(pixels)
    assert (found.norm(dim=1) - 1).abs().max() < 1e-5
    assert (found * expected).sum(1).mean() > 0.95, "near, on images like those that set the ranges"
    nearest = (found @ expected.T).argmax(1)
    assert torch.equal(nearest, torch.arange(40)), "and nearer to its own image than to any other"
    assert (found - expected).abs().max() > 1e-4, "and yet in eight bits"
    again, patches = model.image_and_patch_features(pixels)
    torch.testing.assert_close(again, found, atol=1e-6, rtol=0)
    assert (patches.norm(dim=2) - 1).abs().max() < 1e-5

    assert model.fingerprint == f"{plain.fingerprint}+openvino-int8-{model.calibration}"
    assert model.describe()["calibration"] == model.calibration and model.precision == "int8"
    same = load(tiny_clip_folder, **INT8, calibration_images=sorted(pictures.iterdir()))
    assert same.fingerprint == model.fingerprint

    folder = tmp_path / "detector"
    de.Detector(de.ZeroShotClassifier(model, ["dog", "cat"]), "mcm").calibrate(pictures).save(folder)
    with pytest.raises(ArtifactError, match="'int8', found 'fp32'"):
        de.Detector.load(folder, model=plain)
    loaded = de.Detector.load(folder).classifier.base_model
    assert isinstance(loaded, TowerModel) and loaded.fingerprint == model.fingerprint
    assert torch.equal(loaded.image_features(pixels), found)
    shutil.rmtree(shared_exports / "backends")
    with pytest.raises(ArtifactError, match="no longer in the cache"):
        de.Detector.load(folder)


def test_the_head_of_a_convolutional_tower_stays_in_float(load: Load, pictures: Path) -> None:
    """The last three coordinates of `lite` are constants, which eight bits would round."""
    model, plain = load("lite", **INT8, calibration_images=pictures), de.load_model("lite")
    pixels = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    found, expected = model.image_features(pixels), plain.image_features(pixels)
    assert (found.norm(dim=1) - 1).abs().max() < 1e-5
    torch.testing.assert_close(found[:, -3:], expected[:, -3:], atol=1e-6, rtol=0)
    assert (found - expected).abs().max() > 1e-4, "the convolutions are in eight bits"


def test_other_images_are_another_calibration(tiny_clip: TowerModel, pictures: Path) -> None:
    files = sorted(pictures.iterdir())
    whole = calibration_pixels(tiny_clip, as_source(files))
    assert whole.pixels.shape == (40, 3, 32, 32)
    assert calibration_pixels(tiny_clip, as_source(files[:-1])).digest != whole.digest
    assert calibration_pixels(tiny_clip, as_source(pictures)).digest == whole.digest
    many = calibration_pixels(tiny_clip, as_source(files * 20))
    assert len(many.pixels) == MOST


def test_too_few_or_no_images_are_refused(tiny_clip: TowerModel, pictures: Path, tmp_path: Path) -> None:
    files = sorted(pictures.iterdir())
    with pytest.raises(InputError, match=f"need at least {LEAST}"):
        calibration_pixels(tiny_clip, as_source(files[: LEAST - 1]))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="1 unreadable calibration image"):
        calibration_pixels(tiny_clip, as_source([*files[:LEAST], tmp_path / "broken.png"]))
    with pytest.raises(InputError, match="not features"):
        calibration_pixels(tiny_clip, np.zeros((40, 16), np.float32))
    de.build_store(tiny_clip, pictures, tmp_path / "store")
    with pytest.raises(InputError, match="not a feature store"):
        calibration_pixels(tiny_clip, as_source(tmp_path / "store"))


def test_nothing_is_reported_to_anyone(tiny_clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    """OpenVINO and nncf send telemetry unless the module that does so cannot be imported; nothing is printed either."""
    skip_without("openvino")
    script = f"""
import socket, sys
def refuse(*_): raise SystemExit("somebody wants the network")
socket.socket.connect = socket.getaddrinfo = refuse
import deltaenergy as de
de.load_model({str(tiny_clip_folder)!r}, backend="openvino", precision="int8", calibration_images={str(pictures)!r})
print("openvino_telemetry" in sys.modules, "nncf" in sys.modules)
"""
    environment = {
        "DELTAENERGY_CACHE": str(tmp_path),
        "PYTHONPATH": ":".join(sys.path),
        "PATH": "",
        "HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False True\n"
