"""One image that is still to be read, and the record of one that could not be."""

from __future__ import annotations

from dataclasses import dataclass

from deltaenergy.data.decode import ImageSource, Refusal


@dataclass(frozen=True, slots=True)
class ImageItem:
    """An image by reference: where it is, what it is called in results, and its class and domain where known.

    `source` is a path, a PIL image, an encoded file as bytes or inside an archive, or a function that gives one of
    these when the image is needed (a row of a hub data set); `deltaenergy.data.decode.open_image` opens all of them.
    """

    id: str
    source: ImageSource
    label: str | None = None
    domain: str | None = None

    def __post_init__(self) -> None:
        # File names need not be valid text. These three must be: they are printed and written to tables.
        for name in ("id", "label", "domain"):
            text = getattr(self, name)
            if text is not None and not text.isascii():
                object.__setattr__(self, name, text.encode("utf-8", "backslashreplace").decode("utf-8"))

    @property
    def refused(self) -> bool:
        """Whether it is known already that it cannot be read."""
        return isinstance(self.source, Refusal)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that was skipped, and why."""

    id: str
    reason: str
