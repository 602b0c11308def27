"""How many decoded pixels may be in memory at once, over all threads of the process.

An image of 13,000 × 13,000 pixels is a small PNG and two gigabytes in memory. Each thread that decodes takes the
image's pixels from one budget, waits while too many are out, and gives them back when the image is shrunk to the
model's input. An image that is larger than the whole budget passes when nothing else is decoded.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Iterator

from deltaenergy.errors import InputError

VARIABLE = "DELTAENERGY_PIXEL_BUDGET"
# Decoding takes 4 to 12 bytes per pixel: about a gigabyte, and room for four images of an ordinary camera.
DEFAULT_PIXELS = 100_000_000


class PixelBudget:
    """Pixels that may be decoded at once: first come, first served, so a large image gets its turn.

    Args:
        limit: the number of pixels; None for that of the environment variable DELTAENERGY_PIXEL_BUDGET, or 100 million.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._given = limit
        self._held = 0
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._thread = threading.local()

    @property
    def limit(self) -> int:
        """The number of pixels. Raises `InputError` if the environment variable is not a number."""
        if self._given is not None:
            return self._given
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return DEFAULT_PIXELS
        if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
            raise InputError(f"{VARIABLE} is {text!r}. Give a number of pixels, such as {DEFAULT_PIXELS}.")
        return int(text)

    @contextlib.contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Take `pixels` from the budget while the block runs, waiting until they are there."""
        depth = getattr(self._thread, "depth", 0)
        # A thread with an image already must not wait for pixels that only its own end would free.
        self._take(pixels, wait=not depth)
        self._thread.depth = depth + 1
        try:
            yield
        finally:
            self._thread.depth = depth
            with self._changed:
                self._held -= pixels
                self._changed.notify_all()

    def _take(self, pixels: int, wait: bool) -> None:
        limit, ticket = self.limit, object()
        with self._changed:
            if wait:
                self._queue.append(ticket)
                try:
                    self._changed.wait_for(
                        lambda: self._queue[0] is ticket and (not self._held or self._held + pixels <= limit)
                    )
                finally:  # also on an interrupt: a ticket without a waiting thread would stop all others
                    self._queue.remove(ticket)
                    self._changed.notify_all()
            self._held += pixels


PIXELS = PixelBudget()
