"""What verdicts and evaluations show in a notebook below their numbers: a few images.

Everything is in the cell's own HTML, images as small JPEG data. Nothing runs, and nothing is fetched.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import PurePath

from deltaenergy.data.items import ImageItem
from deltaenergy.data.thumbnails import square_jpeg

# Pictures in a cell, their side on the screen, and that of the data, for dense screens.
MOST, SIDE, DATA_SIDE, QUALITY = 12, 96, 192, 75
# Told apart by colour-blind readers.
COLOURS = ("#0072b2", "#d55e00")


@dataclass(frozen=True)
class Shot:
    """A picture with the lines below it; `known` decides their colour."""

    item: ImageItem
    lines: tuple[str, ...]
    known: bool


def pictures_html(shots: Sequence[Shot]) -> str:
    """The first pictures of those that can be read; nothing if none can."""
    cards: list[str] = []
    for shot in shots[: 4 * MOST]:  # where the first have no file, the others will not either
        data = square_jpeg(shot.item, DATA_SIDE, QUALITY) if len(cards) < MOST else None
        if data is None:
            continue
        name = PurePath(shot.item.id).name or shot.item.id
        source = "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")
        colour = COLOURS[0] if shot.known else COLOURS[1]
        lines = "".join(
            f"<div style='overflow:hidden;text-overflow:ellipsis'>{_text(line)}</div>" for line in shot.lines
        )
        cards.append(
            f"<div style='width:{SIDE}px;font-size:11px;white-space:nowrap;border-top:3px solid {colour}' "
            f"title='{_text(shot.item.id)}'><img src='{source}' alt='{_text(name)}' width='{SIDE}' height='{SIDE}'>"
            f"{lines}</div>"
        )
    return f"<div style='display:flex;flex-wrap:wrap;gap:8px;margin-top:8px'>{''.join(cards)}</div>" if cards else ""


def _text(text: str) -> str:
    """Escaped for text and attributes, without what UTF-8 cannot hold."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def interleaved(first: Iterable[Shot], second: Iterable[Shot]) -> list[Shot]:
    """Half of the pictures of each kind, or more where the other kind has fewer."""
    one, two = list(first), list(second)
    half = MOST // 2
    return one[: max(half, MOST - len(two))] + two[: max(half, MOST - len(one))] + one[half:] + two[half:]
