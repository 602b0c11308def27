"""Drawn pictures: the same every time, whatever was drawn before, and different where they should be."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from deltaenergy.benchmarks.drawn import OBJECTS, PER_CLASS, SIDE, STYLES, draw, drawn_images
from deltaenergy.benchmarks.spec import class_list
from deltaenergy.errors import InputError


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=float)


@pytest.mark.parametrize("style", STYLES)
def test_a_picture_depends_on_its_name_alone(style: str) -> None:
    first = draw("fish", style, "test", 3)
    draw("car", style, "test", 0)
    assert first.size == (SIDE, SIDE)
    assert first.mode == "RGB"
    assert np.array_equal(pixels(first), pixels(draw("fish", style, "test", 3)))
    for other in (("fish", style, "test", 4), ("fish", style, "train", 3), ("boat", style, "test", 3)):
        assert not np.array_equal(pixels(first), pixels(draw(*other)))


def test_every_object_shows_a_figure_in_every_style() -> None:
    for label in OBJECTS:
        for style in STYLES:
            # A figure leaves neither a single colour nor an almost even picture.
            assert pixels(draw(label, style, "test", 0)).std() > 8, (label, style)


def test_outlines_are_pen_on_paper_and_noise_is_noisy() -> None:
    outline = pixels(draw("star", "outline", "test", 0)).mean(axis=2)
    assert (outline > 240).mean() > 0.7
    rough = [np.abs(np.diff(pixels(draw("star", style, "test", 0)), axis=1)).mean() for style in ("flat", "noisy")]
    assert rough[1] > 5 * rough[0]


def test_the_data_set_is_balanced_and_labelled() -> None:
    items = drawn_images("test")
    assert len(items) == len(OBJECTS) * len(STYLES) * PER_CLASS["test"]
    assert len({item.id for item in items}) == len(items)
    assert {item.domain for item in items} == set(STYLES)
    assert set(class_list("drawn/closed")) < set(OBJECTS)
    with pytest.raises(InputError, match=r"'tests'.*'test'"):
        drawn_images("tests")
