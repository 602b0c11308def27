"""Charts as inline SVG: axes, curves with their legend, histograms in rows, trade-off scatter.

Colours are CSS classes of the page (`c0` to `c7`, chosen to be told apart by colour-blind readers), so that one
drawing serves light, dark and print. Dashes and marker shapes repeat what the colours say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltaenergy.report.html import Markup, join, tag

Format = Callable[[float], str]

# Wider charts than this take two columns of a page.
WIDE = 450
# A range is divided into bins and ticks, which must differ in float64. One narrower than these, relative to its values
# or at all (subnormal numbers), cannot be divided; values beyond LARGEST would overflow in a difference.
NARROWEST, TINIEST, LARGEST = 1e-12, 1e-290, 1e300
Values = Sequence[float] | npt.NDArray[np.float64]

COLOURS = 8
DASHES = ("", "6 3", "2 2.5", "8 3 2 3")


def is_range(low: float, high: float) -> bool:
    """Whether [low, high] is finite and wide enough to be divided."""
    span = high - low
    return math.isfinite(span) and span > max(TINIEST, NARROWEST * max(abs(low), abs(high)))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not is_range(low, high):
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)) + 1)
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def plain(value: float) -> str:
    """A number as short as it can be said: 0.5, 20, 1e-05."""
    return f"{value:.6g}".replace("-", "−")


def percent(value: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * value:.6g}\u00a0%"


@dataclass(frozen=True)
class Axis:
    """A range of values laid along pixels from `start` to `end` (end < start for an upward axis)."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside are pushed to the edge, so that infinities can be drawn."""
        share = (value - self.low) / (self.high - self.low) if is_range(self.low, self.high) else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def padded(low: float, high: float, share: float = 0.04) -> tuple[float, float]:
    """The range with a little room on both sides; values too close to be told apart get a range around them."""
    low, high = (min(max(-LARGEST, end), LARGEST) for end in (low, high))
    if not is_range(low, high):
        size = max(abs(low), abs(high))
        room = size * 0.1 if size > TINIEST else 1.0
        return low - room, high + room
    room = (high - low) * share
    return low - room, high + room


@dataclass(frozen=True)
class Frame:
    """The plot area inside an SVG: two axes, and where their labels go."""

    x: Axis
    y: Axis
    width: float
    height: float

    @classmethod
    def make(
        cls,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        width: float,
        height: float,
        right: float = 22,
    ) -> Frame:
        """A frame with margins for tick and axis labels."""
        x = Axis(*x_range, start=52, end=width - right)
        y = Axis(*y_range, start=height - 42, end=10)
        return cls(x, y, width, height)

    def draw(
        self,
        x_label: str,
        y_label: str,
        x_format: Format = plain,
        y_format: Format = plain,
        x_ticks: Sequence[float] | None = None,
    ) -> Markup:
        """Grid, ticks and labels."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = []
        for value in nice_ticks(self.y.low, self.y.high):
            y = self.y(value)
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", y_format(value), x=left - 7, y=y + 4, class_="tick end"))
        for value in nice_ticks(self.x.low, self.x.high) if x_ticks is None else x_ticks:
            x = self.x(value)
            parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
            parts.append(tag("text", x_format(value), x=x, y=bottom + 17, class_="tick middle"))
        parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
        middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
        parts.append(tag("text", x_label, x=middle_x, y=bottom + 35, class_="label middle"))
        parts.append(
            tag("text", y_label, x=12, y=middle_y, class_="label middle", transform=f"rotate(-90 12 {middle_y:.1f})")
        )
        return join(parts)


def svg(width: float, height: float, title: str, *content: Markup, description: str = "") -> Markup:
    """A chart as one image for screen readers: its title and description are read in place of its marks."""
    label = f"{title}. {description}" if description else title
    return tag(
        "svg",
        *content,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_="chart wide" if width > WIDE else "chart",
    )


def colour(index: int) -> str:
    """The CSS class of the index-th colour."""
    return f"c{index % COLOURS}"


def dash(index: int) -> str | None:
    """A dash pattern that changes each time the colours begin again, and between neighbours."""
    return DASHES[(index + index // COLOURS) % len(DASHES)] or None


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
    return tag("polygon", points=point_list(corners), class_=css)


def legend_key(index: int) -> Markup:
    """A short line in a curve's colour and dash, for legends and tables in HTML."""
    line = tag("line", x1=1, x2=23, y1=6, y2=6, class_=f"curve {colour(index)}", stroke_dasharray=dash(index))
    return tag("svg", line, viewBox="0 0 24 12", width=24, height=12, aria_hidden="true", class_="key")


def point_list(points: Sequence[tuple[float, float]]) -> str:
    """Points as the `points` attribute of SVG lines and polygons wants them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def extent(groups: Sequence[Values], share: float = 0.06, *, exact: bool = False) -> tuple[float, float]:
    """The range of all finite values, with a little room around it unless `exact`."""
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = np.clip((values.min(), values.max()), -LARGEST, LARGEST).tolist()
    return (low, high) if exact and is_range(low, high) else padded(low, high, share)


@dataclass(frozen=True)
class Curve:
    """A line through points, with a band from `low` to `high` if given."""

    label: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
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
    diagonal: bool = False,
    y_mark: tuple[float, str] | None = None,
) -> Markup:
    """Curves over one pair of axes. `diagonal` draws chance level, `y_mark` a labelled horizontal line."""
    frame = Frame.make(
        x_range or extent([c.x for c in curves], exact=True),
        y_range or extent([part for c in curves for part in (c.y, c.low, c.high) if part is not None]),
        width,
        height,
        22 if y_mark is None else 36,
    )
    parts = [frame.draw(x_label, y_label, x_format, y_format, x_ticks)]
    if diagonal:
        ends = {"x1": frame.x(frame.x.low), "y1": frame.y(frame.y.low), "x2": frame.x.end, "y2": frame.y.end}
        parts.append(tag("line", class_="reference", **ends))
    if y_mark is not None:
        y = frame.y(y_mark[0])
        parts.append(tag("line", x1=frame.x.start, x2=frame.x.end, y1=y, y2=y, class_="mark"))
        parts.append(tag("text", y_mark[1], x=frame.x.end + 5, y=y + 4, class_="note"))
    # The first curve matters most: it is drawn last, on top of the others.
    parts += [_draw_curve(curve, frame) for curve in reversed(curves)]
    return svg(width, height, title, *parts, description=description)


def _draw_curve(curve: Curve, frame: Frame) -> Markup:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(curve.x, curve.y)]
    parts = []
    if curve.low is not None and curve.high is not None:
        upper = [(frame.x(x), frame.y(y)) for x, y in zip(curve.x, curve.high)]
        lower = [(frame.x(x), frame.y(y)) for x, y in zip(curve.x, curve.low)]
        parts.append(
            tag("polygon", points=point_list([*upper, *reversed(lower)]), class_=f"band {colour(curve.index)}")
        )
    parts.append(
        tag(
            "polyline",
            points=point_list(points),
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


@dataclass(frozen=True)
class Point:
    """One dot of a scatter chart."""

    label: str
    x: float
    y: float
    index: int = 0


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
) -> Markup:
    """Dots with their names beside them: the trade-off between two metrics."""
    x_extent, y_extent = extent([[p.x for p in points]], 0.08), extent([[p.y for p in points]], 0.08)
    frame = Frame.make(x_extent, y_extent, width, height)
    parts = [frame.draw(x_label, y_label, x_format, y_format)]
    taken: list[tuple[float, float, float]] = []
    for point in sorted(points, key=lambda p: p.y):
        x, y = frame.x(point.x), frame.y(point.y)
        parts.append(tag("g", tag("title", point.label), marker(x, y, point.index)))
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
