"""What one request may ask for, and what the service takes on at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from deltaenergy.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds of the service; whoever is above one gets an answer that names it.

    Attributes:
        body_mb: of a whole request, in megabytes.
        files: images in a request.
        megapixels: of one picture, as its header tells before it is decoded.
        seconds: from the first byte of a request to its answer.
        queue: images that are decoded, waiting or being looked at, of all requests together.
        batch: images that pass through the image tower together.
        wait_ms: how long an image may wait for others to share its batch while the tower is idle.
        classes: class names in a request.
        name_length: characters of a class name.
        class_lists: class lists whose text features are kept.
        rows: rows of features in a request.
    """

    body_mb: float = 64
    files: int = 64
    megapixels: float = 50
    seconds: float = 30
    queue: int = 256
    batch: int = 32
    wait_ms: float = 5
    classes: int = 1000
    name_length: int = 200
    class_lists: int = 32
    rows: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "wait_ms" else 1e-9
            if not (math.isfinite(value) and value >= least):
                raise InputError(f"The limit {field.name} must be a number above 0, got {value!r}.")
        if self.queue < self.files:
            raise InputError(
                f"The limit queue ({self.queue}) must be at least files ({self.files}): else a request that is allowed "
                "could never be taken."
            )

    @property
    def body_bytes(self) -> int:
        """The largest body, in bytes."""
        return int(self.body_mb * 1_000_000)

    @property
    def pixels(self) -> int:
        """The largest picture, in pixels."""
        return int(self.megapixels * 1_000_000)
