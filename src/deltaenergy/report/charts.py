"""Charts as inline SVG: axes, curves with their legend, histograms in rows, trade-off scatter, radar.

Colours are CSS classes of the page (`c0` to `c7`, distinct for colour-blind readers), so one drawing serves light, dark
and print. Dashes and marker shapes repeat what the colours say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.page import figure
from deltaenergy.report.words import percent

Format = Callable[[float], str]

# From this AUROC on, the corner is also drawn enlarged.
NEAR_PERFECT = 0.97
# Wider charts than this take two columns of a page.
WIDE = 450
# A range is divided into bins and ticks, which must differ in float64. One narrower than these, relative to its values
# or at all (subnormal numbers), cannot be divided; values beyond LARGEST would overflow in a difference.
NARROWEST, TINIEST, LARGEST = 1e-12, 1e-290, 1e300
Values = Sequence[float] | npt.NDArray[np.float64]

COLOURS = 8
DASHES = ("", "6 3", "2 2.5", "8 3 2 3")


def can_divide(low: float, high: float) -> bool:
    """Whether [low, high] is finite and wide enough to be divided."""
    span = high - low
    return math.isfinite(span) and span > max(TINIEST, NARROWEST * max(abs(low), abs(high)))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not can_divide(low, high):
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)) + 1)
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def plain(value: float) -> str:
    """A number in its shortest form: 0.5, 20, 1e-05."""
    return f"{value:.6g}".replace("-", "−")


def percent_tick(value: float) -> str:
    return percent(value, None)


@dataclass(frozen=True)
class Axis:
    """A range of values laid along pixels from `start` to `end` (end < start for an upward axis)."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside are clipped to the edge, so infinities can be drawn."""
        share = (value - self.low) / (self.high - self.low) if can_divide(self.low, self.high) else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def padded(low: float, high: float, share: float = 0.04) -> tuple[float, float]:
    """The range with a little room on both sides; nearly equal values get a range around them."""
    low, high = (min(max(-LARGEST, end), LARGEST) for end in (low, high))
    if not can_divide(low, high):
        size = max(abs(low), abs(high))
        room = size * 0.1 if size > TINIEST else 1.0
        return low - room, high + room
    room = (high - low) * share
    return low - room, high + room


@dataclass(frozen=True)
class Scale:
    """What an axis shows: its label, its range and ticks (by default of the data), and how its numbers are printed."""

    label: str
    range: tuple[float, float] | None = None
    format: Format = plain
    ticks: Sequence[float] | None = None


def shares(label: str, low: float = 0, high: float = 1) -> Scale:
    return Scale(label, (low, high), percent_tick)


def _draw_axes(x_scale: Scale, y_scale: Scale, x: Axis, y: Axis) -> Markup:
    left, right, bottom, top = x.start, x.end, y.start, y.end
    parts = []
    for value in y_scale.ticks or nice_ticks(y.low, y.high):
        parts.append(tag("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid"))
        parts.append(tag("text", y_scale.format(value), x=left - 7, y=y(value) + 4, class_="tick end"))
    for value in x_scale.ticks or nice_ticks(x.low, x.high):
        parts.append(tag("line", x1=x(value), x2=x(value), y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", x_scale.format(value), x=x(value), y=bottom + 17, class_="tick middle"))
    parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    parts.append(tag("text", x_scale.label, x=middle_x, y=bottom + 35, class_="label middle"))
    turned = f"rotate(-90 12 {middle_y:.1f})"
    parts.append(tag("text", y_scale.label, x=12, y=middle_y, class_="label middle", transform=turned))
    return join(parts)


def svg(width: float, height: float, title: str, *content: Markup, description: str = "") -> Markup:
    """A chart as one image for screen readers: its title and description are read instead of its marks."""
    label = f"{title}. {description}" if description else title
    css, box = "chart wide" if width > WIDE else "chart", f"0 0 {width:g} {height:g}"
    return tag("svg", *content, viewBox=box, width=width, height=height, role="img", aria_label=label, class_=css)


def colour(index: int) -> str:
    return f"c{index % COLOURS}"


def dash(index: int) -> str | None:
    """A dash pattern that changes when the colours repeat, and between neighbours."""
    return DASHES[(index + index // COLOURS) % len(DASHES)] or None


def marker(x: float, y: float, index: int, size: float = 4.5) -> Markup:
    """A dot whose shape matches its colour: circle, square, diamond, triangle."""
    css, shape, half, reach = f"dot {colour(index)}", index % 4, size * 0.9, size * 1.3
    if shape == 0:
        return tag("circle", cx=x, cy=y, r=size, class_=css)
    if shape == 1:
        return tag("rect", x=x - half, y=y - half, width=2 * half, height=2 * half, class_=css)
    diamond = [(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)]
    triangle = [(x, y - reach), (x + reach, y + size), (x - reach, y + size)]
    return tag("polygon", points=point_list(diamond if shape == 2 else triangle), class_=css)


def point_list(points: Sequence[tuple[float, float]]) -> str:
    """Points in the format of SVG's `points` attribute."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def extent(groups: Sequence[Values], share: float = 0.06, *, exact: bool = False) -> tuple[float, float]:
    """The range of all finite values, with a little room around it unless `exact`."""
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = np.clip((values.min(), values.max()), -LARGEST, LARGEST).tolist()
    return (low, high) if exact and can_divide(low, high) else padded(low, high, share)


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
    x: Scale,
    y: Scale,
    *,
    title: str,
    description: str = "",
    size: tuple[float, float] = (360, 300),
    diagonal: bool = False,
    y_mark: tuple[float, str] | None = None,
) -> Markup:
    """Curves over one pair of axes. `diagonal` draws chance level, `y_mark` a labelled horizontal line."""
    of_x = x.range or extent([c.x for c in curves], exact=True)
    of_y = y.range or extent([part for c in curves for part in (c.y, c.low, c.high) if part is not None])
    across = Axis(*of_x, start=52, end=size[0] - (22 if y_mark is None else 36))
    up = Axis(*of_y, start=size[1] - 42, end=10)
    parts = [_draw_axes(x, y, across, up)]
    if diagonal:
        ends = {"x1": across(across.low), "y1": up(up.low), "x2": across.end, "y2": up.end}
        parts.append(tag("line", class_="reference", **ends))
    if y_mark is not None:
        at = up(y_mark[0])
        parts.append(tag("line", x1=across.start, x2=across.end, y1=at, y2=at, class_="mark"))
        parts.append(tag("text", y_mark[1], x=across.end + 5, y=at + 4, class_="note"))
    # The first curve matters most: it is drawn last, on top of the others.
    parts += [_draw_curve(curve, across, up) for curve in reversed(curves)]
    return svg(*size, title, *parts, description=description)


def _draw_curve(curve: Curve, x: Axis, y: Axis) -> Markup:
    def drawn(values: Values) -> list[tuple[float, float]]:
        return [(x(across), y(up)) for across, up in zip(curve.x, values)]

    points, css, parts = drawn(curve.y), colour(curve.index), []
    if curve.low is not None and curve.high is not None:
        around = [*drawn(curve.high), *reversed(drawn(curve.low))]
        parts.append(tag("polygon", points=point_list(around), class_=f"band {css}"))
    line = {"points": point_list(points), "class_": f"curve {css}", "stroke_dasharray": dash(curve.index)}
    parts.append(tag("polyline", **line))
    if curve.markers:
        parts += [marker(*point, curve.index) for point in points]
    return join(parts)


def legend(curves: Sequence[Curve], said: Mapping[str, str] | None = None) -> Markup:
    """The legend: colour, dash and name of each curve, with its text in `said`."""
    entries = []
    for curve in curves:
        css = f"curve {colour(curve.index)}"
        line = tag("line", x1=1, x2=23, y1=6, y2=6, class_=css, stroke_dasharray=dash(curve.index))
        key = tag("svg", line, viewBox="0 0 24 12", width=24, height=12, aria_hidden="true", class_="key")
        words = tag("span", said[curve.label], class_="figure") if said else None
        entries.append(tag("li", key, tag("span", curve.label, class_="name"), words))
    return tag("ul", entries, class_="legend")


def roc_panel(
    curves: Sequence[Curve],
    closed: str,
    opened: str,
    *,
    heading: str = "",
    areas: Mapping[str, float] | None = None,
    keep: float | None = None,
    more: Child = None,
) -> Markup:
    """ROC curves of the images called `closed` against those called `opened`, with their legend.

    `areas` are the AUROC by name, in the order of the legend; names without a curve are only in the text alternative.
    `keep` marks that share; if the curves are near the corner, it is also drawn enlarged. `more` comes below.
    """
    closed, opened = isolated(closed), isolated(opened)
    said = {name: percent(area) for name, area in (areas or {}).items()}
    chart = curve_chart(
        curves,
        shares(f"share of {opened} kept"),
        shares(f"share of {closed} kept"),
        title=f"ROC curves of {closed} against {opened}",
        description="; ".join(f"{name}: AUROC {text}" for name, text in said.items()),
        size=(360, 330),
        diagonal=True,
        y_mark=None if keep is None else (keep, percent(keep, 0)),
    )
    near = max((areas or {}).values(), default=0.0) >= NEAR_PERFECT
    corner = _corner(curves, keep) if keep is not None and near else None
    ranked = sorted(curves, key=lambda curve: list(said).index(curve.label)) if said else curves
    note = tag("span", "AUROC next to each name", class_="sub") if said else None
    return figure(join(chart, corner, legend(ranked, said), more), join(heading or f"{closed} against {opened}", note))


def _corner(curves: Sequence[Curve], keep: float) -> Markup | None:
    """The upper left corner, enlarged, for curves that are all near it."""
    reach = max(1 - keep, min(float(np.interp(keep, curve.y, curve.x)) for curve in curves))
    side = next((side for side in (0.02, 0.05, 0.1, 0.2) if side >= 1.5 * reach), None)
    if side is None:
        return None
    parts = []
    for curve in curves:
        x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
        enters = float(np.interp(1 - side, y, x))
        if enters >= side:
            continue
        inside = (x <= side) & (y >= 1 - side)
        leaves = max(1 - side, float(np.interp(side, x, y)))
        parts.append(Curve(curve.label, [enters, *x[inside], side], [1 - side, *y[inside], leaves], index=curve.index))
    return curve_chart(
        parts,
        shares("the same, enlarged corner", 0, side),
        shares("", 1 - side, 1),
        title=f"The corner of {percent(side, 0)}, enlarged",
        size=(360, 240),
        y_mark=(keep, percent(keep, 0)),
    )


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
    """One histogram per row over a common axis, each scaled to its own height, with the threshold through all."""
    finite = [np.clip(row.values[np.isfinite(row.values)], -LARGEST, LARGEST) for row in rows]
    if threshold is not None and math.isfinite(threshold):
        threshold = float(np.clip(threshold, -LARGEST, LARGEST))
    # Without the outermost 0.2% of each group, so one outlier does not flatten the rest.
    inner = [np.quantile(values, [0.002, 0.998]) for values in finite if len(values)]
    low, high = extent([*inner, [] if threshold is None else [threshold]], 0.04)
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
        # A side too narrow for its word has none: the other side's word is enough.
        if x - axis.start > 8 * len(below):
            parts.append(tag("text", f"← {below}", x=x - 6, y=top - 7, class_="note end"))
        if axis.end - x > 8 * len(above):
            parts.append(tag("text", f"{above} →", x=x + 6, y=top - 7, class_="note"))
    for position, (row, values) in enumerate(zip(rows, finite)):
        base = top + row_height * (position + 1)
        # The threshold line skips the text between the histograms.
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
    words = tag("tspan", row.label, class_="strong"), f"  {row.note}" if row.note else None
    return join(
        tag("polygon", points=point_list(outline), class_=f"bars {colour(row.index)}"),
        tag("line", x1=axis.start, x2=axis.end, y1=base, y2=base, class_="axis"),
        tag("text", *words, x=axis.start + 2, y=base - height - 5, class_="row"),
    )


def _bin_edges(low: float, high: float, threshold: float | None, bins: int) -> npt.NDArray[np.float64]:
    """About `bins` equal bins over the range; one starts at the threshold, so no bar crosses it."""
    step = (high - low) / bins
    if threshold is None or not math.isfinite(threshold):
        return np.linspace(low, high, bins + 1)
    first, last = math.ceil((threshold - low) / step), math.ceil((high - threshold) / step)
    return threshold + step * np.arange(-first, last + 1, dtype=np.float64)


@dataclass(frozen=True)
class Point:
    """One dot of a scatter chart."""

    label: str
    x: float
    y: float
    index: int = 0


def scatter_chart(
    points: Sequence[Point], x: Scale, y: Scale, *, title: str, size: tuple[float, float] = (560, 360)
) -> Markup:
    """Dots with names: the trade-off between two metrics."""
    across = Axis(*extent([[p.x for p in points]], 0.08), start=52, end=size[0] - 22)
    up = Axis(*extent([[p.y for p in points]], 0.08), start=size[1] - 42, end=10)
    parts = [_draw_axes(x, y, across, up)]
    taken: list[tuple[float, float, float]] = []
    for point in sorted(points, key=lambda p: p.y):
        at_x, at_y = across(point.x), up(point.y)
        parts.append(tag("g", tag("title", point.label), marker(at_x, at_y, point.index)))
        parts.append(_place_label(point.label, at_x, at_y, size[0], up.start, taken))
    return svg(*size, title, *parts)


def _place_label(
    text: str, x: float, y: float, width: float, lowest: float, taken: list[tuple[float, float, float]]
) -> Markup:
    """Place the name right of its dot, or left near the edge; above or below if it would cover another name."""
    length = 6.3 * len(text)
    on_left = x + 8 + length > width
    start = x - 8 - length if on_left else x + 8

    def free(baseline: float) -> bool:
        covers = any(abs(baseline - b) < 12 and start < e and s < start + length for s, e, b in taken)
        return 10 <= baseline <= lowest and not covers

    lines = sorted(range(-8, 9), key=abs)
    baseline = next((y + 4 + 12 * line for line in lines if free(y + 4 + 12 * line)), y + 4)
    taken.append((start, start + length, baseline))
    return tag("text", text, x=x - 8 if on_left else x + 8, y=baseline, class_="row end" if on_left else "row")


def radar_chart(
    axes: Sequence[str], rows: Mapping[str, Sequence[float]], *, title: str, size: tuple[float, float] = (620, 400)
) -> Markup:
    """A radar chart: one closed line per row, axes from 0 (centre) to 1."""
    middle, radius = (size[0] / 2, size[1] / 2), size[1] / 2 - 52
    angles = [2 * math.pi * i / len(axes) - math.pi / 2 for i in range(len(axes))]

    def place(angle: float, share: float) -> tuple[float, float]:
        return middle[0] + share * radius * math.cos(angle), middle[1] + share * radius * math.sin(angle)

    parts = [
        tag("polygon", points=point_list([place(angle, ring) for angle in angles]), class_="grid", fill="none")
        for ring in (0.25, 0.5, 0.75, 1)
    ]
    for angle, label in zip(angles, axes):
        (x, y), (end_x, end_y) = place(angle, 1.08), place(angle, 1)
        side = "middle" if abs(math.cos(angle)) < 0.2 else "end" if math.cos(angle) < 0 else "start"
        parts.append(tag("line", x1=middle[0], y1=middle[1], x2=end_x, y2=end_y, class_="axis"))
        parts.append(tag("text", label, x=x, y=y + 4, class_=f"tick {side}"))
    for index, (label, values) in enumerate(rows.items()):
        points = [place(angle, value) for angle, value in zip(angles, values)]
        line = tag("polygon", points=point_list(points), class_=f"curve {colour(index)}", stroke_dasharray=dash(index))
        marks = [marker(x, y, index, 3) for x, y in points]
        parts.append(tag("g", tag("title", label), line, marks))
    said = "; ".join(f"{label}: " + ", ".join(f"{value:.2f}" for value in values) for label, values in rows.items())
    return svg(*size, title, *parts, description=f"{', '.join(axes)}. {said}")
