"""Tables on disk: written as rows come, named when they are whole, and kept in part when a run stops."""

from __future__ import annotations

import csv
import errno
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from deltaenergy.detector import verdict_files
from deltaenergy.detector.verdict_files import ROW_GROUP, check_table, write_table
from deltaenergy.errors import InputError, OutputError

COLUMNS = ["path", "score", "p_value"]
ENDINGS = ["csv", "jsonl", "parquet", "xlsx"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [{**row, "score": float(row["score"]), "p_value": None} for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".xlsx":
        return rows_of_sheet(path)
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def rows_of_sheet(path: Path) -> list[dict[str, Any]]:
    """A workbook as the standard says (ECMA-376, part 1, 18.3): sheet, rows, cells with a type and a value."""
    main = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))

    def value(cell: ElementTree.Element) -> Any:
        if cell.get("t") == "inlineStr":
            return cell.findtext(f"{main}is/{main}t")
        text = cell.findtext(f"{main}v")
        return text if text is None else bool(int(text)) if cell.get("t") == "b" else float(text)

    names, *rows = [[value(cell) for cell in row] for row in sheet.iter(f"{main}row")]
    return [dict(zip(names, row, strict=True)) for row in rows]


def some(start: int, count: int) -> list[dict[str, Any]]:
    return [{"path": f"bild ü {i}.png", "score": i / 8, "p_value": None} for i in range(start, start + count)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_parts_make_one_table(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "new folder" / f"table.{ending}"
    assert write_table(file, [some(0, 3), [], some(3, 2)], COLUMNS) == 5
    assert rows_of(file) == some(0, 5)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert write_table(file, [], COLUMNS) == 0
    assert rows_of(file) == []


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_rows_are_on_disk_while_others_are_still_being_found(tmp_path: Path, ending: str) -> None:
    seen: list[int] = []

    def parts() -> Iterator[list[dict[str, Any]]]:
        for start in range(0, 6000, 2000):
            yield some(start, 2000)
            (growing,) = (path for path in tmp_path.rglob(f"*.{ending}"))
            seen.append(growing.stat().st_size)

    write_table(tmp_path / f"table.{ending}", parts(), COLUMNS)
    assert 10_000 < seen[0] < seen[1] < seen[2]


def test_a_parquet_table_has_groups_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    parts = (some(start, 1000) for start in range(0, 20_000, 1000))
    assert write_table(file, parts, COLUMNS) == 20_000
    written = pq.ParquetFile(file)
    assert written.num_row_groups == 3 and written.metadata.row_group(0).num_rows >= ROW_GROUP
    assert rows_of(file) == some(0, 20_000)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), OutputError),
        (InputError("the fourth image is no good"), InputError),
    ],
)
def test_what_was_written_is_kept_when_a_run_stops(
    tmp_path: Path, ending: str, stop: BaseException, expected: type[BaseException]
) -> None:
    """The user's files stay: an older table of that name, and one that has the first name we would take."""
    file, taken = tmp_path / f"table.{ending}", tmp_path / f"table.partial-1.{ending}"
    file.write_bytes(b"older")
    taken.write_bytes(b"the user's own")

    def parts() -> Iterator[list[dict[str, Any]]]:
        yield some(0, 3)
        raise stop

    with pytest.raises(expected) as found:
        write_table(file, parts(), COLUMNS)
    kept = tmp_path / f"table.partial-2.{ending}"
    assert rows_of(kept) == some(0, 3)
    notes = getattr(found.value, "__notes__", [])
    assert f"The first 3 rows are in {kept}" in " ".join([str(found.value), *notes])
    assert file.read_bytes() == b"older" and taken.read_bytes() == b"the user's own"
    assert {path.name for path in tmp_path.iterdir()} == {file.name, taken.name, kept.name}


def test_a_parquet_file_without_its_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a file may not grow any more: nobody can read what is there."""

    def too_large(_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(pq.ParquetWriter, "close", too_large)
    with pytest.raises(OutputError, match=r"table\.parquet") as found:
        write_table(tmp_path / "table.parquet", iter([some(0, 3)]), COLUMNS)
    assert "rows are in" not in str(found.value) and list(tmp_path.iterdir()) == []


def test_nothing_is_kept_of_a_run_without_a_row(tmp_path: Path) -> None:
    def parts() -> Iterator[list[dict[str, Any]]]:
        raise KeyboardInterrupt
        yield []

    with pytest.raises(KeyboardInterrupt):
        write_table(tmp_path / "table.csv", parts(), COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_cells_of_a_spreadsheet_are_numbers_and_text_and_never_formulas(tmp_path: Path) -> None:
    rows = [
        {"path": "=1+1.png", "score": -0.25, "p_value": None, "is_ood": True},
        {"path": "<&> \x1b写真.png", "score": math.nan, "p_value": 0.5, "is_ood": False},
    ]
    assert write_table(tmp_path / "t.xlsx", [rows], list(rows[0])) == 2
    first, second = rows_of(tmp_path / "t.xlsx")
    assert first == {"path": "=1+1.png", "score": -0.25, "p_value": None, "is_ood": True}
    assert second == {"path": "<&> \\x1b写真.png", "score": None, "p_value": 0.5, "is_ood": False}


def test_another_library_reads_the_spreadsheet(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="pip install openpyxl")
    write_table(tmp_path / "t.xlsx", [some(0, 3)], COLUMNS)
    names, *rows = openpyxl.load_workbook(tmp_path / "t.xlsx").active.values
    assert [dict(zip(names, row)) for row in rows] == some(0, 3)


def test_a_spreadsheet_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_files, "SHEET_ROWS", 4)
    write_table(tmp_path / "fits.xlsx", [some(0, 3)], COLUMNS)
    with pytest.raises(InputError, match=r"\.parquet") as found:
        write_table(tmp_path / "t.xlsx", [some(0, 3), some(3, 1)], COLUMNS)
    assert rows_of(tmp_path / "t.partial-1.xlsx") == some(0, 3), found.value.__notes__


@pytest.mark.parametrize("name", ["t.xls", "t", "folder", "x.fiftyone"])
def test_where_no_table_can_go_is_told_beforehand(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.fiftyone" / "data").mkdir(parents=True)
    with pytest.raises(InputError, match=r"t\.xls|`out`|FiftyOne"):
        check_table(tmp_path / name, "out")
