"""Commands whose images are at URLs and must be in folders of classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import Runner
from tests.clouds import S3Bucket as Bucket
from tests.data.archives import picture_bytes


def test_folders_of_classes(
    bucket: Bucket, tiny_clip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [("train", 3), ("val", 3), ("other", 2)]
    names = [f"{part}/{name}/{i}.png" for part, count in parts for name in ("cat", "dog") for i in range(count)]
    bucket.put({name: picture_bytes("PNG", seed) for seed, name in enumerate(names)})
    train, val, other = (f"{bucket.url}/{part}/" for part, _ in parts)
    command, out = Runner(capsys), tmp_path / "tuned"
    more = ["--model", tiny_clip_folder, "--shots", 2, "--method", "clip-adapter", "--recipe", "epochs=1", "--out", out]
    done = command("tune", "--train", train, "--val", val, "--id", val, *more)
    assert done.code == 0, done.err
    done = command("theory", out, "--id", val, "--open", other, "--json")
    assert done.code == 0, done.err
