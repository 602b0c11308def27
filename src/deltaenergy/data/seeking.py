"""The part that all files have in common that are a piece of something else: a position that can be moved."""

from __future__ import annotations

import io


class Seeking(io.RawIOBase):
    """A file of `size` bytes that can be read anywhere. Those derived from it define `readinto`."""

    def __init__(self, size: int) -> None:
        self.size, self.position = size, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next byte is read from."""
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere; behind the end there are no bytes."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("seek before the beginning of the file")
        self.position = start + offset
        return self.position
