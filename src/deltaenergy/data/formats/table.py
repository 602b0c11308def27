"""Images listed in a table: a CSV, TSV, JSONL or Parquet file, or a pyarrow, pandas or polars table in memory.

One column contains paths or URLs, or in Parquet files and tables in memory the images themselves; `label` (or
`class`) and `domain` are used where present. Tables are read row by row, and no more than a few rows are held. What is
wrong with a row is that row's `problem`; where a table cannot be read any further, one more image stands for the rest.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.file import File, LocalFile, file_at, reason_of
from deltaenergy.data.formats.parquet import (
    IMAGE_COLUMNS,
    ParquetCell,
    cell_content,
    class_names,
    image_column,
    parquet_file,
)
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_EXTENSIONS = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
ID_COLUMNS = (*PATH_COLUMNS, "id", "image_id", "key", "__key__")
LABEL_COLUMNS = ("label", "class", "class_name")
DOMAIN_COLUMNS = ("domain",)
# Rows that are converted at a time. A table in memory may have images in them.
_ROWS, _ROWS_IN_MEMORY = 4096, 64
# What is no path, and stands in the first row where a column is mistaken for one of paths.
_NOT_PATHS: dict[type, str] = {bytes: "bytes", dict: "records", list: "lists"}


class _BadRow(Exception):
    """A row that cannot be read; the message is the reason. Those after it can."""


# Names by which a column is known, in lower case, and the cells of a row by such names, or why it cannot be read.
_Names = Sequence[str]
_Row = dict[str, Any] | _BadRow


@dataclass(frozen=True)
class _Table:
    """A table that is read row by row.

    Attributes:
        columns: the names of its columns, of a JSONL file those of the first line.
        rows: gives the rows from the first, with at least the cells of the columns that are known by these names.
        images: the column that contains images, if any.
        names: gives what the numbers of a column stand for.
        count: the number of rows, where it is known.
    """

    columns: Sequence[str]
    rows: Callable[[Sequence[_Names]], Iterator[_Row]]
    images: str | None = None
    names: Callable[[str], Sequence[str] | None] = lambda _: None
    count: int | None = None

    @property
    def id_names(self) -> _Names:
        """What a column with ids may be called; the one with images has none."""
        return [name for name in ID_COLUMNS if self.images is None or name != _lower(self.images)]


def table_file_images(file: File) -> Iterator[ImageItem]:
    """The images that a table file lists or contains. Relative paths start at the table's folder."""
    what, done = f"The table {file.name!r}", 0
    try:
        file = file.described()
        table = _read(file)
        images = _listed(table, what, file.sibling) if table.images is None else _contained(table, what, file)
        for image in images:
            yield image
            done += 1
    except InputError:
        raise
    except (UnreadableImage, OSError, ValueError, KeyError, NotImplementedError, RecursionError, _BadRow) as error:
        reason = "its values are nested too deeply" if isinstance(error, RecursionError) else reason_of(error)
        if not done:
            raise InputError(f"{what} cannot be read: {reason}.") from error
        reason = f"the table cannot be read from row {done + 1} on ({reason})"
        yield ImageItem(f"{file.name} (the rest)", None, problem=reason)


def table_images(table: Any) -> Iterator[ImageItem]:
    """The images that a table in memory lists or contains. Relative paths start at the current folder."""
    found = _in_memory(table)
    if found.images is None:
        yield from _listed(found, "The table", file_at)
        return
    image_names, id_names = [_lower(found.images)], found.id_names
    for number, row, label, domain in _labelled(found, [image_names, id_names]):
        content, problem = None, None
        try:
            content = cell_content(_cell(row, image_names), file_at)
        except (UnreadableImage, InputError) as error:
            problem = str(error)
        yield ImageItem(optional_text(_cell(row, id_names)) or f"row {number}", content, label, domain, problem)


def read_columns(source: Any, wanted: Sequence[_Names]) -> list[list[Any] | None]:
    """Of each group of names, whatever their case, the values of the first column that has one; None without one.

    `source` is a table file, or a pyarrow, pandas or polars table.
    """
    columns: list[list[Any]] = [[] for _ in wanted]
    try:
        table = _in_memory(source) if is_table(source) else _read(LocalFile(Path(source)).described())
        for row in table.rows(wanted):
            for cells, known in zip(columns, wanted):
                cells.append(_cell(row, known))
    except InputError:
        raise
    except (UnreadableImage, OSError, ValueError, KeyError, NotImplementedError, _BadRow) as error:
        raise InputError(f"The table {str(source)!r} cannot be read: {reason_of(error)}.") from error
    there = [find_column(table.columns, known) is not None for known in wanted]
    return [cells if named or any(c is not None for c in cells) else None for cells, named in zip(columns, there)]


def is_table(images: Any) -> bool:
    """Whether this is a table in memory, known by its Arrow interface; a column has one too, but no columns."""
    return hasattr(images, "__arrow_c_stream__") and not hasattr(images, "dtype") and not hasattr(images, "chunks")


def find_column(columns: Iterable[str], known: Sequence[str]) -> str | None:
    """The first column with one of the known names, whatever its case."""
    by_lower = {_lower(column): column for column in columns}
    return next((by_lower[name] for name in known if name in by_lower), None)


def optional_text(value: Any) -> str | None:
    """A cell as text; None for an empty cell, whose value may be None, an empty string or NaN."""
    if value is None or value != value:
        return None
    return str(value).strip() or None


def _listed(table: _Table, what: str, file_of: Callable[[str], File]) -> Iterator[ImageItem]:
    column = find_column(table.columns, PATH_COLUMNS)
    if column is None:
        raise InputError(
            f"{what} has no column with the images' paths. Its columns are: "
            f"{', '.join(map(repr, table.columns)) or 'none'}. Name the one with the paths 'path' (also known: "
            f"{', '.join(PATH_COLUMNS[1:])}), or in a Parquet file the one with the images' bytes 'image'; in a CSV "
            "file the first line contains the column names."
        )
    number = 0
    for number, row, label, domain in _labelled(table, [PATH_COLUMNS]):
        file, problem = None, None
        if number == 1 and isinstance(row, dict) and (kind := _NOT_PATHS.get(type(_cell(row, PATH_COLUMNS)))):
            raise InputError(
                f"{what} has {kind} in column {column!r}, not paths. Images are read from a column called 'image' "
                "that contains their encoded bytes, or records of bytes and path as on the Hugging Face Hub."
            )
        try:
            if (name := optional_text(_cell(row, PATH_COLUMNS))) is None:
                problem = "the table names no file in this row"
            else:
                file = file_of(name)
        except (_BadRow, InputError) as error:  # also a URL that is not one, or has a secret in it
            problem = str(error)
        yield ImageItem(file.name if file else f"row {number}", file, label, domain, problem)
    if not number:
        raise InputError(f"{what} has no rows.")


def _contained(table: _Table, what: str, file: File) -> Iterator[ImageItem]:
    assert table.images is not None
    if not table.count:
        raise InputError(f"{what} has no rows.")
    # Numbers of equal length: sorted ids are in the order of the rows.
    digits, id_names = len(str(table.count - 1)), table.id_names
    for number, row, label, domain in _labelled(table, [id_names]):
        name = optional_text(_cell(row, id_names)) or f"{file.name}#{number - 1:0{digits}}"
        yield ImageItem(name, ParquetCell(file, table.images, number - 1), label, domain)


def _labelled(table: _Table, wanted: Sequence[_Names]) -> Iterator[tuple[int, _Row, str | None, str | None]]:
    """Each row with its number, label and domain."""
    label_column = find_column(table.columns, LABEL_COLUMNS)
    label_names = None if label_column is None else table.names(label_column)
    for number, row in enumerate(table.rows([*wanted, LABEL_COLUMNS, DOMAIN_COLUMNS]), start=1):
        label: str | None = None
        domain: str | None = None
        if isinstance(row, dict):
            label, domain = _label(_cell(row, LABEL_COLUMNS), label_names), optional_text(_cell(row, DOMAIN_COLUMNS))
        yield number, row, label, domain


def _cell(row: _Row, known: _Names) -> Any:
    """The cell of the first column that is known by one of these names; None if there is none."""
    if isinstance(row, _BadRow):
        raise row
    return next((row[name] for name in known if name in row), None)


def _lower(column: str) -> str:
    return column.strip().lower()


def _label(value: Any, names: Sequence[str] | None) -> str | None:
    """A class by its name. Hidden classes of test splits on the Hugging Face Hub are −1."""
    if names is None or not isinstance(value, int):
        return optional_text(value)
    return names[value] if 0 <= value < len(names) else None


def _read(file: File) -> _Table:
    return {".csv": _csv, ".tsv": _csv, ".parquet": _parquet}.get(file.suffix, _jsonl)(file)


def _text(file: File, newline: str | None = None) -> io.TextIOWrapper:
    # utf-8-sig also drops the byte-order mark that spreadsheets write; file names need not be valid text.
    return io.TextIOWrapper(file.open_parts(), "utf-8-sig", errors="surrogateescape", newline=newline)


def _csv(file: File) -> _Table:
    def records(lines: Iterable[str]) -> csv.DictReader[str]:
        return csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")

    def rows(_: Sequence[_Names]) -> Iterator[_Row]:
        with _text(file, newline="") as lines:
            found = records(lines)
            found.fieldnames = [_lower(name) for name in found.fieldnames or ()]
            while True:
                try:
                    yield next(found)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield _BadRow(f"the row cannot be read: {error}")

    with _text(file, newline="") as lines:
        try:
            return _Table(records(lines).fieldnames or (), rows)
        except csv.Error as error:
            raise ValueError(str(error)) from error


def _jsonl(file: File) -> _Table:
    def records() -> Iterator[dict[str, Any] | _BadRow]:
        with _text(file) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    yield _BadRow(f"line {number} is not JSON ({getattr(error, 'msg', error)})")
                    continue
                is_object = isinstance(record, dict)
                yield (
                    record if is_object else _BadRow(f'line {number} is not a JSON object such as {{"path": "a.jpg"}}')
                )

    def rows(_: Sequence[_Names]) -> Iterator[_Row]:
        for record in records():
            yield {_lower(name): cell for name, cell in record.items()} if isinstance(record, dict) else record

    first = next(records(), {})
    if isinstance(first, _BadRow):
        raise first
    return _Table(list(first), rows)


def _parquet(file: File) -> _Table:
    found = parquet_file(file, columns=())
    schema, count = found.schema_arrow, found.metadata.num_rows

    def rows(wanted: Sequence[_Names]) -> Iterator[_Row]:
        present = _present(schema.names, wanted)
        if not present:
            yield from ({} for _ in range(count))
            return
        opened = parquet_file(file, columns=present)
        for group in range(opened.num_row_groups):  # one by one: those before a damaged one are read
            yield from _arrow_rows(opened.iter_batches(_ROWS, row_groups=[group], columns=present, use_threads=False))

    return _Table(schema.names, rows, image_column(schema), partial(class_names, schema), count)


def _present(columns: Sequence[str], wanted: Sequence[_Names]) -> list[str]:
    """The columns that are known by these names."""
    found = (find_column(columns, known) for known in wanted)
    return list(dict.fromkeys(name for name in found if name is not None))


def _arrow_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        names = [_lower(name) for name in batch.schema.names]
        for cells in zip(*(column.to_pylist() for column in batch.columns)):
            yield dict(zip(names, cells))


def arrow_table(given: Any) -> pa.Table:
    """A table in memory as one of pyarrow. Raises `InputError`."""
    import pyarrow as pa

    try:
        return given if isinstance(given, pa.Table) else pa.table(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"The table cannot become one of pyarrow: {error}") from error


def _in_memory(given: Any) -> _Table:
    table = arrow_table(given)

    def rows(wanted: Sequence[_Names]) -> Iterator[_Row]:
        return _arrow_rows(table.select(_present(table.column_names, wanted)).to_batches(_ROWS_IN_MEMORY))

    def has_images(known: str) -> bool:
        first = next((cell for row in rows([[known]]) if (cell := _cell(row, [known])) is not None), None)
        return isinstance(first, bytes) or (isinstance(first, dict) and "bytes" in first)

    images = find_column(table.column_names, list(filter(has_images, IMAGE_COLUMNS)))
    return _Table(table.column_names, rows, images, count=table.num_rows)
