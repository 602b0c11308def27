"""HTML and SVG as nested calls. Text is escaped unless it is `Markup`, so that no class or file name can break a page.

>>> tag("p", "1 < 2", tag("b", "!"), class_="note")
'<p class="note">1 &lt; 2<b>!</b></p>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

VOID = frozenset({"br", "hr", "img", "meta", "link", "col"})


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


Child = Union[str, int, float, None, "Iterable[Child]"]
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element. `class_` and `stroke_width` become `class` and `stroke-width`; None and False leave one out."""
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


def _printable(text: str) -> str:
    """Without what UTF-8 or HTML cannot hold: lone surrogates of undecodable file names, control characters."""
    kept = text.encode("utf-8", errors="replace").decode("utf-8")
    return "".join(c if c in "\n\t" or (ord(c) >= 32 and ord(c) != 127) else "\ufffd" for c in kept)
