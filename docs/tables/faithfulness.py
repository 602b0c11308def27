"""How faithful a heatmap is: deletion and insertion curves (Petsiuk et al., RISE, BMVC 2018) and the pointing game
(Zhang et al., IJCV 2018), on images whose object was pasted at a known place.

Deletion covers the cells of the image from the heatmap's largest to its smallest and averages y over the steps: lower
is better. Insertion uncovers them in the same order on a covered image: higher is better. The pointing game checks
whether the heatmap's largest cell is on the object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

Array = npt.NDArray[np.float64]
ValuesOf = Callable[[torch.Tensor], torch.Tensor]
# Cells per side in which images are covered; steps from the whole image to nothing.
CELLS, STEPS = 14, 7


@dataclass(frozen=True)
class Pasted:
    """An image, the name of its object, and where that is: left, top, right, bottom as shares of the side."""

    image: Image.Image
    name: str
    box: tuple[float, float, float, float]


def paste(
    thing: Image.Image, ground: Image.Image, name: str, side: int, share: float, rng: np.random.Generator
) -> Pasted:
    """A square image of `side` pixels: `thing`, with `share` of its side, anywhere on `ground`."""
    small = round(side * share)
    left, top = (int(rng.integers(0, side - small + 1)) for _ in range(2))
    whole = central_square(ground, side)
    whole.paste(central_square(thing, small), (left, top))
    return Pasted(whole, name, (left / side, top / side, (left + small) / side, (top + small) / side))


def central_square(image: Image.Image, side: int) -> Image.Image:
    """The middle of an image, `side` pixels wide and high."""
    least = min(image.size)
    left, top = (image.width - least) // 2, (image.height - least) // 2
    return image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC, (left, top, left + least, top + least))


def points_at(heatmap: Array, box: tuple[float, float, float, float]) -> bool:
    """Whether the centre of the heatmap's largest cell is in the box."""
    row, column = np.unravel_index(int(np.argmax(heatmap)), heatmap.shape)
    x, y = (column + 0.5) / heatmap.shape[1], (row + 0.5) / heatmap.shape[0]
    return bool(box[0] <= x < box[2] and box[1] <= y < box[3])


def curves(values_of: ValuesOf, pixels: torch.Tensor, heatmap: Array, fill: float = 0.0) -> tuple[Array, Array]:
    """Deletion and insertion: y after 0, 1, … `STEPS` equal parts of the cells were covered, or uncovered."""
    order = np.argsort(-resampled(heatmap, CELLS).ravel(), kind="stable")
    rank = np.empty(CELLS * CELLS, np.int64)
    rank[order] = np.arange(len(order))
    rows, columns = (np.arange(side) * CELLS // side for side in pixels.shape[1:])
    of_pixel = torch.from_numpy(rank.reshape(CELLS, CELLS)[np.ix_(rows, columns)])
    blank = torch.full_like(pixels, fill)
    done = [round(step * CELLS * CELLS / STEPS) for step in range(1, STEPS)]
    deleted = [torch.where(of_pixel < n, blank, pixels) for n in done]
    inserted = [torch.where(of_pixel < n, pixels, blank) for n in done]
    # The ends are the same for every heatmap: an encoder with a cache encodes them once.
    whole, nothing = values_of(torch.stack([pixels, blank])).double().numpy()
    between = values_of(torch.stack([*deleted, *inserted])).double().numpy()
    return np.array([whole, *between[: len(done)], nothing]), np.array([nothing, *between[len(done) :], whole])


def resampled(heatmap: Array, cells: int) -> Array:
    """The heatmap resampled to another number of cells."""
    small = Image.fromarray(np.asarray(heatmap, np.float32))
    return np.asarray(small.resize((cells, cells), Image.Resampling.BILINEAR), np.float64)


def area(curve: Array) -> float:
    """The mean height of a curve, by trapezia."""
    return float((curve[1:] + curve[:-1]).mean() / 2)


def interval(values: Array, seed: int = 0) -> tuple[float, float, float]:
    """Mean, and a 95% bootstrap interval over images."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (2000, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)
