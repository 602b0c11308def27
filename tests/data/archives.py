"""Archives and pictures for tests, whole and damaged."""

from __future__ import annotations

import functools
import io
import tarfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, decoded, hash_content
from deltaenergy.errors import InputError
from deltaenergy.source import load_images


@functools.cache
def picture_bytes(kind: str, seed: int = 0) -> bytes:
    """An encoded picture of 40 × 30; `tiff_lzw` is a compressed TIFF, which is decoded by a library of its own."""
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    stream = io.BytesIO()
    options = {"compression": kind} if kind.startswith("tiff_") else {}
    Image.fromarray(pixels).save(stream, "TIFF" if options else kind, **options)
    return stream.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


@functools.cache
def valid_archive() -> bytes:
    """Pictures with labels, under short, long and foreign names, with links and headers of every kind."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        files = {
            "a.png": picture_bytes("PNG"),
            "a.cls": b"cat",
            "Füchse/写真.jpg": picture_bytes("JPEG"),
            "x" * 120 + "/b.gif": picture_bytes("GIF"),
            "c.json": b'{"label": "dog"}',
            "c.webp": picture_bytes("WEBP"),
        }
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.pax_headers = {"mtime": "1.5", "comment": "x" * 40}
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("d.png")
        link.type, link.linkname = tarfile.LNKTYPE, "a.png"
        archive.addfile(link)
    return stream.getvalue()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed (mostly in headers), removed, inserted or cut off."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        kind = rng.integers(0, 10)
        place = int(rng.integers(0, len(found))) if rng.random() < 0.3 else _in_a_header(found, rng)
        if kind < 6:
            found[place] ^= int(rng.integers(1, 256))
        elif kind == 6:
            found[place : place + 12] = rng.bytes(12)
        elif kind == 7:
            found[124 + place // 512 * 512 : 136 + place // 512 * 512] = b"\xff" + rng.bytes(11)  # a length
        elif kind == 8:
            del found[place : place + int(rng.integers(1, 600))]
        else:
            found = found[: max(place, 1)]
        if not found:
            break
    return bytes(_with_checksums(found) if rng.random() < 0.7 else found)


def _with_checksums(data: bytearray) -> bytearray:
    """Headers with checksums that fit, so that what is wrong in them is believed."""
    for start in range(0, len(data) - 511, 512):
        if data[start + 257 : start + 262] == b"ustar":
            data[start + 148 : start + 156] = b" " * 8
            data[start + 148 : start + 156] = f"{sum(data[start : start + 512]):06o}\0 ".encode()
    return data


def _in_a_header(data: bytearray, rng: np.random.Generator) -> int:
    places = [place for place in range(0, len(data), 512) if data[place + 257 : place + 262] == b"ustar"]
    start = places[int(rng.integers(0, len(places)))] if places else 0
    return min(start + int(rng.integers(0, 512)), len(data) - 1)


def outcome(data: bytes, path: Path) -> str:
    """What comes of an archive with these bytes: `refused` whole, or `listed`, each picture being read or refused."""
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow has much to say about damaged pictures
        try:
            items = load_images(path)
        except InputError as error:
            assert str(path) in str(error)
            return "refused"
        assert 0 < len(items) < 100
        for item in items:
            content, error = hash_content(item)
            assert (content is None) != (error is None)
            picture_outcome(item)
    return "listed"


def picture_outcome(item: ImageItem) -> str:
    """`read` or `refused`, and never anything else."""
    try:
        with decoded(item) as image:
            assert image.mode == "RGB"
    except UnreadableImage as error:
        assert str(error)
        assert "\n" not in str(error)
        return "refused"
    return "read"
