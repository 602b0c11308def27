"""The result pages: every number of a table is in a CSV file of its section, and every CSV file has a page."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = sorted(RESULTS.glob("*.md"))
LINK = re.compile(r"\(tables/([\w-]+\.csv)\)")


@pytest.fixture(scope="module")
def output() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "tables"))
        import output

        yield output


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "site"))
        import figures

        yield figures


def read(name: str) -> list[dict[str, str]]:
    with (RESULTS / "tables" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_csv_file_is_linked_and_every_link_leads_to_one() -> None:
    linked = {name for page in PAGES for name in LINK.findall(page.read_text(encoding="utf-8"))}
    assert linked == {path.name for path in (RESULTS / "tables").iterdir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_rows_of_a_page_are_rows_of_its_csv_files(page: Path, output: ModuleType, figures: ModuleType) -> None:
    """A row may draw from several files; all it shares with a file must agree with one row of that file."""
    for section in re.split(r"^(?=#)", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        files = [read(name) for name in LINK.findall(section)]
        for table in figures.tables(section) if files else ():
            header, *rows = output.csv_rows(table.columns, table.rows)
            for cells in rows:
                row = {column: cell for column, cell in zip(header, cells, strict=True) if cell}
                matched = (
                    row.keys() & line.keys()
                    for file in files
                    for line in file
                    if all(line[column] == row[column] for column in row.keys() & line.keys())
                )
                assert set().union(*matched) == row.keys(), f"{page.name}: {cells}"


def test_cells_with_several_numbers_become_columns(output: ModuleType) -> None:
    columns = ["score", "a AUROC / FPR95", "b (95% interval)", "c", "d", "e", "n", "share"]
    rows = [
        ["`x`", "**80.1** / 20.0", "+0.5 (−0.1 to +1.0)", "1.0 ± 0.2", "+1 to +2", "3.1 (PACS−dog)", "1,000", "5%"],
        ["y", "–", "–", "2.0", "—", "4", "20", "10%"],
    ]
    found = output.csv_rows(columns, rows)
    assert [dict(zip(found[0], row, strict=True)) for row in found[1:]] == [
        {
            "score": "x",
            "a AUROC": "80.1",
            "a FPR95": "20.0",
            "b": "+0.5",
            "b low": "-0.1",
            "b high": "+1.0",
            "c": "1.0",
            "c ±": "0.2",
            "d low": "+1",
            "d high": "+2",
            "e": "3.1",
            "e, test": "PACS−dog",
            "n": "1000",
            "share (%)": "5",
        },
        dict.fromkeys(found[0], "") | {"score": "y", "c": "2.0", "e": "4", "n": "20", "share (%)": "10"},
    ]


def test_a_table_is_printed_and_written(output: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("some", ["score", "value"], ([name, value] for name, value in [("x", 1.26), ("y", 2)]), tmp_path)
    assert capsys.readouterr().out == "| score | value |\n|---|---:|\n| x | 1.3 |\n| y | 2 |\n"
    assert (tmp_path / "some.csv").read_text(encoding="utf-8") == "score,value\nx,1.3\ny,2\n"
