"""Protocols: what counts, which view, and the random view's repeatability."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from deltaenergy.benchmarks.protocol import TrainView, get_protocol, in_train_view
from deltaenergy.errors import InputError
from deltaenergy.models.preprocessing import Preprocessing

if TYPE_CHECKING:
    from deltaenergy import Model


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=np.uint8))


def test_croft_differs_in_every_rule_and_a_wrong_name_is_told() -> None:
    standard, croft = (vars(get_protocol(name)) for name in ("standard", "croft"))
    assert {rule: croft[rule] for rule in croft if croft[rule] == standard[rule]} == {}
    with pytest.raises(InputError, match="Did you mean 'standard'"):
        get_protocol("standart")


def test_the_train_view_of_a_picture_is_always_the_same_and_random_between_pictures() -> None:
    view = TrainView(Preprocessing(resize=32, crop=32))
    first = view(noise(0))
    assert first.shape == (3, 32, 32)
    view(noise(1))
    assert np.array_equal(first, view(noise(0)))
    assert not np.array_equal(first, TrainView(Preprocessing(resize=32, crop=32), seed=1)(noise(0)))
    assert not np.array_equal(first, Preprocessing(resize=32, crop=32)(noise(0)))


def test_the_view_keeps_normalisation_and_changes_the_fingerprint(tiny_clip: Model) -> None:
    behind = in_train_view(tiny_clip)
    assert behind.fingerprint != tiny_clip.fingerprint
    assert behind.preprocessing.mean == tiny_clip.preprocessing.mean
    assert tiny_clip.preprocessing.__class__ is Preprocessing
    white = Image.new("RGB", (50, 50), (255, 255, 255))
    assert np.allclose(behind.preprocessing(white), tiny_clip.preprocessing(white))
