"""Names made harmless: nothing that steers a terminal, no formula in a cell, and JSON that gives them back."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.core.text import counted, from_cell, to_cell, to_json, visible
from deltaenergy.detector.verdict_files import write_csv

STEERING = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]


@given(st.text())
def test_nothing_in_a_visible_text_steers_a_terminal(text: str) -> None:
    assert not any(ord(letter) in STEERING for letter in visible(text))
    kept = visible(text, lines=True)
    assert not any(ord(letter) in STEERING and letter != "\n" for letter in kept)
    assert kept.count("\n") == text.count("\n")
    if text.isprintable():
        assert visible(text) == text


def test_what_is_written_out_reads_as_python_would_write_it() -> None:
    assert visible("a\x1b[0m\tb\x7f\u202e\udc80") == "a\\x1b[0m\\tb\\x7f\\u202e\\udc80"
    # Letters of other scripts, joiners and marks stay.
    assert visible("שלום–写真🙂\u200d\u200f") == "שלום–写真🙂\u200d\u200f"


@given(st.text(alphabet="=+-@'\"\t\r\n ab,;é|", max_size=12))
def test_no_cell_is_a_formula_and_printable_ones_come_back(text: str) -> None:
    cell = to_cell(text)
    assert cell[:1] not in tuple("=+-@\t\r")
    if text.isprintable():
        assert from_cell(cell) == text
    file = io.StringIO()
    write_csv(file, [{"path": text, "score": -1.5, "is_ood": None}], ["path", "score", "is_ood"])
    [header, row] = csv.reader(io.StringIO(file.getvalue()))
    assert header == ["path", "score", "is_ood"]
    assert row == [cell, "-1.5", ""], "numbers are left alone"


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(any_json, st.sampled_from([None, 2]), st.booleans())
def test_json_gives_back_what_it_was_made_of(value: object, indent: int | None, ascii_only: bool) -> None:
    text = to_json(value, indent=indent, ascii_only=ascii_only)
    assert json.loads(text) == value
    assert not any(ord(letter) in STEERING and letter != "\n" for letter in text)
    assert text.isascii() or not ascii_only
    text.encode("utf-8")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(value: float) -> None:
    assert json.loads(to_json({"a": [value, (value, 1.5)]})) == {"a": [None, [None, 1.5]]}


def test_lone_surrogates_survive() -> None:
    text = to_json("caf\udce9")
    assert json.loads(text) == "caf\udce9" and text == '"caf\\udce9"'


def test_a_real_plural() -> None:
    assert [counted(count, "image") for count in (0, 1, 2000)] == ["0 images", "1 image", "2,000 images"]
