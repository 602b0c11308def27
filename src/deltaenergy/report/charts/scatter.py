"""Named dots: the trade-off between two metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltaenergy.report.axes import Format, Frame, plain, svg
from deltaenergy.report.charts.marks import extent, marker
from deltaenergy.report.html import Markup, tag


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
