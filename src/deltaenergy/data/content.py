"""What tells two pictures apart without looking at them: a hash of their bytes, and a cheap sign that they changed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO

from PIL import Image

from deltaenergy.data.decode import ImageSource, Streamed, UnreadableImage, open_file, opened, reasons, strips
from deltaenergy.data.items import ImageItem

_CHUNK = 1 << 20


def stamp_of(item: ImageItem) -> str:
    """What tells without reading the picture whether it may have changed; where there is no such thing, its content.

    A source that is no file may carry its own as the attribute `stamp`.
    """
    if isinstance(item.source, Path):
        try:
            status = item.source.stat()
        except (OSError, ValueError):
            return "missing"
        return f"{status.st_size} bytes, {status.st_mtime_ns} ns"
    stamp = getattr(item.source, "stamp", None)
    if stamp is None:
        content, error = content_or_error(item)
        stamp = content or error
    return str(stamp)


def content_or_error(item: ImageItem) -> tuple[str | None, str | None]:
    """Hash of the picture's bytes (or of the pixels of one that is open already), or why it cannot be had.

    A picture far away would have to be fetched twice: its address and stamp stand for its bytes.
    """
    if getattr(item.source, "far", False):
        return hash_bytes(f"{getattr(item.source, 'url', item.id)} {stamp_of(item)}".encode()), None
    try:
        with reasons():
            return _content(item.source), None
    except UnreadableImage as error:
        return None, str(error)


def hash_file(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return _hash(file)


def hash_bytes(data: bytes) -> str:
    """Hash of bytes, equal to that of a file that holds them."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _content(source: ImageSource) -> str:
    if isinstance(source, Image.Image):
        return _hash_pixels(source)
    if isinstance(source, bytes):
        return hash_bytes(source)
    if isinstance(source, Path | Streamed):
        with open_file(source) if isinstance(source, Path) else source.open() as file:
            return _hash(file)
    return _content(source())


def _hash_pixels(source: Image.Image) -> str:
    """Hash of the picture as it is seen: equal numbers mean other colours with another palette."""
    with opened(source) as image:
        digest = hashlib.blake2b(f"{image.mode} {image.size}".encode(), digest_size=16)
        for _, strip in strips(image):
            digest.update(strip.tobytes())
    return digest.hexdigest()


def _hash(file: IO[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
