"""What a notebook shows, and verdicts as tables of other libraries, there and back."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import deltaenergy as de
from deltaenergy.detector.inline import MOST, Shot, interleaved, pictures_html
from deltaenergy.detector.verdict import verdict_columns
from deltaenergy.detector.verdicts import Verdicts
from deltaenergy.errors import InputError
from tests.colours import ColourModel, paint_sets
from tests.detector.made import made
from tests.report.checks import Page


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return paint_sets(tmp_path)


@pytest.fixture
def detector(sets: Path) -> de.Detector:
    classifier = de.ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    return de.Detector(classifier, "delta-energy").calibrate(sets / "dark")


def test_verdicts_with_pictures(detector: de.Detector, sets: Path) -> None:
    found = detector.predict([sets / "known", sets / "grey"])
    html = found._repr_html_()
    page = Page(html)
    unknown = sum(verdict.is_ood for verdict in found)
    assert f"none of these{unknown}" in page.text and f"known{len(found) - unknown}" in page.text
    assert len(page.all("img")) == MOST
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.elements}
    assert repr(found).startswith("<Verdicts: images 27")


def test_an_evaluation_shows_its_sets_and_its_mistakes(detector: de.Detector, sets: Path) -> None:
    result = de.evaluate(detector.classifier, "delta-energy", sets / "known", open_sets={"grey": sets / "grey"})
    page = Page(result._repr_html_())
    wrong = sum(
        result.is_ood(one).sum() if one.group.value != "open" else (~result.is_ood(one)).sum() for one in result.sets
    )
    assert len(page.all("img")) == min(MOST, int(wrong))


def test_names_cannot_break_the_cell(sets: Path) -> None:
    page = Page(made(["<img src=x onerror=alert(1)>.png"], ["<b>dog</b>"], [1.0], [False])._repr_html_())
    assert not page.all("b")[1:] and not page.all("img"), "there is no such file"
    shots = [Shot(item, ("<i>x</i>",), True) for item in de.load_images(sets / "grey")]
    assert "<i>" not in pictures_html(shots)


def test_half_of_each_kind() -> None:
    many, few = ["a"] * 20, ["b"] * 3
    assert interleaved(many, few)[:MOST] == ["a"] * 9 + ["b"] * 3  # type: ignore[arg-type]
    assert interleaved(many, ["b"] * 20)[:MOST] == ["a"] * 6 + ["b"] * 6  # type: ignore[arg-type]
    assert interleaved([], few)[:MOST] == few  # type: ignore[arg-type]


VERDICTS = made(["a.jpg", "=b.jpg", "c.jpg"], ["dog", "cat", "cat"], [1.25, -3.0, math.nan], [False, True, True])


def assert_same(found: Verdicts) -> None:
    assert repr(list(found)) == repr(list(VERDICTS))


def test_arrow_and_pandas_there_and_back(tmp_path: Path) -> None:
    assert_same(Verdicts.from_table(VERDICTS.to_table()))
    assert_same(Verdicts.from_table(VERDICTS.to_pandas()))
    table = pa.table(VERDICTS)
    assert table.column_names == verdict_columns() and table.num_rows == 3
    assert_same(Verdicts.from_table(VERDICTS))

    class OnlyArrow:
        """What duckdb and others give: nothing but Arrow's own interface."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    assert_same(Verdicts.from_table(OnlyArrow()))


def test_images_of_anything_that_speaks_arrow(sets: Path) -> None:
    class OnlyArrow:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            paths = [str(sets / "grey" / f"{i}.png") for i in range(3)]
            return pa.table({"path": paths, "label": ["x", "y", "z"]}).__arrow_c_stream__(requested_schema)

    assert [item.label for item in de.load_images(OnlyArrow())] == ["x", "y", "z"]


def test_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    """polars takes Arrow tables: a stand-in for it shows that it is handed one, and what is said without it."""
    taken: list[Any] = []
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda table: taken.append(table) or "frame"))
    assert VERDICTS.to_polars() == "frame" and taken[0].num_rows == 3
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="pip install polars"):
        VERDICTS.to_polars()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_files_of_score(tmp_path: Path, ending: str) -> None:
    from deltaenergy.detector.verdict_files import write_table

    write_table(tmp_path / f"t.{ending}", [VERDICTS.rows()], verdict_columns())
    assert_same(Verdicts.from_table(tmp_path / f"t.{ending}"))


def test_tables_that_are_none(tmp_path: Path) -> None:
    table = VERDICTS.to_table()
    for column in ("path", "label", "score"):
        with pytest.raises(InputError, match="no column"):
            Verdicts.from_table(table.drop_columns([column]))
    assert Verdicts.from_table(table.drop_columns(["is_ood", "verdict"])).is_ood is None, "scored without a threshold"
    assert_same(Verdicts.from_table(table.drop_columns(["is_ood"])))
    wrong = [
        ("score", ["much", "1", "2"], "not a number"),
        ("is_ood", [None, True, False], "no verdict"),
        ("score_name", ["mcm", "msp", "mcm"], "several scores"),
        ("is_ood", ["maybe", "true", "false"], "neither true nor false"),
        ("label", [None, "cat", "dog"], "no label in row 1"),
    ]
    for column, values, told in wrong:
        changed = table.set_column(table.column_names.index(column), column, pa.array(values))
        with pytest.raises(InputError, match=told):
            Verdicts.from_table(changed)
    (tmp_path / "t.csv").write_text("path,label\na.jpg,dog\n")
    with pytest.raises(InputError, match=r"t\.csv.*no column 'score'"):
        Verdicts.from_table(tmp_path / "t.csv")


def test_numbers_of_numpy_are_numbers() -> None:
    table = {"id": ["a"], "label": ["dog"], "score": np.array([1.5]), "is_ood": np.array([True])}
    found = Verdicts.from_table(pa.table(table))
    assert found[0].score == 1.5 and found[0].is_ood and found[0].p_value is None
