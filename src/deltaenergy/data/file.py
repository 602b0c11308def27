"""A file at a URL."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, ClassVar

from deltaenergy.data.decode import Streamed, UnreadableImage
from deltaenergy.data.pixel_budget import PixelBudget
from deltaenergy.data.remote.client import RemoteObject, get, request_limits
from deltaenergy.data.remote.errors import Refused

# The stamp of an image that nobody listed: nothing tells whether it changed.
UNLISTED = "not listed"
# Of images whose size is known before, no more bytes than this are held at a time, by all threads together.
_BYTES = PixelBudget(1 << 29)


@dataclass(frozen=True, slots=True)
class RemoteFile(RemoteObject, Streamed):
    """One image on an object store or web server."""

    far: ClassVar[bool] = True

    @property
    def stamp(self) -> str:
        """What tells whether it may have changed: its size and version."""
        if self.version is None:
            return UNLISTED
        return f"{self.size} bytes, {f'tag {self.version}' if self.version else 'undated'}"

    def open(self) -> IO[bytes]:
        """The image's bytes, fetched now. Raises `UnreachableError` if the store itself is out of reach."""
        return fetched_image(self.size, lambda: get(self.url, request_limits().image_bytes))


def fetched_image(size: int | None, read: Callable[[], bytes], what: str = "") -> IO[bytes]:
    """The bytes that `read` gives, counted as held until they are closed. What is refused is said of `what`.

    Raises `UnreadableImage`, or `UnreachableError` if the store itself is out of reach.
    """
    limit = request_limits().image_bytes
    if (size or 0) > limit:
        raise UnreadableImage(f"too large: more than the limit of {limit} bytes for an image at a URL")
    with contextlib.ExitStack() as held:
        held.enter_context(_BYTES.hold(size or 0))
        try:
            return _Fetched(read(), held.pop_all())
        except Refused as refused:
            raise UnreadableImage(f"{what}{refused.reason}") from refused


class _Fetched(io.BytesIO):
    """Bytes in memory that count as held until they are closed."""

    def __init__(self, data: bytes, held: contextlib.ExitStack) -> None:
        super().__init__(data)
        self._held = held

    def close(self) -> None:
        self._held.close()
        super().close()
