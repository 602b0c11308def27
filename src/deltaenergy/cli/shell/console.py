"""The two consoles of the command line. Text is text: no markup, no emoji codes, nothing that steers a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from deltaenergy.core.text import visible


class PlainConsole(Console):
    """A console that prints names as they are, with control characters written out."""

    # With --quiet: warnings (yellow) and errors (red) are printed, notes are not.
    hushed = False

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does; lines of plain text are not folded, so that a path stays in one piece."""
        if self.hushed and options.get("style") not in ("red", "yellow"):
            return
        shown = [visible(entry, lines=True) if isinstance(entry, str) else entry for entry in objects]
        if all(isinstance(entry, str) for entry in shown):
            options.setdefault("soft_wrap", True)
        super().print(*shown, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything printed passes here, the cells of a table too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, lines=True))

    def on_broken_pipe(self) -> NoReturn:
        """The reader is gone: said by an exception, where rich would end the process with exit code 1."""
        raise BrokenPipeError


# Results go to standard output; progress, notes and errors to standard error, so that pipes stay clean.
out = PlainConsole()
err = PlainConsole(stderr=True)
