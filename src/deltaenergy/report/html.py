"""HTML and SVG as nested calls. Text is escaped unless it is `Markup`, so no class or file name can break a page.

Text with bidirectional controls is put into its own isolate (UAX #9).

>>> tag("p", "1 < 2", tag("b", "!"), class_="note")
'<p class="note">1 &lt; 2<b>!</b></p>'
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Union

VOID = frozenset({"br", "hr", "img", "meta", "link", "col", "input"})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BIDI = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_OPENERS, _FIRST_STRONG, _CLOSER = "\u2066\u2067\u2068", "\u2068", "\u2069"


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


Child = Union[str, int, float, None, "Iterable[Child]"]
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element. `class_` and `stroke_width` become `class` and `stroke-width`; None and False omit it."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        text = attribute if value is True else _number(value) if isinstance(value, float) else str(value)
        parts.append(f'{attribute}="{html.escape(_printable(text))}"')
    opening = " ".join(parts)
    if name in VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Children one after the other; strings are escaped, None is nothing, lists are flattened."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(_printable(child)))
        elif isinstance(child, (int, float)):
            parts.append(_number(child))
        else:
            parts.append(join(*child))
    return Markup("".join(parts))


def _number(value: int | float) -> str:
    """Coordinates to a hundredth: smaller steps cannot be seen, and long digits make large files."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def isolated(name: str) -> str:
    """A name for use inside a longer text: its bidirectional controls end with it."""
    if not _BIDI.search(name):
        return name
    kept, depth = [], 0
    for letter in name:
        if letter in _OPENERS:
            depth += 1
        elif letter == _CLOSER:
            if depth == 0:  # it would end our own isolate
                continue
            depth -= 1
        kept.append(letter)
    return f"{_FIRST_STRONG}{''.join(kept)}{_CLOSER * (depth + 1)}"


def _printable(text: str) -> str:
    """The text without lone surrogates and control characters, isolated."""
    kept = text.encode("utf-8", errors="replace").decode("utf-8")
    return isolated(_CONTROL.sub("\ufffd", kept))
