"""Pictures in archives: read in pieces from their place, bounded, and whatever the bytes are, a clear outcome."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.file import Slice
from deltaenergy.data.formats.tar_headers import TarHeaders
from deltaenergy.data.items import ImageItem, decoded, hash_bytes, hash_content, load_rgb
from deltaenergy.errors import InputError
from deltaenergy.source import load_images
from tests.data.archives import damaged, outcome, picture_bytes, valid_archive, write_tar
from tests.sampling import examples


@dataclass(frozen=True)
class Limited:
    """A member of an archive, opened with other limits than usual."""

    member: Slice
    limits: dict[str, int]

    def open(self) -> IO[bytes]:
        return self.member.file.open_slice(self.member.offset, self.member.size, **self.limits)


def limited(item: ImageItem, **limits: int) -> ImageItem:
    assert isinstance(item.source, Slice)
    return replace(item, source=Limited(item.source, limits))


def reason(item: ImageItem) -> str:
    with pytest.raises(UnreadableImage) as caught, decoded(item):
        pass
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "tiff_lzw"])
def test_every_format_is_read_from_its_place(tmp_path: Path, kind: str) -> None:
    """As from a file of its own: the picture stands between others, so that a wrong place would show."""
    data = picture_bytes(kind)
    write_tar(tmp_path / "t.tar", {"a.png": picture_bytes("PNG", 1), "b.png": data, "c.png": picture_bytes("PNG", 2)})
    item = load_images(tmp_path / "t.tar")[1]
    np.testing.assert_array_equal(np.asarray(load_rgb(item)), np.asarray(open_image(data)))
    assert hash_content(item) == (hash_bytes(data), None)


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_member_is_a_file_like_any_other(tmp_path: Path, size: int) -> None:
    """Read at once, or in pieces."""
    rng = np.random.default_rng(0)
    data = rng.bytes(size)
    write_tar(tmp_path / "t.tar", {"a.png": b"before", "b.png": data, "c.png": b"after"})
    member = load_images(tmp_path / "t.tar")[1].source
    assert isinstance(member, Slice)
    with member.open() as file:
        assert file.read() == data
        assert file.read(1) == b""
        for _ in range(200):
            place, count = int(rng.integers(0, len(data) + 10)), int(rng.integers(0, 5000))
            whence = int(rng.integers(0, 3))
            if whence == os.SEEK_END:
                place = int(file.seek(-min(place, len(data)), os.SEEK_END))
            elif whence == os.SEEK_CUR:
                place = int(file.seek(place - file.tell(), os.SEEK_CUR))
            else:
                file.seek(place)
            assert file.tell() == place
            assert file.read(count) == data[place : place + count]
        with pytest.raises(OSError, match="fileno"):
            file.fileno()
        with pytest.raises((OSError, ValueError), match=r"beginning|negative seek"):
            file.seek(-1)


def test_pictures_are_not_read_whole(tmp_path: Path) -> None:
    """Of a large uncompressed picture cut off in the header's claim, only pieces are ever in memory."""
    write_tar(tmp_path / "t.tar", {"a.png": picture_bytes("PNG") + bytes(9_000_000)})
    [item] = load_images(tmp_path / "t.tar")
    tracemalloc.start()
    assert load_rgb(item).size == (40, 30)
    assert hash_content(item)[0] is not None
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20


def test_members_have_a_size_limit(tmp_path: Path) -> None:
    write_tar(tmp_path / "t.tar", {"a.png": picture_bytes("PNG"), "b.png": picture_bytes("PNG") + bytes(9000)})
    first, second = (limited(item, most=9000) for item in load_images(tmp_path / "t.tar"))
    assert load_rgb(first).size == (40, 30)
    assert "bytes exceed the limit of 9000 in an archive" in reason(second)
    assert "exceed" in str(hash_content(second)[1])


def test_an_archive_that_changes_after_it_was_listed(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    write_tar(path, {"a.png": picture_bytes("PNG")})
    [item] = load_images(path)
    data = path.read_bytes()
    path.write_bytes(data[:600])
    assert reason(item) == "the archive ends before the image does"
    path.unlink()
    assert "its archive cannot be read: the file does not exist" in reason(item)
    os.mkfifo(path)
    assert "its archive cannot be read: a named pipe" in reason(item)


def test_links_and_sparse_files_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as archive:
        data = picture_bytes("PNG")
        member = tarfile.TarInfo("a.png")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
        for name, kind in (("b.png", tarfile.LNKTYPE), ("c.png", tarfile.SYMTYPE), ("d.png", tarfile.FIFOTYPE)):
            other = tarfile.TarInfo(name)
            other.type, other.linkname = kind, "a.png"
            archive.addfile(other)
        folder = tarfile.TarInfo("e.png")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    items = load_images(path)
    assert [item.id.rpartition("/")[2] for item in items] == ["a.png", "b.png", "c.png", "d.png"]
    assert [item.problem is not None for item in items] == [False, True, True, True]


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """A tar header with any size field."""
    block = bytearray(512)
    block[: len(name)] = name.encode()
    block[100:108] = b"0000644\0"
    block[124 : 124 + len(size)] = size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def member(name: str, data: bytes) -> bytes:
    return header(name, f"{len(data):011o}\0".encode()) + data.ljust(-(-len(data) // 512) * 512, b"\0")


def test_a_length_that_leads_backwards(tmp_path: Path) -> None:
    """Python's tarfile, as it is in many releases, reads such an archive for ever, and grows."""
    first, second = member("a.png", picture_bytes("PNG")), member("b.png", picture_bytes("PNG"))
    back = (-(len(second) + 512)).to_bytes(12, "big", signed=True)
    (tmp_path / "t.tar").write_bytes(first + second + header("c.png", back) + bytes(1024))
    items = load_images(tmp_path / "t.tar")
    assert [load_rgb(item).size for item in items[:2]] == [(40, 30)] * 2
    assert "damaged" in reason(items[-1])
    assert len(items) <= 4


@pytest.mark.parametrize("kind", [b"x", b"L", b"g"])
def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "t.tar"
    path.write_bytes(member("a.png", picture_bytes("PNG")) + header("b.png", f"{7 << 30:011o}\0".encode(), kind))
    with path.open("r+b") as file:
        file.truncate(8 << 30)  # sparse: takes no room
    items = load_images(path)
    assert load_rgb(items[0]).size == (40, 30)
    assert f"claims a length of {7 << 30} bytes" in reason(items[-1])
    path.unlink()


@settings(max_examples=examples(400))
@given(st.integers(0, 2**32 - 1))
def test_whatever_the_bytes_are(seed: int) -> None:
    """Each image is read or refused with a reason, or the archive as a whole is, and nothing else happens."""
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(damaged(valid_archive(), np.random.default_rng(seed)), Path(folder) / "t.tar")
    assert found in {"listed", "refused"}


def by_tarfile(path: Path) -> list[tuple[str, bool, bool, int, int]]:
    with tarfile.open(path) as archive:
        return [(m.name, m.isreg() and not m.issparse(), m.isdir(), m.offset_data, m.size) for m in archive]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("time", [0, 1.5])
def test_headers_are_read_as_tarfile_reads_them(tmp_path: Path, form: int, time: float) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w", format=form) as archive:
        for name in ("a.png", "b/c.png", "d" * 90 + "/" + "e" * 80 + ".png", "ü.png", "empty.png", "z.png"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 0 if name == "empty.png" else len(name) * 300, time
            archive.addfile(info, io.BytesIO(bytes(info.size)))
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE):
            info = tarfile.TarInfo(f"other{ord(kind)}.png")
            info.type, info.linkname = kind, "a.png"
            archive.addfile(info)
        if form == tarfile.PAX_FORMAT:
            archive.addfile(tarfile.TarInfo("f" * 200 + ".png"))
    with path.open("rb") as file:
        headers = TarHeaders(file)
        assert [tuple(member) for member in headers] == by_tarfile(path)
    assert headers.damage is None


def test_common_headers_are_not_left_to_tarfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be right, and several times slower."""
    left: list[int] = []

    class Watched(tarfile.TarFile):
        def __init__(self, *arguments: Any, fileobj: Any = None, **options: Any) -> None:
            left.append(fileobj.tell())
            super().__init__(*arguments, fileobj=fileobj, **options)

    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / "t.tar"
        with tarfile.open(path, "w", format=form) as archive:
            for name in ("a.png", "b" * 99 + "/c.png", "d.png"):
                info = tarfile.TarInfo(name)
                info.mtime = 1.5
                info.size = 700
                archive.addfile(info, io.BytesIO(bytes(700)))
            end = archive.offset
        left.clear()
        with monkeypatch.context() as patch:
            patch.setattr(tarfile, "TarFile", Watched)
            assert len(load_images(path)) == 3
        assert left == [end]  # tarfile says that this is the end


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32 - 1))
def test_damaged_headers_are_read_as_tarfile_alone_reads_them(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.tar"
        path.write_bytes(damaged(valid_archive(), np.random.default_rng(seed)))
        found = []
        for fast in (True, False):
            with path.open("rb") as file:
                headers = TarHeaders(file)
                try:
                    found.append([list(headers if fast else headers._by_tarfile(0)), headers.damage])
                except tarfile.ReadError as error:
                    found.append([str(error)])
        assert found[0] == found[1]


@settings(max_examples=examples(100))
@given(st.binary(max_size=3000))
def test_no_archive_at_all(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.tar"
        path.write_bytes(data)
        try:
            items = load_images(path)
        except InputError as error:
            assert str(path) in str(error)
        else:
            assert items
