"""Far unknowns made of pictures: what must stay of a picture stays, by NumPy's own FFT and by sorting its pieces."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from deltaenergy.data.decode import open_image
from deltaenergy.data.items import ImageItem
from deltaenergy.evaluation.choosing.synthetic import (
    KINDS,
    patch_shuffled,
    phase_scrambled,
    synthetic_unknowns,
    texture_tiled,
)
from deltaenergy.models.preprocessing import Preprocessing

sides = st.integers(1, 40)
seeds = st.integers(0, 2**32)


def picture(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 255, (height, width, 3))


def pieces(pixels: np.ndarray, side: int) -> Counter[bytes]:
    """How often each square of a grid occurs, cut out one by one."""
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    return Counter(
        pixels[i * side : (i + 1) * side, j * side : (j + 1) * side].tobytes()
        for i in range(rows)
        for j in range(columns)
    )


@given(sides, sides, seeds)
def test_shuffling_keeps_every_square(height: int, width: int, seed: int) -> None:
    pixels = picture(height, width, seed)
    shuffled = patch_shuffled(pixels, np.random.default_rng(seed))
    side = max(1, min(height, width) // 7)
    assert shuffled.shape == (height // side * side, width // side * side, 3)
    assert pieces(shuffled, side) == pieces(pixels, side)


def test_shuffling_moves_most_squares() -> None:
    pixels = picture(224, 224, 0)
    shuffled = patch_shuffled(pixels, np.random.default_rng(0))
    same = sum(
        np.array_equal(shuffled[i : i + 32, j : j + 32], pixels[i : i + 32, j : j + 32])
        for i in range(0, 224, 32)
        for j in range(0, 224, 32)
    )
    assert same < 10  # of 49; one on average


@given(sides, sides, seeds)
def test_scrambling_keeps_amplitudes_and_mean(height: int, width: int, seed: int) -> None:
    pixels = picture(height, width, seed)
    scrambled = phase_scrambled(pixels, np.random.default_rng(seed))
    assert scrambled.shape == pixels.shape
    for channel in range(3):
        before, after = np.fft.fft2(pixels[..., channel]), np.fft.fft2(scrambled[..., channel])
        np.testing.assert_allclose(np.abs(after), np.abs(before), atol=1e-6)
    np.testing.assert_allclose(scrambled.mean(axis=(0, 1)), pixels.mean(axis=(0, 1)), atol=1e-9)


def test_scrambling_leaves_nothing_in_its_place() -> None:
    """A white square on black: after scrambling, its place is no brighter than the rest by more than chance."""
    pixels = np.zeros((64, 64, 3))
    pixels[20:30, 20:30] = 255.0
    correlations = [
        np.corrcoef(pixels.ravel(), phase_scrambled(pixels, np.random.default_rng(seed)).ravel())[0, 1]
        for seed in range(20)
    ]
    assert abs(np.mean(correlations)) < 0.15
    # All channels are scrambled alike: grey stays grey.
    grey = phase_scrambled(pixels, np.random.default_rng(0))
    np.testing.assert_allclose(grey[..., 0], grey[..., 2], atol=1e-9)


@given(sides, sides, seeds)
def test_tiles_are_one_square_of_the_picture_mirrored(height: int, width: int, seed: int) -> None:
    pixels = picture(height, width, seed)
    tiled = texture_tiled(pixels, np.random.default_rng(seed))
    assert tiled.shape == pixels.shape
    side = max(1, min(height, width) // 6)
    square = tiled[:side, :side]
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (side, side), axis=(0, 1))
    assert (windows == square.transpose(2, 0, 1)).all(axis=(2, 3, 4)).any()
    # Each pixel is the square's, reflected at every border: position p within a pair counts up, then down.
    up_and_down = np.concatenate([np.arange(side), np.arange(side)[::-1]])
    rows, columns = up_and_down[np.arange(height) % (2 * side)], up_and_down[np.arange(width) % (2 * side)]
    np.testing.assert_array_equal(tiled, square[np.ix_(rows, columns)])


def items(count: int) -> list[ImageItem]:
    return [
        ImageItem(f"{i}.png", Image.fromarray(picture(40, 60, i).astype(np.uint8)), f"class {i % 2}")
        for i in range(count)
    ]


def test_unknowns_are_drawn_by_seed_from_what_the_model_sees() -> None:
    preprocessing = Preprocessing(resize=28, crop=28)
    made, origin = synthetic_unknowns(items(3), preprocessing, seed=1)
    assert origin.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({item.id for item in made}) == 9
    assert [item.label for item in made[::3]] == ["class 0", "class 1", "class 0"]
    again, _ = synthetic_unknowns(items(3), preprocessing, seed=1)
    other, _ = synthetic_unknowns(items(3), preprocessing, seed=2)
    for one, same, differs in zip(made, again, other):
        first = open_image(one.source)
        assert first.size == (28, 28)
        assert first.tobytes() == open_image(same.source).tobytes()
        assert first.tobytes() != open_image(differs.source).tobytes()
    # The shuffled one holds the squares of the framed picture.
    framed = np.asarray(preprocessing.frame(open_image(items(3)[0].source)))
    assert pieces(np.asarray(open_image(made[0].source)), 4) == pieces(framed, 4)


def test_of_many_pictures_some_are_drawn() -> None:
    made, origin = synthetic_unknowns(items(10), Preprocessing(resize=28, crop=28), seed=0, most=4)
    assert len(made) == 4 * len(KINDS)
    assert len(set(origin.tolist())) == 4
    np.testing.assert_array_equal(origin, np.sort(origin))
    assert set(origin.tolist()) != set(synthetic_unknowns(items(10), Preprocessing(), seed=3, most=4)[1].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_one_colour_stays_one(kind: str) -> None:
    flat = np.full((30, 30, 3), 77.0)
    np.testing.assert_allclose(KINDS[kind](flat, np.random.default_rng(0)), 77.0)
