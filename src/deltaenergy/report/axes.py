"""What every chart stands on: round ticks, scales, and a frame with grid and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltaenergy.report.html import Markup, join, tag

Format = Callable[[float], str]

# Wider charts than this take two columns of a page.
WIDE = 450
# A range is divided into bins and ticks, which must differ in float64. One narrower than these, relative to its values
# or at all (subnormal numbers), cannot be divided; values beyond LARGEST would overflow in a difference.
NARROWEST, TINIEST, LARGEST = 1e-12, 1e-290, 1e300


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
