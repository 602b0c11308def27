"""Tables of results: to the terminal, to a pipe as CSV, or to a CSV, JSONL or Parquet file."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from deltaenergy.cli.common import to_json
from deltaenergy.cli.text import to_cell
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.files import check_writable, keeping_result, replacing

Row = Mapping[str, Any]
FORMATS = (".csv", ".jsonl", ".parquet")


def check_output(path: Path | None) -> None:
    """Refuse an output file that could not be written, before the work rather than after it."""
    if path is None:
        return
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--out {path}: unknown ending {path.suffix!r}.{did_you_mean(path.suffix, FORMATS)}")
    if path.is_dir():
        raise InputError(f"--out {path} is a folder. Give a file name that ends in {', '.join(FORMATS)}.")
    check_writable(path, option="--out")


def write_rows(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows in the format that the file's ending names, all or nothing.

    Where that fails they are kept elsewhere, or printed if all else fails, and an `OutputError` says where they are.
    """
    keeping_result(
        path,
        lambda place: _write_rows(place, rows, columns),
        what="The table",
        otherwise=lambda: print_csv(rows, columns),
    )


def _write_rows(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    suffix = path.suffix.lower()
    with replacing(path) as temporary:
        if suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), temporary)
        elif suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(to_json(dict(row)) + "\n" for row in rows)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                write_csv(file, rows, columns)


def write_csv(file: TextIO, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Rows as CSV: empty cells for what is unknown, and text that neither a terminal nor a spreadsheet obeys."""
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(row.get(name)) for name in columns} for row in rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return to_cell(value) if isinstance(value, str) else value


def print_csv(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Rows as CSV on standard output: what a pipe gets."""
    write_csv(sys.stdout, rows, columns)
