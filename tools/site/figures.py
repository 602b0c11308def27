"""Figures of one score or method, gathered from the tables of docs/results.md: none is typed twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
    """The tables that have rows of `name`, a preset of it or it with other settings, cut to these rows."""
    own = re.compile(rf"{re.escape(name)}(?:[:(].*)?")
    found = []
    for table in tables(text):
        rows = [row for row in table.rows if row and own.fullmatch(plain(row[0]))]
        if rows:
            found.append(Table(table.headings, table.columns, rows))
    return found


def plain(cell: str) -> str:
    """A cell without its marks: code, bold, links."""
    return _MARKS.sub(lambda match: match[1] or "", cell).strip()


def slug(heading: str) -> str:
    """The anchor that a heading has on the built page."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain(heading)).strip().lower())


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
