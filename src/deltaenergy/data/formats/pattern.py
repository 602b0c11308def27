"""Patterns such as `photos/**/*.png`, matched by the one walk of this package.

`*`, `?` and `[…]` match inside a name, `**` any number of folders. As in a shell, a name that begins with a dot is
matched only by a pattern that does. Unlike Python's glob, linked folders do not lead in circles, and a folder that
cannot be listed is said to be so. `{000..999}` and `{train,test}` stand for every number or word, each of which must
be there.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Iterator
from pathlib import Path

from deltaenergy.data.formats.walk import EntryKind, Listed, list_or_problem, look_at, tree
from deltaenergy.errors import InputError

_BRACES = re.compile(r"\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}]*,[^{}]*))\}")
MOST_NAMES = 1_000_000


def braces(text: str) -> list[str]:
    """The names that a text with braces stands for, as in a shell; a text without stands for itself."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    first, last, words = match.groups()
    if words is not None:
        choices = words.split(",")
    else:
        low, high = int(first), int(last)
        width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        step = 1 if low <= high else -1
        if abs(high - low) >= MOST_NAMES:
            raise InputError(f"{match[0]!r} in {text!r} stands for more than {MOST_NAMES:,} names.")
        choices = [f"{number:0{width}}" for number in range(low, high + step, step)]
    ends = braces(text[match.end() :])
    if len(choices) * len(ends) > MOST_NAMES:
        raise InputError(f"The braces in {text!r} stand for more than {MOST_NAMES:,} names.")
    return [text[: match.start()] + choice + end for choice in choices for end in ends]


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
        if not rest or entry.kind is EntryKind.CLOSED:
            yield entry
        elif entry.kind is EntryKind.FOLDER:
            yield from _expand(entry.path, rest)


def _at_any_depth(folder: Path, rest: tuple[str, ...]) -> Iterator[Listed]:
    while rest and rest[0] == "**":
        rest = rest[1:]
    if rest:
        yield from _expand(folder, rest)
    elif (itself := look_at(folder)) is not None:
        yield itself
    for entry in tree(folder, strict=False):
        if not rest or entry.kind is EntryKind.CLOSED:
            yield entry
        elif entry.kind is EntryKind.FOLDER:
            yield from _expand(entry.path, rest)
