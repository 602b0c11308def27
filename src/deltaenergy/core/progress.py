"""Progress callbacks, and a bar for calls without one.

Public calls show the `stage` that they are in as a bar on standard error, if that is a terminal; so do commands. Other
work on images without a callback shows a plain line after a moment. `show_progress(False)` or DELTAENERGY_PROGRESS=0
turns both off, `show_progress(True)` on where there is no terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

# Called with (done, total) after each step; total is None while it is unknown.
Progress = Callable[[int, int | None], None]

# Short work needs no line, and the terminal is not updated more often than one can read.
_FIRST_AFTER, _AGAIN_AFTER = 1.0, 0.1
_WIDTH = 24
_setting: bool | None = None
# Whether a stage has a bar now.
_in_stage = False


def show_progress(on: bool | None = True) -> None:
    """Show progress in Python sessions always (True), never (False), or on terminals (None, the default)."""
    global _setting
    _setting = on


@contextlib.contextmanager
def stage(what: str) -> Iterator[Progress]:
    """Show a bar on standard error while the block runs; yields the callback that updates it.

    Before the first update it is a spinner, for work of unknown length. A stage within another shows nothing.
    """
    global _in_stage
    if _in_stage or not _wanted():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    text = TextColumn("{task.description}", markup=False)
    counted = text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Standard output is not used: it may be a pipe for results.
    bars = Bars(SpinnerColumn(), text, console=Console(stderr=True), transient=True, redirect_stdout=False)
    _in_stage = True
    try:
        with bars:
            task = bars.add_task(what, total=None)

            def move(done: int, total: int | None) -> None:
                bars.columns = counted
                bars.update(task, completed=done, total=total)

            yield move
    finally:
        _in_stage = False


def shown(what: str) -> Progress | None:
    """A callback that shows a line, or None if none is shown."""
    return _Line(what) if _wanted() and not _in_stage else None


def _wanted() -> bool:
    if sys.stderr is None:
        return False
    if _setting is None:
        return os.environ.get("DELTAENERGY_PROGRESS", "1") != "0" and sys.stderr.isatty()
    return _setting


def part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """`progress` for a part of the work that starts after `before` of `total` steps."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


class _Line:
    """`Encoding images  ███████·················  120/400`, erased at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + _FIRST_AFTER
        self._written = False

    def __call__(self, done: int, total: int | None) -> None:
        if total is not None and done >= total:
            self._erase()
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _AGAIN_AFTER
        full = int(_WIDTH * done / total) if total else 0
        bar = f"{'█' * full}{'·' * (_WIDTH - full)}  " if total else ""
        self._write(f"\r{self._what}  {bar}{done}{f'/{total}' if total else ''}")
        self._written = True

    def _erase(self) -> None:
        if self._written:
            self._write("\r\033[K")
            self._written = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError, UnicodeEncodeError):  # closed, or a terminal that cannot show it
            self._next = float("inf")
