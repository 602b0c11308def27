"""The colours of maps: viridis (van der Walt & Smith, 2015), whose lightness rises evenly from dark blue to yellow.

So the order of its colours is seen by people who do not tell red from green, in grey, and on paper. Nine of its colours
are kept here, with straight lines between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import numpy.typing as npt

VIRIDIS = (
    (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128), (94, 201, 98),
    (173, 220, 48), (253, 231, 37),
)  # fmt: skip
# How much of a map's colour is laid over the picture, which is shown in grey so that its own colours do not mislead.
OPACITY = 0.6


def coloured(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Values from 0 to 1 (…) -> RGB (…, 3)."""
    places = np.linspace(0, 1, len(VIRIDIS))
    table = np.asarray(VIRIDIS, np.float64)
    channels = [np.interp(values, places, table[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def normalised(heatmap: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """From its smallest value, 0, to its largest, 1; all 0 where every value is the same."""
    values = np.asarray(heatmap, np.float64)
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return scaled.astype(np.float32)


def enlarged(heatmap: npt.NDArray[np.floating], size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """The normalised map at (width, height), with smooth steps between its cells."""
    small = Image.fromarray(normalised(heatmap))
    return np.asarray(small.resize(size, Image.Resampling.BICUBIC), np.float32).clip(0, 1)


def laid_over(heatmap: npt.NDArray[np.floating], image: Image.Image, opacity: float = OPACITY) -> Image.Image:
    """The map's colours over the picture in grey."""
    grey = np.asarray(image.convert("L"), np.float64)[..., None]
    colours = coloured(enlarged(heatmap, image.size)).astype(np.float64)
    return Image.fromarray(((1 - opacity) * grey + opacity * colours).round().astype(np.uint8))
