"""Folders of other families through the command line: SigLIP, Chinese-CLIP and open_clip give labels and detectors."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import deltaenergy as de
from tests.cli.runner import Runner
from tests.families import write_chinese_clip, write_siglip
from tests.models.loading.test_open_clip import write_open_clip


def open_clip(folder: Path) -> Path:
    write_open_clip(folder)
    return folder


@pytest.mark.parametrize("write", [write_siglip, write_chinese_clip, open_clip])
def test_score_calibrate_and_tune_on_a_folder(
    command: Runner, photos: Path, tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    folder = write(tmp_path / "model")
    result = command("score", photos, "--model", folder, "--classes", "dog,cat")
    assert result.code == 0
    # From the pictures themselves, by the model's towers.
    model = de.load_model(folder)
    files = sorted(photos.rglob("*.png"))
    texts = torch.from_numpy(model.encode_texts(["a photo of a dog.", "a photo of a cat."]))
    images = torch.from_numpy(model.encode_images([Image.open(file) for file in files]))
    expected = [("dog", "cat")[i] for i in (images @ texts.T).argmax(dim=1)]
    assert [row["label"] for row in csv.DictReader(io.StringIO(result.out))] == expected
    detector = tmp_path / "detector"
    assert command("calibrate", photos, "--model", folder, "--classes", "dog,cat", "--out", detector).code == 0
    assert command("score", photos, "--detector", detector).code == 0
    assert de.Detector.load(detector).classifier.model.fingerprint == model.fingerprint


def test_an_archive_is_refused_in_a_sentence(command: Runner, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "ViT-B-32.pt").write_bytes(b"PK\x03\x04")
    result = command("score", photos, "--model", tmp_path / "ViT-B-32.pt", "--classes", "dog,cat")
    assert result.code == 2 and "ViT-B-32.pt" in result.err.replace("\n", "")


@pytest.mark.parametrize("family", ["own ViT", "SigLIP"])
def test_real_pictures_through_a_folder(
    command: Runner, shared_data: Path, tiny_clip_folder: Path, tmp_path: Path, family: str
) -> None:
    """Weights of chance, real files: each is read and named as the model's towers name it, and sorted."""
    photos = shared_data / "images" / "pacs" / "photo"
    if not photos.is_dir():
        pytest.skip("the pictures of PACS are not there")
    folder = tiny_clip_folder if family == "own ViT" else write_siglip(tmp_path / "model")
    files = [path for label in ("dog", "guitar") for path in sorted((photos / label).iterdir())[:4]]
    named = ["--model", folder, "--classes", "dog,guitar"]
    detector = tmp_path / "detector"
    assert command("calibrate", *files, *named, "--score", "mcm", "--out", detector).code == 0
    result = command("score", *files, "--detector", detector)
    assert command("sort", *files, "--detector", detector, "--into", tmp_path / "sorted").code == 0
    model = de.load_model(folder)
    texts = torch.from_numpy(model.encode_texts(["a photo of a dog.", "a photo of a guitar."]))
    images = torch.from_numpy(model.encode_images([Image.open(file) for file in files]))
    expected = [("dog", "guitar")[i] for i in (images @ texts.T).argmax(dim=1)]
    assert [row["label"] for row in csv.DictReader(io.StringIO(result.out))] == expected
    assert len(list((tmp_path / "sorted").rglob("*.jpg"))) == len(files)
