"""Verdicts and evaluations in a notebook: images as HTML, and plots if matplotlib is installed.

Images are embedded as small JPEGs. No script runs, and nothing is fetched.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.items import ImageItem, square_jpeg
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

# Images per cell, their size on screen, and the size of the data, for dense screens.
MOST, SIDE, DATA_SIDE, QUALITY = 12, 96, 192, 75
# Distinct for colour-blind readers (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
LINE = "#444444"


@dataclass(frozen=True)
class Shot:
    """An image with text below it; `known` sets the colour."""

    item: ImageItem
    lines: tuple[str, ...]
    known: bool


def pictures_html(shots: Sequence[Shot]) -> str:
    """The first readable images; empty if there are none."""
    cards: list[str] = []
    for shot in shots[: 4 * MOST]:  # if the first have no file, the others have none either
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
    """Half of the images of each kind, or more if the other kind has fewer."""
    one, two = list(first), list(second)
    half = MOST // 2
    return one[: max(half, MOST - len(two))] + two[: max(half, MOST - len(one))] + one[half:] + two[half:]


def axes(ax: Any = None) -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InputError(
            "Figures need matplotlib, which is not installed: pip install matplotlib. `write_report` makes a page "
            "with figures without it."
        ) from None
    return pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1] if ax is None else ax


def score_histogram(
    groups: Mapping[str, npt.NDArray[np.float64]], threshold: float | None, score: str, ax: Any = None
) -> Any:
    """Histograms of several groups of scores on common bins, with the threshold."""
    ax = axes(ax)
    finite = {name: values[np.isfinite(values)] for name, values in groups.items()}
    everything = np.concatenate([np.zeros(0), *finite.values()])
    if len(everything):
        edges = np.histogram_bin_edges(everything, bins=min(40, max(5, int(np.sqrt(len(everything)) * 2))))
        for (name, values), colour in zip(finite.items(), cycle(COLOURS)):
            ax.hist(values, edges, alpha=0.6, color=colour, label=f"{name} ({len(values)})")
    if threshold is not None:
        ax.axvline(threshold, color=LINE, linestyle="--", label=f"threshold {threshold:.4g}")
    ax.set_xlabel(f"{score}, larger = more like the known classes")
    ax.set_ylabel("images")
    ax.legend(frameon=False)
    return ax


def roc_curves(curves: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]], ax: Any = None) -> Any:
    """Curves (false positive rate, true positive rate) by name."""
    ax = axes(ax)
    for name, (false_positives, true_positives) in curves.items():
        ax.plot(false_positives, true_positives, label=name)
    ax.plot([0, 1], [0, 1], color=LINE, linestyle=":", linewidth=1)
    ax.set_xlabel("unknown images kept")
    ax.set_ylabel("known images kept")
    ax.set_aspect("equal")
    ax.legend(frameon=False, loc="lower right")
    return ax
