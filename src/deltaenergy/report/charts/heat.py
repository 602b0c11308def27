"""A heat map whose cells say their numbers: a metric over two parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deltaenergy.report.axes import Format, plain, svg
from deltaenergy.report.html import Markup, tag


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
    # Halved, since the difference of the largest numbers has no place in float64.
    finite = values[np.isfinite(values)] / 2
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    parts = []
    for i, row in enumerate(rows):
        y = top + cell_height * i
        parts.append(tag("text", row, x=left - 6, y=y + cell_height / 2 + 4, class_="tick end"))
        for j in range(len(columns)):
            value = float(values[i, j])
            share = (value / 2 - low) / (high - low) if math.isfinite(value) and high > low else 0.0
            x = left + cell_width * j
            box = {"x": x + 0.5, "y": y + 0.5, "width": cell_width - 1, "height": cell_height - 1}
            parts.append(tag("rect", class_="heat", fill_opacity=0.05 + 0.45 * share, **box))
            text = value_format(value) if math.isfinite(value) else "–"
            parts.append(tag("text", text, x=x + cell_width / 2, y=y + cell_height / 2 + 4, class_="cell middle"))
    bottom = top + cell_height * len(rows)
    for j, column in enumerate(columns):
        parts.append(tag("text", column, x=left + cell_width * (j + 0.5), y=bottom + 16, class_="tick middle"))
    middle = (top + bottom) / 2
    parts.append(tag("text", x_label, x=(left + width - 10) / 2, y=bottom + 34, class_="label middle"))
    turn = f"rotate(-90 12 {middle:.1f})"
    parts.append(tag("text", y_label, x=12, y=middle, class_="label middle", transform=turn))
    return svg(width, height, title, *parts, description=description)
