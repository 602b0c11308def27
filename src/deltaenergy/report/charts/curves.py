"""Curves over one pair of axes: ROC curves, ablations with their bands, theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltaenergy.report.axes import Format, Frame, plain, svg
from deltaenergy.report.charts.marks import Values, colour, dash, extent, marker, point_list
from deltaenergy.report.html import Markup, join, tag


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
