"""What verdicts and evaluations show in a notebook: figures, a histogram of the scores, and a few pictures.

Everything is in the cell's own HTML: pictures as small JPEG data, the histogram as SVG. Nothing runs, and nothing is
fetched.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from deltaenergy.data.items import ImageItem
from deltaenergy.data.thumbnails import square_jpeg

# Pictures in a cell, their side on the screen, and that of the data, for dense screens.
MOST, SIDE, DATA_SIDE, QUALITY = 12, 96, 192, 75
WIDTH, HEIGHT, BINS = 420, 120, 40
# Told apart by colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


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


def histogram_html(groups: Mapping[str, npt.ArrayLike], threshold: float | None) -> str:
    """Scores of each group as steps over one axis, each group by its own share; a line at the threshold."""
    values = {name: np.asarray(group, np.float64) for name, group in groups.items()}
    values = {name: group[np.isfinite(group)] for name, group in values.items()}
    values = {name: group for name, group in values.items() if len(group)}
    marks = [] if threshold is None or not math.isfinite(threshold) else [threshold]
    whole = np.concatenate([*values.values(), marks]) if values else np.zeros(0)
    if not len(whole):
        return ""
    low, high = float(whole.min()), float(whole.max())
    if not high - low > 1e-12 * max(abs(low), abs(high), 1e-290):
        low, high = low - max(abs(low), 1.0) / 10, high + max(abs(high), 1.0) / 10
    shares = {name: np.histogram(group, BINS, (low, high))[0] / len(group) for name, group in values.items()}
    top = max(float(share.max()) for share in shares.values())
    parts = [_steps(share / top, COLOURS[i % len(COLOURS)]) for i, share in enumerate(shares.values())]
    for mark in marks:
        x = WIDTH * (mark - low) / (high - low)
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{HEIGHT}' stroke='#888' stroke-dasharray='4 3'/>")
    keys = " ".join(
        f"<span style='color:{COLOURS[i % len(COLOURS)]}'>■</span> {_text(name)} ({len(group)})"
        for i, (name, group) in enumerate(values.items())
    )
    told = f"Histogram of scores from {low:.4g} to {high:.4g}" + "".join(f", threshold {mark:.4g}" for mark in marks)
    return (
        f"<div style='font-size:12px;margin-top:8px'>{keys}<br><svg width='{WIDTH}' height='{HEIGHT}' role='img' "
        f"aria-label='{told}' viewBox='0 0 {WIDTH} {HEIGHT}'>{''.join(parts)}</svg><br>"
        f"score {low:.4g} … {high:.4g}{''.join(f'; threshold {mark:.4g}' for mark in marks)}</div>"
    )


def _steps(heights: npt.NDArray[np.float64], colour: str) -> str:
    """A line of steps over the whole width, filled lightly."""
    points = [(0.0, 0.0)]
    for i, height in enumerate(heights.tolist()):
        points += [(i / BINS, height), ((i + 1) / BINS, height)]
    points.append((1.0, 0.0))
    drawn = " ".join(f"{WIDTH * x:.1f},{HEIGHT * (1 - 0.96 * y):.1f}" for x, y in points)
    return f"<polygon points='{drawn}' fill='{colour}' fill-opacity='0.25' stroke='{colour}'/>"


def _text(text: str) -> str:
    """Escaped for text and attributes, without what UTF-8 cannot hold."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def interleaved(first: Iterable[Shot], second: Iterable[Shot]) -> list[Shot]:
    """Half of the pictures of each kind, or more where the other kind has fewer."""
    one, two = list(first), list(second)
    half = MOST // 2
    return one[: max(half, MOST - len(two))] + two[: max(half, MOST - len(one))] + one[half:] + two[half:]
