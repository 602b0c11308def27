"""What "images" may be, everywhere: a path, folder or glob, a list of those, PIL images, a table with a path column."""

from __future__ import annotations

from typing import Any

from deltaenergy.data.items import ImageItem


def load_images(images: Any) -> list[ImageItem]:
    """The images that `images` stands for, in a stable order."""
    return []
