"""The machine's cores, shared by batches that run at the same time.

Two batches on one core each are done sooner than one batch on two cores after the other: threads that work on the same
product wait for each other at its end, and a machine that also talks to clients makes them wait long. A lone batch
still gets all cores, so that a single image is answered as soon as can be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MOST_WORKERS = 4


class Cores:
    """How many threads a batch may use, by how many run."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._running = 0
        self._lock = threading.Lock()

    def workers(self, device: str = "cpu") -> int:
        """Batches that may run at a time; other devices than the CPU take one after the other."""
        return min(self._threads, MOST_WORKERS) if device == "cpu" else 1

    @contextmanager
    def share(self) -> Iterator[int]:
        """While it is held, torch works in this thread with its share of the cores."""
        with self._lock:
            self._running += 1
            threads = max(1, self._threads // self._running)
        try:
            # Holds for products that this thread asks for; others keep the number that they set themselves.
            torch.set_num_threads(threads)
            yield threads
        finally:
            with self._lock:
                self._running -= 1
