"""Open one image as RGB, or say in a short sentence why not."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

# 180 megapixels: twice Pillow's own warning limit. Larger pictures are taken for decompression bombs.
MAX_PIXELS = 180_000_000


class UnreadableImage(Exception):
    """The image cannot be decoded; the message is the reason."""


def open_image(source: Path | Image.Image | bytes) -> Image.Image:
    """The image upright, in RGB, first frame only. Raises `UnreadableImage`."""
    raise UnreadableImage("not implemented")
