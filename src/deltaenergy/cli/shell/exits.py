"""The last guard: every way a command can end becomes one message and one exit code.

    0    done
    1    some images could not be read; they are listed, and all others are done
    2    wrong use, or something around us that the user can mend (a full disk, a missing right)
    3    `monitor --exit-code` only: the images have changed
    70   an error of ours: one sentence, and the place of the saved traceback
    130  interrupted

Nothing else leaves the process, and no traceback reaches a terminal.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from deltaenergy import __version__
from deltaenergy.cli.shell.console import err
from deltaenergy.cli.shell.streams import GuardedStream, standard_streams
from deltaenergy.errors import DeltaEnergyError, explain_os_error

DONE, SOME_UNREADABLE, WRONG_USE, CHANGED, OUR_ERROR, INTERRUPTED = 0, 1, 2, 3, 70, 130
_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


class InterruptedRun(Exception):
    """Ctrl-C in a place that knows what is kept. Its message says so."""


@contextlib.contextmanager
def keeping(kept: str) -> Iterator[None]:
    """Say after an interrupt in the block what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRun(kept) from None


def guarded(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run `command` and give the exit code; `arguments` are for the record of an unforeseen error."""
    with standard_streams() as output:
        code = _attempt(command, arguments, output)
        if not output.broken:
            with contextlib.suppress(BrokenPipeError):
                output.flush()
        if output.broken:
            # The reader of our output (head, less) is gone; that is no error.
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
            raise KeyboardInterrupt
        return code if isinstance(code, int) else DONE
    except InterruptedRun as stop:
        return _say(f"Interrupted. {stop}", INTERRUPTED, style="yellow")
    except (KeyboardInterrupt, typer.Abort):
        return _say("Interrupted.", INTERRUPTED, style="yellow")
    except BrokenPipeError:
        return DONE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else DONE
    except DeltaEnergyError as error:
        return _say(f"Error: {error}", WRONG_USE)
    except BaseException as error:
        if output.broken:  # whatever was made of it on the way here
            return DONE
        if hasattr(error, "format_message"):  # wrong use, by typer's own errors, whose base class it does not export
            return _say_wrong_use(error)
        known = _explain(error)
        if known is not None:
            return _say(f"Error: {known}", WRONG_USE)
        return _say(_unforeseen(error, arguments), OUR_ERROR)


def _say(text: str, code: int, style: str | None = "red") -> int:
    err.print(text, style=style)
    return code


def _say_wrong_use(problem: Any) -> int:
    if type(problem).__name__ == "NoArgsIsHelpError":  # the help is on the screen already
        return WRONG_USE
    context = getattr(problem, "ctx", None)
    if context is not None:
        err.print(context.get_usage())
        err.print(f"Try '{context.command_path} --help' for help.")
    return _say(f"Error: {problem.format_message()}", WRONG_USE)


def _explain(error: BaseException) -> str | None:
    """A message for what lies around us rather than in us: the system's refusals, and memory."""
    if isinstance(error, OSError) and error.errno is not None:
        return explain_os_error(error)
    said = str(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in said.lower() for words in _MEMORY_WORDS)
    ):
        return "There is not enough memory. Use a smaller --batch-size, or fewer images at once."
    if isinstance(error, RuntimeError) and "can't start new thread" in said:
        return "The system allows no more threads. Close other programs, or raise the limit (`ulimit -u`)."
    return None


def _unforeseen(error: BaseException, arguments: Sequence[str]) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    place = _save_traceback(error, arguments)
    where = f"the traceback is in {place}" if place else "its traceback could not be saved"
    return f"Error: deltaenergy failed in a way that nobody foresaw ({what[:300]}); {where}."


def _save_traceback(error: BaseException, arguments: Sequence[str]) -> Path | None:
    """Write the traceback to the cache folder, or to the temporary one; None if neither takes it."""
    from deltaenergy.files.cache import cache_folder

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
            return Path(path)
    return None
