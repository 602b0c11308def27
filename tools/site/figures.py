"""Measured numbers of one score or method, gathered from the tables of docs/results: no number is typed twice."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_MARKS = re.compile(r"[`*]|\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Table:
    """A table with the headings that it stands under, the nearest last."""

    headings: tuple[str, ...]
    columns: list[str]
    rows: list[list[str]]


def tables(text: str) -> Iterator[Table]:
    """The tables of a page, in order."""
    headings: list[str] = []
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if match := re.match(r"(#+) (.*)", line):
            headings = [*headings[: len(match[1]) - 1], match[2]]
        elif re.fullmatch(r"\|[-:| ]+\|", line.strip()) and i:
            rows = []
            for row in lines[i + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(_cells(row))
            yield Table(tuple(headings), _cells(lines[i - 1]), rows)


def figures_of(name: str, text: str) -> list[Table]:
    """The tables with rows of `name`, with any preset or settings, cut to these rows."""
    found = []
    for table in tables(text):
        rows = [row for row in table.rows if row and _is_of(name, plain(row[0]))]
        if rows:
            found.append(Table(table.headings, table.columns, rows))
    return found


@dataclass(frozen=True)
class Results:
    """The result pages by file name, and the names in the first column of each CSV file."""

    pages: Mapping[str, str]
    files: Mapping[str, list[str]]

    @classmethod
    def read(cls, folder: Path) -> Results:
        """From docs/results."""
        pages = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
        files = {}
        for path in sorted(folder.glob("tables/*.csv")):
            with path.open(encoding="utf-8", newline="") as file:
                files[path.name] = [row[0] for row in csv.reader(file)][1:]
        return cls(pages, files)

    def tables_of(self, name: str) -> list[tuple[str, Table]]:
        """The tables with rows of `name`, each with its page."""
        return [(page, table) for page, text in self.pages.items() for table in figures_of(name, text)]

    def files_of(self, name: str) -> list[str]:
        """The CSV files with rows of `name`."""
        return [file for file, names in self.files.items() if any(_is_of(name, one) for one in names)]


def _is_of(name: str, cell: str) -> bool:
    """Whether a cell is `name`, with or without a preset or settings."""
    return re.fullmatch(rf"{re.escape(name)}(?:[:(].*)?", cell) is not None


def plain(cell: str) -> str:
    """A cell without its marks: code, bold, links."""
    return _MARKS.sub(lambda match: match[1] or "", cell).strip()


def slug(heading: str) -> str:
    """The anchor that a heading has on the built page."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain(heading)).strip().lower())


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
