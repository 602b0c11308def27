"""Tables of results: to the terminal, to a pipe as CSV, or to a CSV, JSONL or Parquet file.

`write_rows` writes a table that is there whole; `stream_rows` one whose rows are still being found.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from deltaenergy.cli.shell.console import err
from deltaenergy.cli.shell.exits import InterruptedRun
from deltaenergy.core.text import to_cell, to_json
from deltaenergy.detector.fiftyone import check_fiftyone, names_fiftyone
from deltaenergy.errors import InputError, OutputError, did_you_mean
from deltaenergy.files import check_writable, keeping_result, replacing
from deltaenergy.files.atomic import publish, temporary_folder
from deltaenergy.files.output import move_aside

Row = Mapping[str, Any]
FORMATS = (".csv", ".jsonl", ".parquet")
# Rows of a Parquet file that are written at once: readers go through them a group at a time.
ROW_GROUP = 8192


def check_output(path: Path | None) -> None:
    """Refuse an output file that could not be written, before the work rather than after it."""
    if path is None:
        return
    if names_fiftyone(path):
        check_writable(path, folder=True, option="--out")
        check_fiftyone(path)
        return
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"--out {path}: unknown ending {path.suffix!r}.{did_you_mean(path.suffix, FORMATS)} Or a folder called "
            "fiftyone, for FiftyOne."
        )
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
    with replacing(path) as temporary:
        table = _Table(temporary, columns)
        table.add(rows)
        table.close()


def stream_rows(path: Path, parts: Iterable[Sequence[Row]], columns: Sequence[str]) -> int:
    """Write rows as they come, to a file that gets its name when all are there; returns how many there were.

    If that does not happen, what was written so far is kept beside it, or elsewhere, and the error says where.
    """
    target = Path(os.path.realpath(path))
    with temporary_folder(target.parent) as folder:
        table = _Table(folder / target.name, columns)
        try:
            for rows in parts:
                table.add(rows)
            table.close()
            publish(table.path, target)
        except KeyboardInterrupt:
            raise InterruptedRun(table.kept(target) or "No row had been written.") from None
        except OSError as error:
            reason = (error.strerror or str(error)).rstrip(".")
            message = f"The table could not be written to {path}: {reason[:1].lower()}{reason[1:]}."
            raise OutputError(f"{message} {table.kept(target)}".strip()) from error
        except BaseException:
            if kept := table.kept(target):
                err.print(kept)
            raise
    return table.rows


class _Table:
    """A CSV, JSONL or Parquet file that grows."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns, self.rows = path, columns, 0
        self._format = path.suffix.lower()
        self._waiting: list[Row] = []
        self._writer: Any = None
        self._failed = False
        self._file: TextIO | None = None
        if self._format != ".parquet":
            self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        if self._format == ".csv":
            write_csv(self._file, [], columns, header=True)  # type: ignore[arg-type]

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows. Those of a Parquet file wait until they make up a row group."""
        if self._format == ".parquet":
            self._waiting += rows
            if len(self._waiting) >= ROW_GROUP:
                self._write_group()
        elif self._file is not None:
            if self._format == ".csv":
                write_csv(self._file, rows, self.columns, header=False)
            else:
                self._file.writelines(to_json(dict(row)) + "\n" for row in rows)
        self.rows += len(rows)

    def close(self) -> None:
        """Bring everything to the file; it can be read then."""
        if self._file is not None:
            self._file.close()
        elif self._waiting or self._writer is None:
            self._write_group()
        if self._writer is not None:
            self._failed = True
            self._writer.close()
            self._failed = False

    def kept(self, target: Path) -> str:
        """Move what there is to a name that is free, and say where; nothing if there is no row."""
        try:
            self.close()
        except Exception:  # pyarrow refuses what follows a failed write with errors of many types
            if self._format == ".parquet":
                return ""
        if self._failed:  # without its end nobody can read a Parquet file
            return ""
        place = move_aside(self.path, target) if self.rows else None
        return f"The first {self.rows} row(s) are in {place}." if place else ""

    def _write_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = None if self._writer is None else self._writer.schema
        group = pa.table({name: [row.get(name) for row in self._waiting] for name in self.columns}, schema=schema)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, group.schema)
        self._writer.write_table(group)
        self._waiting = []


def write_csv(file: TextIO, rows: Sequence[Row], columns: Sequence[str], *, header: bool = True) -> None:
    """Rows as CSV: empty cells for what is unknown, and text that neither a terminal nor a spreadsheet obeys."""
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _cell(row.get(name)) for name in columns} for row in rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return to_cell(value) if isinstance(value, str) else value


def print_csv(rows: Sequence[Row], columns: Sequence[str], *, header: bool = True) -> None:
    """Rows as CSV on standard output: what a pipe gets."""
    write_csv(sys.stdout, rows, columns, header=header)
