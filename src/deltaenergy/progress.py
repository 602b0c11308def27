"""How long work tells how far it is, without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable

# Called with (done, total) after each step; total is None while it is unknown.
Progress = Callable[[int, int | None], None]
