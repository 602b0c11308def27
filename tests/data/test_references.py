"""An image source as text is the same source again, in another process, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from deltaenergy.data.decode import Refusal
from deltaenergy.data.formats.parquet import ParquetImage
from deltaenergy.data.formats.tar import TarMember
from deltaenergy.data.references import in_memory, refer, resolve
from deltaenergy.errors import ArtifactError

SOURCES = [
    Path("/photos/a dog.jpg"),
    Path("/photos/\udcff.jpg"),  # a name that is not valid text
    TarMember(Path("/photos/a.tar"), 512, 20_000, "20480 bytes, 17 ns"),
    ParquetImage(Path("/photos/a.parquet"), "image", 7, "20480 bytes, 17 ns"),
    Refusal("no permission to read it"),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
def test_it_comes_back_as_it_was(source: object) -> None:
    reference = refer(source)  # type: ignore[arg-type]
    assert reference is not None
    assert reference.isascii()
    assert resolve(reference) == source
    assert not in_memory(source)  # type: ignore[arg-type]


def test_relative_paths_hold_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (Path("dog.jpg"), TarMember(Path("a.tar"), 0, 1, "")):
        reference = refer(source)
        assert reference is not None
        found = resolve(reference)
        place = found if isinstance(found, Path) else getattr(found, "archive")  # noqa: B009
        assert place.parent == tmp_path


@pytest.mark.parametrize("source", [Image.new("RGB", (2, 2)), b"bytes", lambda: b"later"])
def test_pictures_in_memory_have_none(source: object) -> None:
    assert refer(source) is None  # type: ignore[arg-type]
    assert in_memory(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "{}", '["file"]', '["pickle", "x"]', '["tar", "a.tar"]', '["file", 3]'])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError, match="says of no image where it is"):
        resolve(text)
