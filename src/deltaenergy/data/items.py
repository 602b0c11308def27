"""One image that is still to be read, and the record of one that could not be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image


@dataclass(frozen=True, slots=True)
class ImageItem:
    """An image by reference: where it is, what it is called in results, and its class and domain where known."""

    id: str
    source: Path | Image.Image | bytes
    label: str | None = None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that was skipped, and why."""

    id: str
    reason: str
