"""Tables of verdicts in files: CSV, JSON lines, Parquet, or a spreadsheet (.xlsx), written as their rows come.

A table gets its name when it is complete; for a URL it is written on this machine first. If a run stops, the rows so
far are kept, and a note on the exception says where.
"""

from __future__ import annotations

import csv
import math
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO
from xml.sax.saxutils import escape

from deltaenergy.core.text import to_cell, to_json, visible
from deltaenergy.data.remote.client import put_file
from deltaenergy.data.remote.url import checked_url, folder_of, is_url
from deltaenergy.detector.fiftyone import check_fiftyone, names_fiftyone
from deltaenergy.detector.verdict import arrow_schema
from deltaenergy.errors import InputError, OutputError, UnreachableError, did_you_mean
from deltaenergy.files import check_writable
from deltaenergy.files.atomic import publish, temporary_folder
from deltaenergy.files.output import move_aside
from deltaenergy.store.folder import RemoteFolder

Row = Mapping[str, Any]
# Rows per Parquet row group.
ROW_GROUP = 8192
# The limit of a spreadsheet, with the header row.
SHEET_ROWS = 1_048_576
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_CONTENT = "application/vnd.openxmlformats-officedocument.spreadsheetml"
# A workbook of one sheet, without the sheet.
_WORKBOOK = {
    "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_CONTENT}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_CONTENT}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" Target="xl/workbook.xml" '
    f'Type="{_OFFICE}/officeDocument"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_SHEET}" xmlns:r="{_OFFICE}"><sheets>'
    '<sheet name="verdicts" sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" '
    f'Target="worksheets/sheet1.xml" Type="{_OFFICE}/worksheet"/></Relationships>',
}


def check_table(path: str | Path, argument: str = "path") -> None:
    """Raise `InputError` for a table that could not be written, before the work."""
    if names_fiftyone(path):
        check_writable(path, folder=True, argument=argument)
        check_fiftyone(path)
        return
    suffix = Path(path).suffix
    if suffix.lower() not in FORMATS:
        raise InputError(
            f"`{argument}` {path}: unknown ending {suffix!r}.{did_you_mean(suffix, FORMATS)} Or a folder named "
            "fiftyone, for FiftyOne."
        )
    if is_url(path):
        RemoteFolder(f"{folder_of(path)}/").exists(Path(path).name)
    else:
        check_writable(path, argument=argument)


def write_table(path: str | Path, parts: Iterable[Sequence[Row]], columns: Sequence[str]) -> int:
    """Write rows as they come, in the format of the file's ending; returns their number."""
    target = Path(tempfile.gettempdir(), Path(path).name) if is_url(path) else Path(os.path.realpath(path))
    with temporary_folder(target.parent) as folder:
        file, rows = folder / target.name, 0
        table = FORMATS[target.suffix.lower()](file, columns)
        try:
            for part in parts:
                table.add(part)
                rows += len(part)
            table.close()
            put_file(checked_url(path), file) if is_url(path) else publish(file, target)
        except (OSError, UnreachableError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            message = f"The table could not be written to {path}: {reason[:1].lower()}{reason[1:]}."
            raise OutputError(f"{message} {_kept(table, file, target, rows)}".strip()) from error
        except BaseException as error:
            if kept := _kept(table, file, target, rows):
                error.add_note(kept)
            raise
    return rows


def _kept(table: TableFile, file: Path, target: Path, rows: int) -> str:
    """Move the partial file to a free name, and say where; empty if there is no readable row."""
    said = f"The first {rows} row{'' if rows == 1 else 's'} are in"
    try:
        table.close()
    except Exception:  # a full disk, after which pyarrow and zipfile refuse to close
        if not isinstance(table, CsvTable | JsonTable):
            return ""
        said = "The rows that could be written are in"
    place = move_aside(file, target) if rows else None
    return f"{said} {place}." if place else ""


class TableFile(Protocol):
    """A file that grows; after `close` it can be read."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None: ...
    def add(self, rows: Sequence[Row]) -> None:
        """Append rows."""

    def close(self) -> None:
        """Write what is left. Can be called again after a failure, and then fails again."""


class CsvTable:
    """Empty cells for missing values, and text without control characters or formulas."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file, self._columns = _open(path), columns
        write_csv(self._file, [], columns)

    def add(self, rows: Sequence[Row]) -> None:
        write_csv(self._file, rows, self._columns, header=False)

    def close(self) -> None:
        self._file.close()


class JsonTable:
    """One JSON object per line."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file = _open(path)

    def add(self, rows: Sequence[Row]) -> None:
        self._file.writelines(to_json(dict(row)) + "\n" for row in rows)

    def close(self) -> None:
        self._file.close()


class ParquetTable:
    """Rows wait until they make up a row group."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        self._schema, self._waiting = arrow_schema(columns), list[Row]()
        self._writer = pq.ParquetWriter(path, self._schema)

    def add(self, rows: Sequence[Row]) -> None:
        self._waiting += rows
        if len(self._waiting) >= ROW_GROUP:
            self._write_group()

    def close(self) -> None:
        """Write what is left, and the file's end, which readers need."""
        if self._waiting:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        columns = {name: [row.get(name) for row in self._waiting] for name in self._schema.names}
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._waiting = []


class _Zip(zipfile.ZipFile):
    def __del__(self) -> None:
        """`close` writes the end. After a failed write, Python's own would try again and print a traceback."""


class SheetTable:
    """A workbook of one sheet. Cells are numbers or text, never formulas."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._zip, self._columns, self._rows = _Zip(path, "w", zipfile.ZIP_DEFLATED), columns, 0
        for name, content in _WORKBOOK.items():  # without a time: equal verdicts give equal bytes
            self._zip.writestr(zipfile.ZipInfo(name), f'<?xml version="1.0" encoding="UTF-8"?>\n{content}')
        sheet = zipfile.ZipInfo("xl/worksheets/sheet1.xml")
        sheet.compress_type = zipfile.ZIP_DEFLATED
        self._sheet = self._zip.open(sheet, "w", force_zip64=True)
        self._write(f'<?xml version="1.0" encoding="UTF-8"?>\n<worksheet xmlns="{_SHEET}"><sheetData>')
        self.add([{name: name for name in columns}])

    def add(self, rows: Sequence[Row]) -> None:
        self._rows += len(rows)
        if self._rows > SHEET_ROWS:
            raise InputError(f"A spreadsheet has at most {SHEET_ROWS - 1:,} rows of verdicts: write .csv or .parquet.")
        self._write("".join(f"<row>{''.join(_sheet_cell(row.get(c)) for c in self._columns)}</row>" for row in rows))

    def close(self) -> None:
        """Write the sheet's end and the list of parts, which readers need."""
        if not self._sheet.closed:
            self._write("</sheetData></worksheet>")
            self._sheet.close()
        self._zip.close()

    def _write(self, text: str) -> None:
        self._sheet.write(text.encode("utf-8"))


FORMATS: Mapping[str, type[TableFile]] = {
    ".csv": CsvTable,
    ".jsonl": JsonTable,
    ".parquet": ParquetTable,
    ".xlsx": SheetTable,
}


def write_csv(file: TextIO, rows: Iterable[Row], columns: Sequence[str], *, header: bool = True) -> None:
    """Rows as CSV, to any file."""
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _csv_cell(row.get(name)) for name in columns} for row in rows)


def _open(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return to_cell(value) if isinstance(value, str) else value


def _sheet_cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "<c/>"
    if isinstance(value, bool):
        return f'<c t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float):
        return f"<c><v>{value!r}</v></c>"
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(visible(str(value)))}</t></is></c>'
