"""Colours of the page can be told from what they lie on (WCAG 2.1), in light, in dark and in print."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("deltaenergy.report").joinpath("style.css").read_text(encoding="utf-8")


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))


def palettes() -> dict[str, dict[str, str]]:
    roots = re.findall(r":root \{(.*?)\}", CSS, re.S)
    light = variables(roots[0])
    return {"light": light, "dark": light | variables(roots[1]), "print": light | variables(roots[2])}


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_and_marks_stand_out(scheme):
    palette = palettes()[scheme]
    for text in ("text", "muted", "accent", "warn"):
        for ground in ("page", "card", "soft", "shade", "warn-soft"):
            assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    for mark in (f"c{i}" for i in range(8)):
        assert contrast(palette[mark], palette["card"]) >= 3, mark


def test_every_class_that_pages_use_is_styled_for_all_eight_colours():
    for i in range(8):
        for kind in ("curve", "whisker"):
            assert f".{kind}.c{i} {{ stroke: var(--c{i}); }}" in CSS
