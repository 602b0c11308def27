"""One image that is still to be read, and the record of one that could not be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from PIL import Image


class LazyImage(ABC):
    """An image that is part of something larger (an archive, a hub data set), read when it is needed."""

    @abstractmethod
    def read(self) -> bytes:
        """The encoded picture (JPEG, PNG, …). Raises `OSError` if it cannot be had; the message is the reason."""

    @property
    @abstractmethod
    def stamp(self) -> str:
        """A text that changes when the picture may have changed, had without reading it."""


@dataclass(frozen=True, slots=True)
class ImageItem:
    """An image by reference: where it is, what it is called in results, and its class and domain where known."""

    id: str
    source: Path | Image.Image | bytes | LazyImage
    label: str | None = None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that was skipped, and why."""

    id: str
    reason: str
