"""Patterns such as `photos/**/*.png`, matched by the one walk of this package.

`*`, `?` and `[…]` match inside a name, `**` any number of folders. As in a shell, a name that begins with a dot is
matched only by a pattern that does. Unlike Python's glob, linked folders do not lead in circles, and a folder that
cannot be listed is said to be so.
"""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterator
from pathlib import Path

from deltaenergy.data.walk import Kind, Listed, list_or_problem, look_at, tree


def matches(pattern: Path) -> list[Listed]:
    """What is there and matches, and every problem on the way, sorted by path."""
    root = Path(pattern.anchor)
    found = {entry.path: entry for entry in _expand(root, pattern.parts[1:] if pattern.anchor else pattern.parts)}
    return sorted(found.values(), key=lambda entry: str(entry.path))


def _expand(folder: Path, parts: tuple[str, ...]) -> Iterator[Listed]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _at_any_depth(folder, rest)
        return
    if not glob.has_magic(part):
        entry = look_at(folder / part)
        candidates = [] if entry is None else [entry]
    else:
        entries = list_or_problem(folder, hidden=part.startswith("."))
        candidates = [entry for entry in entries if entry.path == folder or fnmatch.fnmatch(entry.path.name, part)]
    for entry in candidates:
        if not rest or entry.kind is Kind.CLOSED:
            yield entry
        elif entry.kind is Kind.FOLDER:
            yield from _expand(entry.path, rest)


def _at_any_depth(folder: Path, rest: tuple[str, ...]) -> Iterator[Listed]:
    while rest and rest[0] == "**":
        rest = rest[1:]
    if rest:
        yield from _expand(folder, rest)
    elif (itself := look_at(folder)) is not None:
        yield itself
    for entry in tree(folder, strict=False):
        if not rest or entry.kind is Kind.CLOSED:
            yield entry
        elif entry.kind is Kind.FOLDER:
            yield from _expand(entry.path, rest)
