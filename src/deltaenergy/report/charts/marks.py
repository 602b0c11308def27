"""What charts draw with: colours, dashes, markers, and the range of their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deltaenergy.report.axes import LARGEST, is_range, padded
from deltaenergy.report.html import Markup, tag

Values = Sequence[float] | npt.NDArray[np.float64]

COLOURS = 8
DASHES = ("", "6 3", "2 2.5", "8 3 2 3")


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
