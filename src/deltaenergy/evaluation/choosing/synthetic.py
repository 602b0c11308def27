"""Far unknowns made from a user's own pictures: the colours and textures stay, what is shown is gone.

    patch_shuffled     the squares of a 7 × 7 grid in random order        (local texture and colours stay)
    phase_scrambled    F⁻¹(|F(x)| e^{i(arg F(x) + φ)}), φ random, odd     (amplitude spectrum and mean stay)
    texture_tiled      one small square, mirrored and repeated            (one texture stays)

Pure functions of pixels (H, W, 3) and a random generator. `synthetic_unknowns` makes images of them that are drawn
when their turn to be encoded comes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from deltaenergy.data.decode import ImageSource, opened
from deltaenergy.data.items import ImageItem
from deltaenergy.models.preprocessing import Preprocessing

if TYPE_CHECKING:
    from numpy.random import Generator

Pixels = npt.NDArray[np.float64]
# Squares along one side of a shuffled picture: 32 pixels each at CLIP's 224.
SQUARES = 7
# How many times smaller than the picture the square of a tiled texture is, along one side.
TILES = 6
# So many pictures are made into far unknowns, of each kind once, if there are more.
MOST_PICTURES = 200


def patch_shuffled(pixels: Pixels, rng: Generator, squares: int = SQUARES) -> Pixels:
    """The squares in random order. What does not fill a square at the right and lower edge is cut off."""
    side = max(1, min(pixels.shape[:2]) // squares)
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    cut = pixels[: rows * side, : columns * side].reshape(rows, side, columns, side, 3)
    patches = cut.swapaxes(1, 2).reshape(rows * columns, side, side, 3)
    shuffled = patches[rng.permutation(len(patches))].reshape(rows, columns, side, side, 3)
    return shuffled.swapaxes(1, 2).reshape(rows * side, columns * side, 3)


def phase_scrambled(pixels: Pixels, rng: Generator) -> Pixels:
    """Every frequency's phase turned by a random angle, the same for all channels; values may leave 0 … 255.

    The angles are those of a noise picture, so that opposite frequencies turn oppositely and the result is real.
    """
    angles = np.angle(np.fft.fft2(rng.normal(size=pixels.shape[:2])))
    angles[0, 0] = 0.0  # the mean
    spectrum = np.fft.fft2(pixels, axes=(0, 1)) * np.exp(1j * angles)[..., None]
    return np.fft.ifft2(spectrum, axes=(0, 1)).real


def texture_tiled(pixels: Pixels, rng: Generator, tiles: int = TILES) -> Pixels:
    """A square from a random place fills the picture; every second one is mirrored, so that no seams show."""
    height, width = pixels.shape[:2]
    side = max(1, min(height, width) // tiles)
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    square = pixels[top : top + side, left : left + side]
    pair = np.concatenate([square, square[:, ::-1]], axis=1)
    tile = np.concatenate([pair, pair[::-1]], axis=0)
    repeats = (-(-height // (2 * side)), -(-width // (2 * side)), 1)
    return np.tile(tile, repeats)[:height, :width]


KINDS: dict[str, Callable[[Pixels, Generator], Pixels]] = {
    "patch-shuffled": patch_shuffled,
    "phase-scrambled": phase_scrambled,
    "texture tiles": texture_tiled,
}


def synthetic_unknowns(
    items: Sequence[ImageItem], preprocessing: Preprocessing, seed: int = 0, most: int = MOST_PICTURES
) -> tuple[list[ImageItem], npt.NDArray[np.int64]]:
    """One far unknown of each kind for every picture, or for `most` of them; and the position of its picture.

    They are made from what the model sees of a picture, its centre at the model's size.
    """
    chosen = np.arange(len(items))
    if len(items) > most:
        chosen = np.sort(np.random.default_rng([seed, 2]).choice(len(items), most, replace=False))
    made, origin = [], []
    for position in chosen.tolist():
        item = items[position]
        for number, name in enumerate(KINDS):
            draw = functools.partial(_draw, item.source, preprocessing, name, (seed, 3, position, number))
            made.append(ImageItem(f"{item.id} ({name})", draw, item.label))
            origin.append(position)
    return made, np.array(origin, dtype=np.int64)


def _draw(source: ImageSource, preprocessing: Preprocessing, kind: str, seed: Sequence[int]) -> Image.Image:
    with opened(source) as image:
        pixels = np.asarray(preprocessing.frame(image), dtype=np.float64)
    made = KINDS[kind](pixels, np.random.default_rng(seed))
    return Image.fromarray(made.round().clip(0, 255).astype(np.uint8))
