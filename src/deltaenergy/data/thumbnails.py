"""Small pictures: the central square of an image as a JPEG file, for pages and for detectors that keep some."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from PIL import Image

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.items import ImageItem


def square_jpeg(item: ImageItem, side: int, quality: int = 80) -> bytes | None:
    """The picture's central square, at most `side` pixels wide, or None if there is no picture to show.

    That is so for features without pictures, and for a file that is gone since it was scored. A feature store holds
    no pictures, but calls them by their paths: where these still exist, they are shown.
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
    for source in (item.source, Path(item.id)):
        with contextlib.suppress(UnreadableImage):
            return open_image(source)
    return None
