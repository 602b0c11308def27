"""Standard output and standard error for the length of one command, whatever becomes of them.

Standard output may be closed, full, read by nobody, or in an encoding that lacks a letter. None of these costs a
result: letters that cannot be written are escaped, and what cannot be written at all is kept in a file whose place is
told. Standard error carries notes only; a command goes on without it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

# Text that may be lost at once: it is flushed when it is as long as this, and kept until then.
UNFLUSHED = 65_536


class Stream:
    """What both streams share: all that is not written here is the stream's own."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        # The reader is gone (`| head`).
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

    def writelines(self, lines: Iterator[str]) -> None:
        """Write all of them."""
        for line in lines:
            self.write(line)

    def write(self, text: str) -> int:
        """Write `text`."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send on what was written."""
        raise NotImplementedError


class StandardError(Stream):
    """Notes go where they can; where they cannot, they are left out."""

    def write(self, text: str) -> int:
        """Write `text` if that can be done."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Send on what was written, if that can be done."""
        if self._stream is not None and not self.failure:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.failure = error if isinstance(error, OSError) else OSError(str(error))


class StandardOutput(Stream):
    """Results. What cannot be written is kept in a file, `kept`, and so is all that follows."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self.kept: Path | None = None
        self._file: TextIO | None = None
        # Written, but perhaps still in a buffer.
        self._unflushed: list[str] = []
        self._length = 0

    def write(self, text: str) -> int:
        """Write `text` here or, once that has failed, to the file."""
        if self.failure is None:
            self._unflushed.append(text)
            self._length += len(text)
            try:
                if self._stream is None:
                    raise OSError("it is closed")
                self._stream.write(text)
                if self._length >= UNFLUSHED:
                    self.flush()
            except (OSError, ValueError) as error:
                self._fail(error)
        elif self._file is not None:
            with contextlib.suppress(OSError):  # found out by `close_kept`
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Send on what was written, and so find out whether it arrives."""
        if self.failure is None and self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)
            else:
                self._unflushed, self._length = [], 0

    def close_kept(self) -> None:
        """Finish the file that holds what could not be written."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError:  # there is no room for it either
            self.kept = None

    def _fail(self, error: OSError | ValueError) -> None:
        if isinstance(error, BrokenPipeError):
            self.broken = True
            raise error
        self.failure = error if isinstance(error, OSError) else OSError(str(error))
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(prefix="deltaenergy-output-", suffix=".txt")
            self.kept = Path(name)
            self._file = os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace")
            self._file.writelines(self._unflushed)


@contextlib.contextmanager
def standard_streams() -> Iterator[StandardOutput]:
    """Put both streams in place for the block, and give standard output."""
    _occupy_closed_descriptors()
    before = sys.stdout, sys.stderr
    output, notes = StandardOutput(sys.stdout), StandardError(sys.stderr)
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
            if wrapper.failure is not None or wrapper.broken:
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
