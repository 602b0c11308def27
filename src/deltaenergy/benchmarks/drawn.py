"""Images that the package draws itself: sixteen objects in four styles, so a benchmark runs anywhere.

Objects are polygons in the square [−1, 1]², turned, scaled, sheared and shifted at random. The styles are covariate
shift: `flat` (one colour on a pale ground), `outline` (pen on paper), `textured` (patterns on patterns) and `noisy`
(shaded, blurred, with sensor noise). Half the objects are closed classes, the others an open set; some open objects
resemble a closed one (umbrella and mushroom, tent and house). Every image depends only on its class, style, split and
number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError, did_you_mean

STYLES = ("flat", "outline", "textured", "noisy")
# Images of each object in each style.
PER_CLASS = {"train": 16, "test": 20}
SIDE = 96
_OVERSAMPLING = 2

Point = tuple[float, float]
# A polygon and whether it is added to the figure (True) or cut out of it (False).
Part = tuple[bool, list[Point]]
Array = npt.NDArray[np.float64]


def _disc(x: float, y: float, radius: float, height: float | None = None, *, upper_half: bool = False) -> list[Point]:
    angles = [math.radians(a) for a in range(180 if upper_half else 0, 361, 10)]
    tall = radius if height is None else height
    return [(x + radius * math.cos(a), y + tall * math.sin(a)) for a in angles]


def _box(left: float, top: float, right: float, bottom: float) -> list[Point]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _star() -> list[Part]:
    corners = [(1.0 if i % 2 == 0 else 0.42, math.radians(36 * i - 90)) for i in range(10)]
    return [(True, [(r * math.cos(a), r * math.sin(a)) for r, a in corners])]


def _heart() -> list[Part]:
    turns = [math.radians(a) for a in range(0, 360, 8)]
    x = [math.sin(t) ** 3 for t in turns]
    y = [-(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16 for t in turns]
    return [(True, list(zip(x, y)))]


def _flower() -> list[Part]:
    petals = [math.radians(60 * i) for i in range(6)]
    return [*((True, _disc(0.6 * math.cos(a), 0.6 * math.sin(a), 0.36)) for a in petals), (False, _disc(0, 0, 0.2))]


OBJECTS: dict[str, Callable[[], list[Part]]] = {
    "star": _star,
    "heart": _heart,
    "house": lambda: [
        (True, _box(-0.7, -0.1, 0.7, 0.9)),
        (True, [(-0.95, -0.1), (0, -0.95), (0.95, -0.1)]),
        (False, _box(-0.18, 0.35, 0.18, 0.9)),
    ],
    "tree": lambda: [
        (True, _box(-0.13, 0.4, 0.13, 1.0)),
        (True, [(-0.75, 0.5), (0, -0.35), (0.75, 0.5)]),
        (True, [(-0.55, -0.05), (0, -1.0), (0.55, -0.05)]),
    ],
    "fish": lambda: [
        (True, _disc(-0.2, 0, 0.72, 0.45)),
        (True, [(0.35, 0), (1.0, -0.5), (1.0, 0.5)]),
        (False, _disc(-0.6, -0.1, 0.09)),
    ],
    "car": lambda: [
        (True, _box(-1.0, -0.05, 1.0, 0.45)),
        (True, [(-0.6, -0.05), (-0.35, -0.55), (0.35, -0.55), (0.65, -0.05)]),
        (True, _disc(-0.55, 0.45, 0.27)),
        (True, _disc(0.55, 0.45, 0.27)),
        (False, _disc(-0.55, 0.45, 0.1)),
        (False, _disc(0.55, 0.45, 0.1)),
    ],
    "mushroom": lambda: [(True, _disc(0, 0, 0.95, 0.85, upper_half=True)), (True, _box(-0.27, 0, 0.27, 0.9))],
    "crown": lambda: [
        (True, [(-0.95, -0.6), (-0.45, 0.05), (0, -0.8), (0.45, 0.05), (0.95, -0.6), (0.8, 0.7), (-0.8, 0.7)])
    ],
    "cup": lambda: [
        (True, _disc(0.6, 0, 0.42)),
        (False, _disc(0.6, 0, 0.24)),
        (True, [(-0.75, -0.7), (0.5, -0.7), (0.35, 0.8), (-0.6, 0.8)]),
    ],
    "moon": lambda: [(True, _disc(0, 0, 0.95)), (False, _disc(0.42, -0.1, 0.8))],
    "arrow": lambda: [(True, _box(-1.0, -0.2, 0.2, 0.2)), (True, [(0.1, -0.65), (1.0, 0), (0.1, 0.65)])],
    "flower": _flower,
    "boat": lambda: [
        (True, [(-1.0, 0.4), (1.0, 0.4), (0.65, 0.9), (-0.65, 0.9)]),
        (True, _box(-0.05, -0.9, 0.05, 0.4)),
        (True, [(0.12, -0.85), (0.85, 0.25), (0.12, 0.25)]),
    ],
    "key": lambda: [
        (True, _disc(-0.6, 0, 0.4)),
        (False, _disc(-0.6, 0, 0.2)),
        (True, _box(-0.25, -0.1, 1.0, 0.1)),
        (True, _box(0.6, 0.1, 0.72, 0.4)),
        (True, _box(0.85, 0.1, 0.97, 0.4)),
    ],
    "umbrella": lambda: [
        (True, _disc(0, 0, 0.95, 0.85, upper_half=True)),
        (True, _box(-0.06, 0, 0.06, 0.85)),
        (True, _box(-0.06, 0.75, 0.3, 0.87)),
    ],
    "tent": lambda: [(True, [(-1.0, 0.8), (0, -0.8), (1.0, 0.8)]), (False, [(-0.25, 0.8), (0, 0.0), (0.25, 0.8)])],
}


def draw(label: str, style: str, split: str, number: int) -> Image.Image:
    """One image, 96 × 96."""
    seed = hashlib.sha256(f"{label}/{style}/{split}/{number}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
    return _PAINTERS[style](_figure(label, rng), rng)


@dataclass(frozen=True, slots=True)
class Drawing:
    """An image that is drawn on demand: an image source like a file."""

    label: str
    style: str
    split: str
    number: int
    # For the feature store: drawings change only with this module.
    stamp: str = "drawing 1"

    def __call__(self) -> Image.Image:
        """Draw it."""
        return draw(self.label, self.style, self.split, self.number)


def drawn_images(split: str) -> list[ImageItem]:
    """The drawn dataset: every object in every style, labelled by object, with the style as its domain."""
    if split not in PER_CLASS:
        raise InputError(f"The drawn dataset has no split {split!r}.{did_you_mean(split, PER_CLASS)}")
    return [
        ImageItem(f"drawn/{split}/{style}/{label}/{number:03d}", Drawing(label, style, split, number), label, style)
        for style in STYLES
        for label in OBJECTS
        for number in range(PER_CLASS[split])
    ]


def _figure(label: str, rng: np.random.Generator) -> Image.Image:
    """The object as a mask (mode L) after a random affine map."""
    size = SIDE * _OVERSAMPLING
    angle, shear = math.radians(rng.uniform(-25, 25)), rng.uniform(-0.2, 0.2)
    cosine, sine = math.cos(angle), math.sin(angle)
    width, height = rng.uniform(0.24, 0.36, 2) * size
    flip = rng.choice([-1, 1])
    cx, cy = (0.5 + rng.uniform(-0.1, 0.1, 2)) * size
    mask = Image.new("L", (size, size), 0)
    pen = ImageDraw.Draw(mask)
    for added, polygon in OBJECTS[label]():
        points = []
        for x, y in polygon:
            u, v = flip * (x + shear * y) * width, y * height
            points.append((cx + u * cosine - v * sine, cy + u * sine + v * cosine))
        pen.polygon(points, fill=255 if added else 0)
    return mask.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _flat(mask: Image.Image, rng: np.random.Generator) -> Image.Image:
    return Image.composite(_plain(rng.uniform(20, 150, 3)), _plain(rng.uniform(200, 255, 3)), mask)


def _outline(mask: Image.Image, rng: np.random.Generator) -> Image.Image:
    inner = mask.filter(ImageFilter.MinFilter(int(rng.choice([3, 5]))))
    ink, paper = _plain(rng.uniform(0, 70, 1).repeat(3)), _plain([252, 252, 248])
    return Image.composite(ink, paper, ImageChops.difference(mask, inner))


def _textured(mask: Image.Image, rng: np.random.Generator) -> Image.Image:
    return Image.composite(_pattern(rng, dark=True), _pattern(rng, dark=False), mask)


def _noisy(mask: Image.Image, rng: np.random.Generator) -> Image.Image:
    x, y = np.meshgrid(np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE))
    angle = rng.uniform(0, 2 * math.pi)
    light = (1 + 0.35 * (x * math.cos(angle) + y * math.sin(angle)))[..., None]
    inside = np.asarray(mask.filter(ImageFilter.GaussianBlur(1.5)), float)[..., None] / 255
    picture = light * (inside * rng.uniform(30, 150, 3) + (1 - inside) * rng.uniform(110, 220, 3))
    return _image(picture + rng.normal(0, 22, (SIDE, SIDE, 3)))


def _pattern(rng: np.random.Generator, *, dark: bool) -> Image.Image:
    """Stripes or spots in two colours, both dark or both light."""
    x, y = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    angle, period = rng.uniform(0, math.pi), rng.uniform(6, 14)
    u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    wave = np.sin(2 * math.pi * u / period)
    if rng.random() < 0.5:
        wave = wave * np.sin(2 * math.pi * v / period)
    low, high = (20, 140) if dark else (150, 255)
    one, two = rng.uniform(low, high, 3), rng.uniform(low, high, 3)
    return _image(np.where(wave[..., None] > 0, one, two))


def _plain(colour: Any) -> Image.Image:
    red, green, blue = (round(float(value)) for value in colour)
    return Image.new("RGB", (SIDE, SIDE), (red, green, blue))


def _image(pixels: Array) -> Image.Image:
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


_PAINTERS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "flat": _flat,
    "outline": _outline,
    "textured": _textured,
    "noisy": _noisy,
}
