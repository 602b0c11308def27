"""Print tables in Markdown, and write them as CSV files with one number per cell."""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_NUMBER = r"([+-]?\d[\d.]*)"
# Cells with several numbers, and what the CSV file appends to the column's name for each of them.
_FORMS = (
    (rf"{_NUMBER} / {_NUMBER} / {_NUMBER}", (" AUROC", " FPR95", " FPR95-OOD")),
    (rf"{_NUMBER} / {_NUMBER}", (" AUROC", " FPR95")),
    (rf"{_NUMBER} ± {_NUMBER}", ("", " ±")),
    (rf"{_NUMBER} \({_NUMBER} to {_NUMBER}\)", ("", " low", " high")),
    (rf"{_NUMBER} to {_NUMBER}", (" low", " high")),
    (rf"{_NUMBER} \(([^()]+)\)", ("", ", test")),
)


def add_csv(parser: argparse.ArgumentParser) -> None:
    """The option of every script that has long tables."""
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="also write each table to a CSV file in FOLDER")


def print_table(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], folder: Path | None) -> None:
    """Print rows as they come; with `folder`, write them to `folder`/`name`.csv at the end. Floats have one digit."""
    lines = ([_shown(cell) for cell in row] for row in rows)
    first = next(lines)
    marks = ["---:" if re.match(r"[*+–−\d-]", cell) and i else "---" for i, cell in enumerate(first)]
    print("| " + " | ".join(columns) + " |\n|" + "|".join(marks) + "|")
    shown = []
    for line in itertools.chain([first], lines):
        print("| " + " | ".join(line) + " |", flush=True)
        shown.append(line)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(csv_rows(columns, shown))


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return "–" if math.isnan(cell) else f"{cell:.1f}"
    return str(cell)


def csv_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """A table for a CSV file, its header first: no marks, no thousands separators, one number per cell."""
    parts = [_split(head, [_plain(row[i]) for row in rows]) for i, head in enumerate(columns)]
    return [list(itertools.chain(*cells)) for cells in zip(*parts, strict=True)]


def _split(head: str, cells: list[str]) -> list[list[str]]:
    """One column as one or several: its header, then its cells."""
    head = re.sub(r" \(95% interval\)$|,? ?AUROC / FPR95$", "", _plain(head))
    if any(re.fullmatch(r"[+-]?[\d.]+%", cell) for cell in cells):
        head += "" if "%" in head else " (%)"
        cells = [cell.removesuffix("%") for cell in cells]
    for form, names in _FORMS:
        if any(re.fullmatch(form, cell) for cell in cells):
            found = [re.fullmatch(form, cell) for cell in cells]
            blank = [""] * (len(names) - 1)
            return [[(head + name).strip() for name in names]] + [
                list(match.groups()) if match else [cell, *blank] for match, cell in zip(found, cells, strict=True)
            ]
    return [[head], *([cell] for cell in cells)]


def _plain(cell: str) -> str:
    cell = re.sub(r"−(?=\d)", "-", re.sub(r"[`*†]", "", cell)).strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+", cell):
        return cell.replace(",", "")
    return "" if cell in ("–", "—") else cell
