"""How long work tells how far it is, without knowing who shows it; and a plain line for those who give no callback.

Work on images that is given no callback shows a line on standard error, if that is a terminal, once it has taken a
moment. `show_progress(False)` or DELTAENERGY_PROGRESS=0 turns it off, `show_progress(True)` on where there is no
terminal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

# Called with (done, total) after each step; total is None while it is unknown.
Progress = Callable[[int, int | None], None]

# Short work needs no line; and a terminal is not written to more often than it can be read.
_FIRST_AFTER, _AGAIN_AFTER = 1.0, 0.1
_WIDTH = 24
_setting: bool | None = None


def show_progress(on: bool | None = True) -> None:
    """Show progress in Python sessions always (True), never (False), or on terminals (None, as at the start)."""
    global _setting
    _setting = on


def shown(what: str) -> Progress | None:
    """A callback that shows a line, or None where none is to be shown."""
    stream = sys.stderr
    if _setting is None:
        wanted = os.environ.get("DELTAENERGY_PROGRESS", "1") != "0" and stream is not None and stream.isatty()
    else:
        wanted = _setting and stream is not None
    return _Line(what) if wanted else None


def part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """`progress` for a part of the work that begins after `before` steps of `total`."""
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
