"""The two consoles of the command line. They print plain text: no markup, emoji codes or control characters."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from deltaenergy.core.text import to_json, visible

if TYPE_CHECKING:
    from rich.text import Text

# Python in a message: `keep`, or `overwrite=True`.
_ARGUMENT = re.compile(r"`(?P<name>[a-z_0-9]+)(=(?P<value>[^`]*))?`")
# Outside a terminal, lines need not fit a screen, and programs read folded cells badly.
WIDE = 160


class PlainConsole(Console):
    """A console that prints names as they are, with control characters escaped."""

    # With --quiet: warnings (yellow) and errors (red) are printed, notes are not.
    hushed = False
    # How a user of the running command types the arguments that messages name.
    typed_as: Mapping[str, str] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does, but lines of plain text are not folded, so a path stays in one piece."""
        if self.hushed and options.get("style") not in ("red", "yellow"):
            return
        shown = [visible(in_options(e, self.typed_as), lines=True) if isinstance(e, str) else e for e in objects]
        if all(isinstance(entry, str) for entry in shown):
            options.setdefault("soft_wrap", True)
        super().print(*shown, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything printed passes here, also the cells of a table."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, lines=True))

    def on_broken_pipe(self) -> NoReturn:
        """The reader is gone: raise, where rich would end the process with exit code 1."""
        raise BrokenPipeError


# Results go to standard output; notes and errors to standard error, so pipes stay clean.
out = PlainConsole()
err = PlainConsole(stderr=True)


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A library message with options instead of the arguments that it names in backticks.

    >>> in_options("`keep` must be below 1. Pass `overwrite=True`.", {"keep": "--keep", "overwrite": "--overwrite"})
    '--keep must be below 1. Pass --overwrite.'
    """

    def option(found: re.Match[str]) -> str:
        if found["name"] not in options:
            return found[0]
        value = (found["value"] or "").strip("'\"")
        return " ".join(filter(None, [options[found["name"]], "" if value == "True" else value]))

    return _ARGUMENT.sub(option, text)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str = "", header: bool = True
) -> None:
    """A table on standard output. Columns whose name starts with > are right-aligned; the first one folds."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, title=visible(title), show_header=header)
    table.title_justify = "left"
    for position, name in enumerate(columns):
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=right)
        if not position:
            table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in row))
    (out if out.is_terminal else PlainConsole(width=WIDE)).print(table)


def print_json(value: Any) -> None:
    """One JSON document on standard output. Values that are not numbers, such as NaN, become null."""
    sys.stdout.write(to_json(value, indent=2, ascii_only=not sys.stdout.encoding.lower().startswith("utf")) + "\n")
