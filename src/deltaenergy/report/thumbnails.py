"""Small pictures inside the page: read when the report is written, as JPEG data in the `src` of an image."""

from __future__ import annotations

import base64

from deltaenergy.data.items import ImageItem
from deltaenergy.data.thumbnails import square_jpeg

# Twice the width at which they are shown, for dense screens.
SIDE = 256


def thumbnail(item: ImageItem, side: int = SIDE) -> str | None:
    """A data URI of the picture's central square, or None if there is no picture to show (`square_jpeg`)."""
    found = square_jpeg(item, side)
    return None if found is None else jpeg_uri(found)


def jpeg_uri(data: bytes) -> str:
    """A JPEG file as the `src` of an image."""
    return "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")
