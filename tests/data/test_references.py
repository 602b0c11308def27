"""Where an image is, as text, is the same image again, also in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from deltaenergy.data.file import LocalFile, RemoteFile, Slice
from deltaenergy.data.formats.parquet import ParquetCell
from deltaenergy.data.items import Content, ImageItem, from_reference, to_reference
from deltaenergy.errors import ArtifactError

REMOTE = RemoteFile("s3://bucket/ü.tar", 20_480, "17")
IMAGES = [
    ImageItem("a", Path("/photos/a dog.jpg"), "dog", "photo"),
    ImageItem("b", Path("/photos/\udcff.jpg")),  # a name that is not valid text
    ImageItem("c", Slice(LocalFile(Path("/photos/a.tar"), "20480 bytes, 17 ns"), 512, 20_000)),
    ImageItem("d", ParquetCell(LocalFile(Path("/photos/a.parquet"), "20480 bytes, 17 ns"), "image", 7)),
    ImageItem("e", REMOTE),
    ImageItem("f", RemoteFile("https://host/a.jpg")),
    ImageItem("g", Slice(REMOTE, 512, 9)),
    ImageItem("h", ParquetCell(REMOTE, "image", 7), "cat"),
    ImageItem("i", None, problem="no permission to read it"),
]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.id)
def test_it_comes_back_as_it_was(image: ImageItem) -> None:
    reference = to_reference(image)
    assert reference is not None and reference.isascii()
    assert from_reference(image.id, reference, image.label, image.domain) == image


def test_relative_paths_hold_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (Path("dog.jpg"), Slice(LocalFile(Path("a.tar"), ""), 0, 1)):
        found = from_reference("a", to_reference(ImageItem("a", content)) or "").source
        file = found.file if isinstance(found, Slice) else found
        assert isinstance(file, LocalFile) and file.path.parent == tmp_path


@pytest.mark.parametrize("content", [Image.new("RGB", (2, 2)), b"bytes", lambda: b"later", None])
def test_images_in_memory_have_none(content: Content) -> None:
    assert to_reference(ImageItem("a", content)) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "3", '{"path": 3}', '{"path": "a", "row": 1}', '{"url": "s3://b/a"}', '{"path": "a", "other": 1}'],
)
def test_what_is_not_a_reference_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError):
        from_reference("a", text)
