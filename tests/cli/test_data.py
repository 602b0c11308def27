"""`deltaenergy datasets`, `features` and `verify` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltaenergy.cli.main import run
from deltaenergy.store.store import Store


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as exit_info:
        run([str(argument) for argument in arguments])
    return int(exit_info.value.code or 0)


def test_data_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pacs/photo/dog").mkdir(parents=True)
    (tmp_path / "pacs/photo/dog/1.jpg").touch()
    (tmp_path / "mine").mkdir()
    assert call("datasets", tmp_path) == 0
    text = capsys.readouterr().out
    assert "photo: 1 of 1,670 images" in text
    assert "usable as images: mine" in text
    assert "VLCS is not there" in text
    assert call("datasets", tmp_path, "pacs", "--json") == 0
    [report] = json.loads(capsys.readouterr().out)["datasets"]
    assert report["status"] == "partial"
    assert report["counts"]["photo"] == {"found": 1, "expected": 1670}
    assert report["per_class"] == {"dog": 1}


def test_data_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("datasets", tmp_path / "absent") == 2
    assert "is not a folder" in capsys.readouterr().err
    assert call("datasets", tmp_path, "pasc") == 2
    assert "Did you mean 'pacs'" in capsys.readouterr().err


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("datasets", "--json") == 0
    datasets = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert datasets["imagenet"]["classes"] == 1000
    assert call("datasets") == 0
    assert "CC BY 4.0" in capsys.readouterr().out


def test_features(tiny_clip_folder: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert call("features", photos, "--out", store, "--model", tiny_clip_folder, "--shard-size", "3") == 0
    assert "8 images" in capsys.readouterr().out
    assert len(Store.open(store)) == 8
    (photos / "dog" / "bad.png").write_bytes(b"no picture")
    assert call("features", photos, "--out", store, "--model", tiny_clip_folder, "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["images"] == 8
    assert "bad.png" in captured.err
    # Another command takes the store for the images, with the same result.
    options = ("--classes", "cat,dog", "--model", tiny_clip_folder, "--json")
    assert call("score", store, *options) == 1
    from_store = json.loads(capsys.readouterr().out)["images"]
    assert call("score", photos, *options) == 1
    direct = json.loads(capsys.readouterr().out)["images"]
    assert [row["path"] for row in from_store] == [row["path"] for row in direct]
    for stored, other in zip(from_store, direct):
        assert stored["score"] == pytest.approx(other["score"], abs=1e-4)


def test_features_wrong_use(
    tiny_clip_folder: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("features", photos, "--out", photos, "--model", tiny_clip_folder) == 2
    assert "not a feature store" in capsys.readouterr().err
    assert call("features", tmp_path / "absent", "--out", tmp_path / "s", "--model", tiny_clip_folder) == 2
    assert "does not exist" in capsys.readouterr().err


def test_features_of_a_data_set(tiny_clip_folder: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "root/PACS").mkdir(parents=True)
    photos.rename(tmp_path / "root/PACS/photo")
    options = ("--out", tmp_path / "store", "--model", tiny_clip_folder)
    assert call("features", tmp_path / "root", "--dataset", "pacs", *options) == 0
    store = Store.open(tmp_path / "store")
    assert store.labels == ["dog"] * 4  # PACS has no cats
    assert store.index["domain"].to_pylist() == ["photo"] * 4
    assert call("features", photos, "--split", "test", *options) == 2
    assert call("features", tmp_path / "root", photos, "--dataset", "pacs", *options) == 2
