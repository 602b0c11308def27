"""Exports in the cache: made once, made again where they cannot be opened, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import deltaenergy as de
from deltaenergy.models.backends.base import opened_export
from tests.models.backends.conftest import Load


class Tower:
    """Writes two files, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def make(self, folder: Path) -> None:
        self.made += 1
        (folder / "tower.bin").write_bytes(bytes(range(100)))
        (folder / "tower.xml").write_text("<net/>")

    def open(self, folder: Path) -> bytes:
        return (folder / "tower.bin").read_bytes() + (folder / "tower.xml").read_bytes()


def export_folder(cache: Path) -> Path:
    (folder,) = (cache / "backends").iterdir()
    return folder


def test_an_export_is_made_once_and_again_for_another_tower(own_cache: Path) -> None:
    tower = Tower()
    for expected in (1, 1):
        assert opened_export("a+openvino-fp32", tower.make, tower.open) == bytes(range(100)) + b"<net/>"
        assert tower.made == expected
    opened_export("b+openvino-fp32", tower.make, tower.open)
    assert tower.made == 2
    assert opened_export("c+openvino-fp32", None, tower.open) is None, "what cannot be made is not there"
    names = {path.name for path in (own_cache / "backends").iterdir()}
    assert len(names) == 2 and not any(name.startswith(".") for name in names), "nothing temporary stays"


def test_an_export_that_the_library_cannot_open_is_made_again(own_cache: Path) -> None:
    tower = Tower()

    def open_folder(folder: Path) -> bytes:
        if tower.made == 1:
            raise RuntimeError("written by another version")
        return tower.open(folder)

    opened_export("a", tower.make, tower.open)
    assert opened_export("a", tower.make, open_folder) and tower.made == 2


def test_a_failure_while_exporting_leaves_nothing(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "tower.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened_export("a", fail, Tower().open)
    assert list((own_cache / "backends").iterdir()) == []


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DELTAENERGY_CACHE", str(tmp_path / "file" / "cache"))
    tower = Tower()
    with pytest.warns(UserWarning, match="could not be cached"):
        assert opened_export("a", tower.make, tower.open) == bytes(range(100)) + b"<net/>"


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
def test_a_second_load_exports_nothing_and_a_cut_tower_is_made_again(
    load: Load, tiny_clip_folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("DELTAENERGY_CACHE", str(own_cache))
    first = load(tiny_clip_folder, backend)
    pixels = torch.ones(2, 3, 32, 32)
    expected = first.image_features(pixels)
    folder = export_folder(own_cache)
    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "export", None)
        assert torch.equal(load(tiny_clip_folder, backend).image_features(pixels), expected)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    torch.testing.assert_close(load(tiny_clip_folder, backend).image_features(pixels), expected, atol=1e-6, rtol=0)
    assert export_folder(own_cache) == folder, "nothing else stays"
    assert de.load_model(tiny_clip_folder).fingerprint != first.fingerprint
