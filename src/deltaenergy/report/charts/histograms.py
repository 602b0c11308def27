"""Histograms in rows over a common axis: how the scores of several groups lie to each other and to a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltaenergy.report.axes import LARGEST, Axis, nice_ticks, padded, plain, svg
from deltaenergy.report.charts.marks import colour, point_list
from deltaenergy.report.html import Markup, join, tag


@dataclass(frozen=True)
class HistogramRow:
    """One group of values in a histogram chart."""

    label: str
    values: npt.NDArray[np.float64]
    index: int
    note: str = ""


def histogram_chart(
    rows: Sequence[HistogramRow],
    *,
    title: str,
    x_label: str,
    threshold: float | None = None,
    below: str = "rejected",
    above: str = "kept",
    description: str = "",
    width: float = 360,
) -> Markup:
    """One histogram per row over a common axis, each to its own height, with the threshold through all of them."""
    finite = [np.clip(row.values[np.isfinite(row.values)], -LARGEST, LARGEST) for row in rows]
    if threshold is not None and math.isfinite(threshold):
        threshold = float(np.clip(threshold, -LARGEST, LARGEST))
    low, high = _robust_extent(finite, threshold)
    axis = Axis(low, high, start=10, end=width - 10)
    edges = _bin_edges(low, high, threshold, bins=int(np.clip(2 * np.sqrt(max(map(len, finite), default=0)), 14, 40)))
    # Few rows may be tall; many must not make the chart longer than a screen.
    row_height = min(96.0, max(54.0, 230 / max(len(rows), 1)))
    top = 20.0
    height = top + row_height * len(rows) + 40
    bottom = top + row_height * len(rows)
    parts: list[Markup] = []
    if threshold is not None:
        x = axis(threshold)
        parts.append(tag("rect", x=axis.start, y=top, width=x - axis.start, height=bottom - top, class_="rejected"))
        parts.append(tag("line", x1=x, x2=x, y1=top - 16, y2=top, class_="threshold"))
        # A side too narrow for its word goes without: the other side's says as much.
        if x - axis.start > 8 * len(below):
            parts.append(tag("text", f"← {below}", x=x - 6, y=top - 7, class_="note end"))
        if axis.end - x > 8 * len(above):
            parts.append(tag("text", f"{above} →", x=x + 6, y=top - 7, class_="note"))
    for position, (row, values) in enumerate(zip(rows, finite)):
        base = top + row_height * (position + 1)
        # The threshold leaves out the lines of text between the histograms.
        if threshold is not None:
            x = axis(threshold)
            parts.append(tag("line", x1=x, x2=x, y1=base - row_height + 20, y2=base, class_="threshold"))
        parts.append(_draw_histogram(row, values, axis, base, row_height - 20, edges))
    for tick in nice_ticks(low, high, 4):
        x = axis(tick)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", plain(tick), x=x, y=bottom + 17, class_="tick middle"))
    parts.append(tag("text", x_label, x=width / 2, y=bottom + 35, class_="label middle"))
    return svg(width, height, title, *parts, description=description)


def _draw_histogram(
    row: HistogramRow,
    values: npt.NDArray[np.float64],
    axis: Axis,
    base: float,
    height: float,
    edges: npt.NDArray[np.float64],
) -> Markup:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
    tallest = max(int(counts.max(initial=0)), 1)
    # One outline around all bars: few numbers, and no seams between neighbours.
    outline = [(axis(edges[0]), base)]
    for count, left, right in zip(counts, edges[:-1], edges[1:]):
        y = base - height * float(count) / tallest
        outline += [(axis(left), y), (axis(right), y)]
    outline.append((axis(edges[-1]), base))
    return join(
        tag("polygon", points=point_list(outline), class_=f"bars {colour(row.index)}"),
        tag("line", x1=axis.start, x2=axis.end, y1=base, y2=base, class_="axis"),
        tag(
            "text",
            tag("tspan", row.label, class_="strong"),
            f"  {row.note}" if row.note else None,
            x=axis.start + 2,
            y=base - height - 5,
            class_="row",
        ),
    )


def _bin_edges(low: float, high: float, threshold: float | None, bins: int) -> npt.NDArray[np.float64]:
    """About `bins` equal bins over the range, one of which begins at the threshold, so that no bar stands across it."""
    step = (high - low) / bins
    if threshold is None or not math.isfinite(threshold):
        return np.linspace(low, high, bins + 1)
    first, last = math.ceil((threshold - low) / step), math.ceil((high - threshold) / step)
    return threshold + step * np.arange(-first, last + 1, dtype=np.float64)


def _robust_extent(groups: Sequence[npt.NDArray[np.float64]], threshold: float | None) -> tuple[float, float]:
    """The range that holds all but the outermost 0.2 % of each group: one wild score must not flatten the rest."""
    bounds = [bound for group in groups if len(group) for bound in np.quantile(group, [0.002, 0.998])]
    if threshold is not None and math.isfinite(threshold):
        bounds.append(threshold)
    return padded(float(min(bounds)), float(max(bounds))) if bounds else (0.0, 1.0)
