"""An explanation's overlay, file, words and notebook view; and colours that everyone can put in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation import Explanation
from deltaenergy.explanation.explanation import coloured, enlarged, normalised
from deltaenergy.models.preprocessing import Preprocessing


def explanation(**changes: Any) -> Explanation:
    heatmap = np.zeros((7, 7), np.float32)
    heatmap[1, 5] = 2
    fields: dict[str, Any] = {
        "id": "photos/<b>dog's.jpg",
        "label": "dog & cat",
        "confidence": 0.9,
        "verdict": None,
        "method": "grad-cam",
        "target": "dog & cat",
        "value": 0.25,
        "heatmap": heatmap,
        "image": Image.new("RGB", (224, 224), (200, 30, 30)),
        "similarities": np.array([0.25], np.float32),
        "features": np.ones(4, np.float32),
    }
    return Explanation(**{**fields, **changes})


def lightness(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """L* of CIELAB, from sRGB."""
    linear = np.where(rgb / 255 <= 0.04045, rgb / 255 / 12.92, ((rgb / 255 + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


# Viénot, Brettel & Mollon (1999): linear RGB as dichromats see it.
DICHROMATS = {
    "protanopia": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deuteranopia": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


def test_colours_rise_in_lightness_for_everyone() -> None:
    colours = coloured(np.linspace(0, 1, 65)).astype(float)
    assert (np.diff(lightness(colours)) > 0.5).all()
    linear = (colours / 255) ** 2.2
    for name, matrix in DICHROMATS.items():
        seen = 255 * (linear @ np.array(matrix).T).clip(0, 1) ** (1 / 2.2)
        assert (np.diff(lightness(seen)) > 0.3).all(), name


def test_colours_are_viridis_where_they_are_kept() -> None:
    assert coloured(np.array([0.0, 0.5, 1.0])).tolist() == [[68, 1, 84], [33, 145, 140], [253, 231, 37]]
    between = coloured(np.array([0.0625]))[0]
    assert between.tolist() == [round((68 + 71) / 2), 23, round((84 + 123) / 2)]


def test_a_constant_map_is_all_low() -> None:
    assert not normalised(np.full((3, 3), 7.0)).any()
    assert normalised(np.array([[-1.0, 0.0], [1.0, 3.0]])).tolist() == [[0, 0.25], [0.5, 1]]
    assert explanation(heatmap=np.ones((7, 7), np.float32)).peak == "nowhere"


def test_the_overlay_is_brightest_where_the_map_is_largest() -> None:
    one = explanation()
    overlay = np.asarray(one.overlay()).astype(float)
    assert overlay.shape == (224, 224, 3)
    # Cell (1, 5) is centred at pixel (48, 176); yellow over grey there, dark blue over grey elsewhere.
    grey = np.asarray(one.image.convert("L"))[0, 0]
    assert overlay[48, 176] == pytest.approx(0.4 * grey + 0.6 * np.array([253, 231, 37]), abs=8)
    assert overlay[200, 20] == pytest.approx(0.4 * grey + 0.6 * np.array([68, 1, 84]), abs=1)
    assert np.asarray(one.overlay(0))[0, 0].tolist() == [grey] * 3
    assert enlarged(one.heatmap, (56, 28)).shape == (28, 56)
    with pytest.raises(InputError, match="opacity must be from 0 to 1"):
        one.overlay(1.5)


def test_save_writes_a_png_that_says_what_it_shows(tmp_path: Path) -> None:
    one = explanation()
    one.save(tmp_path / "new" / "map.png")
    with Image.open(tmp_path / "new" / "map.png") as saved:
        assert saved.format == "PNG" and saved.size == (224, 224)
        assert saved.info["Description"] == one.in_words
        np.testing.assert_array_equal(np.asarray(saved), np.asarray(one.overlay()))
    with pytest.raises(InputError, match=r"must end in \.png"):
        one.save(tmp_path / "map.jpg")


def test_words_say_where() -> None:
    assert (
        explanation().in_words
        == "Heatmap of <b>dog's.jpg: what supports dog & cat, by grad-cam; strongest at the upper right."
    )
    assert explanation(target="score").subject == "what drives the score"
    for cell, words in {(0, 0): "upper left", (3, 3): "centre", (6, 3): "lower centre", (3, 0): "middle left"}.items():
        heatmap = np.zeros((7, 7), np.float32)
        heatmap[cell] = 1
        assert explanation(heatmap=heatmap).peak == words


def test_a_notebook_shows_both_pictures_with_alternative_text() -> None:
    shown = explanation()._repr_html_()
    assert shown.count("<img src='data:image/jpeg;base64,") == 2 and shown.count(" alt='") == 2
    assert "<b>dog" not in shown and "dog&#x27;s.jpg" in shown and "dog &amp; cat" in shown
    assert repr(explanation()).startswith("<Explanation: image photos/<b>dog's.jpg; label dog & cat")


def test_the_picture_is_what_the_model_was_given() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    prepare = Preprocessing(resize=32, crop=32)
    assert np.array_equal(np.asarray(prepare.picture(prepare(image))), np.asarray(image))


def test_explain_is_the_function_and_not_its_module() -> None:
    import deltaenergy.explanation.explain

    assert de.explain is deltaenergy.explanation.explain.explain
