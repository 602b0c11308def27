"""Text for people: safe names in terminals and spreadsheets, and how objects are displayed there and in notebooks.

File and class names come from anywhere. Terminals obey control characters, bidirectional overrides make `gpj.exe` read
as `exe.jpg`, and spreadsheets run a cell that starts with `=`: all of these are escaped. JSON, JSON lines and Parquet
keep names as they are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

# Control characters; line and paragraph separators; embeddings, overrides and isolates; halves of surrogate pairs.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
_UNSAFE_IN_JSON = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", ""))
# Leading apostrophes also count, so a reader can remove the one that was added.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NAMES_SHOWN = 5


def visible(text: str, *, lines: bool = False) -> str:
    r"""`text` with what a terminal would obey written out, as in `\x1b`; with `lines`, line ends stay.

    >>> visible("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if text.isascii() and text.isprintable():
        return text
    return (_UNSAFE_IN_LINES if lines else _UNSAFE).sub(_written_out, text)


def to_json(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """`value` as JSON that every reader accepts, without control characters; names survive a round trip.

    NaN and infinity, which JSON does not have, are null.
    """
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def to_cell(text: str) -> str:
    """`text` for a cell of a CSV file: visible, with an apostrophe before what a spreadsheet would read as a formula.

    >>> to_cell("=1+1.png")
    "'=1+1.png"
    """
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(text) else shown


def from_cell(cell: str) -> str:
    """A name from a cell of a CSV file, where an apostrophe keeps spreadsheets from reading it as a formula.

    >>> from_cell("'=1+1.png")
    '=1+1.png'
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'")[:1] in {"=", "+", "-", "@"} else cell


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "image"), counted(2000, "image")
    ('1 image', '2,000 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def some_names(names: Sequence[str]) -> str:
    """`dog, cat, horse`, or the first few of many."""
    shown = ", ".join(name[:40] for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown}, …"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names with commas, as in a message: the first ones and the number of the others.

    >>> listed(["dog", "cat", "horse"], 2)
    'dog, cat and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def in_table(kind: str, facts: Mapping[str, object]) -> str:
    """Facts as an HTML table, escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption style='text-align:left'><b>{escape(kind)}</b></caption>{rows}</table>"


class HasRepr:
    """A class that describes itself by `_repr_fields`, most important first."""

    def _repr_fields(self) -> dict[str, object]:
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = "; ".join(f"{name} {value}" for name, value in self._repr_fields().items())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        return in_table(type(self).__name__, self._repr_fields())
