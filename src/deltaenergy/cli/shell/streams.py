"""Standard output and standard error for the length of one command.

Standard output may be closed, full, read by no one, or in an encoding that lacks a letter. Letters that cannot be
written are escaped; a stream that fails is named once at the end (`exits.guarded`), and nothing more is written to it.
Standard error carries notes only; a command continues without it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO


class GuardedStream:
    """A stream that remembers its first failure instead of raising it; the rest is the stream's own.

    A reader that is gone (`| head`) ends the command, where the stream carries results.
    """

    def __init__(self, stream: TextIO | None, *, results: bool) -> None:
        self._stream, self._results = stream, results
        self.broken = False
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        if self._stream is None:
            raise AttributeError(name)
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:
        """What text is written in."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether a person watches."""
        return self._stream is not None and self._stream.isatty()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all of them."""
        for line in lines:
            self.write(line)

    def write(self, text: str) -> int:
        """Write `text`, unless the stream has failed."""
        self._attempt(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Send on what was written."""
        if self._stream is not None:
            self._attempt(lambda stream: stream.flush())

    def _attempt(self, action: Callable[[TextIO], object]) -> None:
        if self.failure is not None:
            return
        try:
            if self._stream is None:
                raise OSError("it is closed")
            action(self._stream)
        except (OSError, ValueError) as error:
            self.failure = error if isinstance(error, OSError) else OSError(str(error))
            if self._results and isinstance(error, BrokenPipeError):
                self.broken = True
                raise


@contextlib.contextmanager
def standard_streams() -> Iterator[GuardedStream]:
    """Put both streams in place for the block, and give standard output."""
    _occupy_closed_descriptors()
    before = sys.stdout, sys.stderr
    output, notes = GuardedStream(sys.stdout, results=True), GuardedStream(sys.stderr, results=False)
    for stream in before:
        # Letters that the encoding lacks are written as escapes, as in \xfc.
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(OSError, ValueError):  # it flushes, too
                stream.reconfigure(errors="backslashreplace")
    # Paths on standard input are in the file system's encoding, whatever is set for other text.
    if hasattr(sys.stdin, "reconfigure"):
        with contextlib.suppress(ValueError, OSError):
            sys.stdin.reconfigure(encoding=sys.getfilesystemencoding(), errors="surrogateescape")
    sys.stdout, sys.stderr = output, notes
    try:
        yield output
    finally:
        sys.stdout, sys.stderr = before
        for wrapper, stream in zip((output, notes), before):
            if wrapper.failure is not None:
                _silence(stream)


def _occupy_closed_descriptors() -> None:
    """Put the null device where 0, 1 or 2 is closed: the next file opened would take its place, and get our output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def _silence(stream: TextIO | None) -> None:
    """Send what is left in a dead stream's buffer nowhere, so that Python does not complain of it at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno()  # type: ignore[union-attr]
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
