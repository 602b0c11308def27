"""Charts as inline SVG: curves, histograms in rows, trade-off scatter, heat map.

Colours are CSS classes of the page (`c0` to `c7`, chosen to be told apart by colour-blind readers), so that one
drawing serves light, dark and print. Dashes and marker shapes repeat what the colours say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltaenergy.report.axes import Axis, Format, Frame, nice_ticks, padded, plain, svg
from deltaenergy.report.html import Markup, join, tag

COLOURS = 8
DASHES = ("", "6 3", "2 2.5", "8 3 2 3")


def colour(index: int) -> str:
    """The CSS class of the index-th colour."""
    return f"c{index % COLOURS}"


def dash(index: int) -> str | None:
    """A dash pattern that changes each time the colours begin again, and between neighbours."""
    return DASHES[(index + index // COLOURS) % len(DASHES)] or None


@dataclass(frozen=True)
class Curve:
    """A line through points, with a band from `low` to `high` if given."""

    label: str
    x: Sequence[float] | npt.NDArray[np.float64]
    y: Sequence[float] | npt.NDArray[np.float64]
    low: Sequence[float] | npt.NDArray[np.float64] | None = None
    high: Sequence[float] | npt.NDArray[np.float64] | None = None
    index: int = 0
    markers: bool = False


def curve_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    description: str = "",
    width: float = 360,
    height: float = 300,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    x_format: Format = plain,
    y_format: Format = plain,
    x_ticks: Sequence[float] | None = None,
    x_log: bool = False,
    diagonal: bool = False,
    y_mark: tuple[float, str] | None = None,
) -> Markup:
    """Curves over one pair of axes. `diagonal` draws chance level, `y_mark` a labelled horizontal line."""
    frame = Frame.make(
        x_range or _extent([c.x for c in curves], exact=True),
        y_range or _extent([part for c in curves for part in (c.y, c.low, c.high) if part is not None]),
        width,
        height,
        x_log=x_log,
    )
    parts = [frame.draw(x_label, y_label, x_format, y_format, x_ticks)]
    if diagonal:
        ends = {"x1": frame.x(frame.x.low), "y1": frame.y(frame.y.low), "x2": frame.x.end, "y2": frame.y.end}
        parts.append(tag("line", class_="reference", **ends))
    if y_mark is not None:
        y = frame.y(y_mark[0])
        parts.append(tag("line", x1=frame.x.start, x2=frame.x.end, y1=y, y2=y, class_="mark"))
        parts.append(tag("text", y_mark[1], x=frame.x.end - 3, y=y + 13, class_="note end"))
    # The first curve matters most: it is drawn last, on top of the others.
    parts += [_draw_curve(curve, frame) for curve in reversed(curves)]
    return svg(width, height, title, *parts, description=description)


def _draw_curve(curve: Curve, frame: Frame) -> Markup:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(curve.x, curve.y)]
    parts = []
    if curve.low is not None and curve.high is not None:
        upper = [(frame.x(x), frame.y(y)) for x, y in zip(curve.x, curve.high)]
        lower = [(frame.x(x), frame.y(y)) for x, y in zip(curve.x, curve.low)]
        parts.append(tag("polygon", points=_points([*upper, *reversed(lower)]), class_=f"band {colour(curve.index)}"))
    parts.append(
        tag(
            "polyline",
            points=_points(points),
            class_=f"curve {colour(curve.index)}",
            stroke_dasharray=dash(curve.index),
        )
    )
    if curve.markers:
        parts += [marker(x, y, curve.index) for x, y in points]
    return join(parts)


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
    row_height: float = 54,
) -> Markup:
    """One histogram per row over a common axis, each to its own height, with the threshold through all of them."""
    finite = [row.values[np.isfinite(row.values)] for row in rows]
    low, high = _robust_extent(finite, threshold)
    axis = Axis(low, high, start=10, end=width - 10)
    bins = int(np.clip(2 * np.sqrt(max(map(len, finite), default=0)), 14, 40))
    top = 20.0
    height = top + row_height * len(rows) + 40
    bottom = top + row_height * len(rows)
    parts: list[Markup] = []
    if threshold is not None:
        x = axis(threshold)
        parts.append(tag("rect", x=axis.start, y=top, width=x - axis.start, height=bottom - top, class_="rejected"))
        parts.append(tag("line", x1=x, x2=x, y1=top - 16, y2=top, class_="threshold"))
        parts.append(tag("text", f"← {below}", x=x - 6, y=top - 7, class_="note end"))
        parts.append(tag("text", f"{above} →", x=x + 6, y=top - 7, class_="note"))
    for position, (row, values) in enumerate(zip(rows, finite)):
        base = top + row_height * (position + 1)
        # The threshold leaves out the lines of text between the histograms.
        if threshold is not None:
            x = axis(threshold)
            parts.append(tag("line", x1=x, x2=x, y1=base - row_height + 20, y2=base, class_="threshold"))
        parts.append(_draw_histogram(row, values, axis, base, row_height - 20, bins))
    for tick in nice_ticks(low, high, 4):
        x = axis(tick)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", plain(tick), x=x, y=bottom + 17, class_="tick middle"))
    parts.append(tag("text", x_label, x=width / 2, y=bottom + 35, class_="label middle"))
    return svg(width, height, title, *parts, description=description)


def _draw_histogram(
    row: HistogramRow, values: npt.NDArray[np.float64], axis: Axis, base: float, height: float, bins: int
) -> Markup:
    counts, edges = np.histogram(np.clip(values, axis.low, axis.high), bins=bins, range=(axis.low, axis.high))
    tallest = max(int(counts.max(initial=0)), 1)
    # One outline around all bars: few numbers, and no seams between neighbours.
    outline = [(axis(edges[0]), base)]
    for count, left, right in zip(counts, edges[:-1], edges[1:]):
        y = base - height * float(count) / tallest
        outline += [(axis(left), y), (axis(right), y)]
    outline.append((axis(edges[-1]), base))
    return join(
        tag("polygon", points=_points(outline), class_=f"bars {colour(row.index)}"),
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


@dataclass(frozen=True)
class Point:
    """One dot of a scatter chart; intervals are drawn as thin bars."""

    label: str
    x: float
    y: float
    index: int = 0
    x_interval: tuple[float, float] | None = None
    y_interval: tuple[float, float] | None = None


def scatter_chart(
    points: Sequence[Point],
    *,
    title: str,
    x_label: str,
    y_label: str,
    description: str = "",
    width: float = 560,
    height: float = 360,
    x_format: Format = plain,
    y_format: Format = plain,
    labels: bool = True,
) -> Markup:
    """Dots with their names beside them: the trade-off between two metrics."""
    x_extent = _extent([[p.x, *(p.x_interval or ())] for p in points], share=0.08)
    y_extent = _extent([[p.y, *(p.y_interval or ())] for p in points], share=0.08)
    frame = Frame.make(x_extent, y_extent, width, height)
    parts = [frame.draw(x_label, y_label, x_format, y_format)]
    for point in points:
        x, y = frame.x(point.x), frame.y(point.y)
        css = f"whisker {colour(point.index)}"
        if point.x_interval is not None:
            parts.append(
                tag("line", x1=frame.x(point.x_interval[0]), x2=frame.x(point.x_interval[1]), y1=y, y2=y, class_=css)
            )
        if point.y_interval is not None:
            parts.append(
                tag("line", x1=x, x2=x, y1=frame.y(point.y_interval[0]), y2=frame.y(point.y_interval[1]), class_=css)
            )
    taken: list[tuple[float, float, float]] = []
    for point in sorted(points, key=lambda p: p.y):
        x, y = frame.x(point.x), frame.y(point.y)
        parts.append(tag("g", tag("title", point.label), marker(x, y, point.index)))
        if labels:
            parts.append(_place_label(point.label, x, y, frame, taken))
    return svg(width, height, title, *parts, description=description)


def _place_label(text: str, x: float, y: float, frame: Frame, taken: list[tuple[float, float, float]]) -> Markup:
    """The name right of its dot, or left of it near the edge; above or below where it would cover another name."""
    length = 6.3 * len(text)
    on_left = x + 8 + length > frame.width
    start = x - 8 - length if on_left else x + 8

    def free(baseline: float) -> bool:
        covers = any(abs(baseline - b) < 12 and start < e and s < start + length for s, e, b in taken)
        return 10 <= baseline <= frame.y.start and not covers

    lines = sorted(range(-8, 9), key=abs)
    baseline = next((y + 4 + 12 * line for line in lines if free(y + 4 + 12 * line)), y + 4)
    taken.append((start, start + length, baseline))
    return tag("text", text, x=x - 8 if on_left else x + 8, y=baseline, class_="row end" if on_left else "row")


def heat_chart(
    values: npt.NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    description: str = "",
    value_format: Format = plain,
    cell: tuple[float, float] = (54, 26),
) -> Markup:
    """A table of numbers with cells shaded from the smallest to the largest; each cell says its number."""
    left = 30 + 6.6 * max((len(name) for name in rows), default=0)
    top, (cell_width, cell_height) = 10.0, cell
    width = left + cell_width * len(columns) + 10
    height = top + cell_height * len(rows) + 42
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    parts = []
    for i, row in enumerate(rows):
        y = top + cell_height * i
        parts.append(tag("text", row, x=left - 6, y=y + cell_height / 2 + 4, class_="tick end"))
        for j in range(len(columns)):
            value = float(values[i, j])
            share = (value - low) / (high - low) if math.isfinite(value) and high > low else 0.0
            x = left + cell_width * j
            box = {"x": x + 0.5, "y": y + 0.5, "width": cell_width - 1, "height": cell_height - 1}
            parts.append(tag("rect", class_="heat", fill_opacity=0.06 + 0.84 * share, **box))
            text = value_format(value) if math.isfinite(value) else "–"
            css = "tick middle on-dark" if share > 0.55 else "tick middle"
            parts.append(tag("text", text, x=x + cell_width / 2, y=y + cell_height / 2 + 4, class_=css))
    bottom = top + cell_height * len(rows)
    for j, column in enumerate(columns):
        parts.append(tag("text", column, x=left + cell_width * (j + 0.5), y=bottom + 16, class_="tick middle"))
    middle = (top + bottom) / 2
    parts.append(tag("text", x_label, x=(left + width - 10) / 2, y=bottom + 34, class_="label middle"))
    turn = f"rotate(-90 12 {middle:.1f})"
    parts.append(tag("text", y_label, x=12, y=middle, class_="label middle", transform=turn))
    return svg(width, height, title, *parts, description=description)


def marker(x: float, y: float, index: int, size: float = 4.5) -> Markup:
    """A dot whose shape goes with its colour: circle, square, diamond, triangle."""
    css = f"dot {colour(index)}"
    shape = index % 4
    if shape == 0:
        return tag("circle", cx=x, cy=y, r=size, class_=css)
    if shape == 1:
        return tag("rect", x=x - size * 0.9, y=y - size * 0.9, width=size * 1.8, height=size * 1.8, class_=css)
    reach = size * 1.3
    if shape == 2:
        corners = [(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)]
    else:
        corners = [(x, y - reach), (x + reach, y + size), (x - reach, y + size)]
    return tag("polygon", points=_points(corners), class_=css)


def legend_key(index: int) -> Markup:
    """A short line in a curve's colour and dash, for legends and tables in HTML."""
    line = tag("line", x1=1, x2=23, y1=6, y2=6, class_=f"curve {colour(index)}", stroke_dasharray=dash(index))
    return tag("svg", line, viewBox="0 0 24 12", width=24, height=12, aria_hidden="true", class_="key")


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _extent(
    groups: Sequence[Sequence[float] | npt.NDArray[np.float64]], share: float = 0.06, *, exact: bool = False
) -> tuple[float, float]:
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if exact and high > low else padded(low, high, share)


def _robust_extent(groups: Sequence[npt.NDArray[np.float64]], threshold: float | None) -> tuple[float, float]:
    """The range that holds all but the outermost 0.2 % of each group: one wild score must not flatten the rest."""
    bounds = [bound for group in groups if len(group) for bound in np.quantile(group, [0.002, 0.998])]
    if threshold is not None and math.isfinite(threshold):
        bounds.append(threshold)
    return padded(float(min(bounds)), float(max(bounds))) if bounds else (0.0, 1.0)
