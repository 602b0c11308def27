"""The last guard: every way a command can end becomes one message and one exit code.

    0    done
    1    some images could not be read; they are listed, and all others are done
    2    wrong use, or something around us that the user can fix (a full disk, a missing right)
    3    `monitor --exit-code` only: the images have changed
    70   an error of ours: one sentence, and where the traceback was saved
    130  interrupted

There are no other exit codes, and no traceback reaches a terminal. Standard output may be closed, full, unread, or in
an encoding that lacks a letter: such letters are escaped, and a failure is reported once, at the end. Standard error
has only notes; a command continues without it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import typer

from deltaenergy import __version__
from deltaenergy.cli.shell.console import err
from deltaenergy.errors import DeltaEnergyError, explain_os_error, used_up_its_memory

DONE, SOME_UNREADABLE, WRONG_USE, CHANGED, OUR_ERROR, INTERRUPTED = 0, 1, 2, 3, 70, 130
_MEMORY_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "cannot allocate memory",
    "failed to map segment",  # a library does not fit
    "could not create a primitive",  # from oneDNN
)
_THREAD_WORDS = ("can't start new thread", "thread constructor failed", "resource temporarily unavailable")
NO_MEMORY = "Out of memory. Close other programs, or use a smaller batch or fewer images."
NO_THREADS = "The system allows no more threads. Close other programs, or raise the limit (`ulimit -u`)."


class Interrupted(Exception):
    """Ctrl-C; the arguments say what was kept of the run."""


def exit_code_of(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run `command` and return its exit code; `arguments` are for the record of an internal error."""
    with _standard_streams() as output:
        code = _attempt(command, arguments, output)
        if not output.broken:
            with contextlib.suppress(BrokenPipeError):
                output.flush()
        if output.broken:
            # The reader of our output (head, less) is gone; that is not an error.
            return DONE
        if output.failure is not None:
            reason = explain_os_error(output.failure) if output.failure.errno else f"{output.failure}."
            err.print(f"Error: Standard output could not be written: {reason} Use --out FILE.", style="red")
            code = max(code, WRONG_USE)
    return code


def _attempt(command: Callable[[], object], arguments: Sequence[str], output: GuardedStream) -> int:
    try:
        code = command()
        if code == INTERRUPTED:  # newer versions of typer turn an interrupt into this
            raise Interrupted
        return code if isinstance(code, int) else DONE
    except (Interrupted, KeyboardInterrupt, typer.Abort) as stop:
        return _say(" ".join(["Interrupted.", *map(str, stop.args)]), INTERRUPTED, style="yellow")
    except BrokenPipeError:
        return DONE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else DONE
    except DeltaEnergyError as error:
        return _say(f"Error: {error}{_notes(error)}", WRONG_USE)
    except BaseException as error:
        if output.broken:  # even if it was wrapped on the way here
            return DONE
        if hasattr(error, "format_message"):  # wrong use: typer's own errors, whose base class it does not export
            return _say_wrong_use(error)
        known = _explain(error)
        if known is not None:
            return _say(f"Error: {known}{_notes(error)}", WRONG_USE)
        return _say(_internal_error(error, arguments), OUR_ERROR)


def _say(text: str, code: int, style: str = "red") -> int:
    try:
        err.print(text, style=style)
    except (MemoryError, SystemError):  # no memory is left for the console
        os.write(2, f"{text}\n".encode(errors="replace"))
    return code


def _notes(error: BaseException) -> str:
    """What was kept of a failed run, from the notes of the error."""
    return "".join(f" {note}" for note in getattr(error, "__notes__", ()))


def _say_wrong_use(problem: Any) -> int:
    if type(problem).__name__ == "NoArgsIsHelpError":  # the help is on the screen already
        return WRONG_USE
    context = getattr(problem, "ctx", None)
    if context is not None:
        err.print(context.get_usage())
        err.print(f"Try '{context.command_path} --help' for help.")
    return _say(f"Error: {problem.format_message()}", WRONG_USE)


def _explain(error: BaseException) -> str | None:
    """A message for failures of the system rather than our own: refusals and memory."""
    said = f"{error} {error.__cause__ or ''}".lower()
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return NO_THREADS
    if isinstance(error, OSError) and error.errno is not None:
        return explain_os_error(error)
    if isinstance(error, MemoryError) or any(words in said for words in _MEMORY_WORDS):
        return NO_MEMORY
    if any(words in said for words in _THREAD_WORDS):
        return NO_THREADS
    # What then fails is anything: a native call without room for its own message, an import that was given up halfway.
    return NO_MEMORY if used_up_its_memory() else None


def _internal_error(error: BaseException, arguments: Sequence[str]) -> str:
    """One sentence; the traceback is saved in the cache folder, or in the temporary folder if that fails."""
    from deltaenergy.files.cache import cache_folder

    said = (str(error).strip().splitlines() or [""])[0]
    what = f"Internal error: {type(error).__name__}: {said}".removesuffix(": ")[:300]
    text = "\n".join(
        [
            f"deltaenergy {__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"torch {getattr(sys.modules.get('torch'), '__version__', 'not loaded')}",
            f"deltaenergy {shlex.join(arguments)}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-"
    places: list[Callable[[], Path]] = [lambda: cache_folder() / "errors", lambda: Path(tempfile.gettempdir())]
    for find in places:
        with contextlib.suppress(OSError, DeltaEnergyError):
            place = find()
            place.mkdir(parents=True, exist_ok=True)
            handle, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=place)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return f"{what}. Traceback saved to {path}."
    return f"{what}. The traceback could not be saved."


class GuardedStream:
    """A stream that remembers its first failure instead of raising it; the rest is the stream's own.

    A reader that is gone (`| head`) ends the command if the stream carries results.
    """

    def __init__(self, stream: TextIO | None, *, results: bool) -> None:
        self._stream, self._results = stream, results
        self.broken = False
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def write(self, text: str) -> int:
        """Write `text`, unless the stream has failed."""
        self._attempt(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
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
def _standard_streams() -> Iterator[GuardedStream]:
    """Guard the streams for the block, and yield standard output."""
    _occupy_closed_descriptors()
    before = sys.stdout, sys.stderr
    output, notes = GuardedStream(sys.stdout, results=True), GuardedStream(sys.stderr, results=False)
    for stream in before:
        # Letters that the encoding lacks are written as escapes, as in \xfc.
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(OSError, ValueError):  # it also flushes
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
    """Open the null device where 0, 1 or 2 is closed: otherwise the next file opened would get our output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def _silence(stream: TextIO | None) -> None:
    """Drop what is left in a dead stream's buffer, so Python does not complain at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError), Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), stream.fileno())  # type: ignore[union-attr]
