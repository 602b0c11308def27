"""Thumbnails: the central square of an image as a JPEG file, for pages and for detectors that keep some."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from PIL import Image

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.file import LocalFile
from deltaenergy.data.items import ImageItem, load_rgb


def square_jpeg(item: ImageItem, side: int, quality: int = 80) -> bytes | None:
    """The image's central square, at most `side` pixels wide, or None if there is no image to show.

    That is so for features without images, and for a file that is gone since it was scored. A feature store has no
    images, but calls them by their paths: where these still exist, they are shown.
    """
    image = _open(item)
    if image is None:
        return None
    square = min(image.size)
    left, top = (image.width - square) // 2, (image.height - square) // 2
    size = min(side, square)
    box = (left, top, left + square, top + square)
    small = image.resize((size, size), Image.Resampling.LANCZOS, box, reducing_gap=3.0)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def _open(item: ImageItem) -> Image.Image | None:
    for one in (item, ImageItem(item.id, LocalFile(Path(item.id)))):
        with contextlib.suppress(UnreadableImage):
            return load_rgb(one)
    return None
