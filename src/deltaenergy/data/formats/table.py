"""Images listed in a table: a CSV, TSV, JSONL or Parquet file, or a pyarrow, pandas or polars table in memory.

One column holds paths, or in Parquet files and tables in memory the pictures themselves; `label` (or `class`) and
`domain` are taken along where present. Tables are read row by row, and no more than a few rows are held.
"""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deltaenergy.data.decode import ImageSource, Refusal
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.parquet import (
    BUFFER_BYTES,
    IMAGE_COLUMNS,
    NO_IMAGE,
    ParquetImage,
    class_names,
    file_stamp,
    image_column,
)
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import check_file
from deltaenergy.data.remote.parquet import RemoteParquetImage
from deltaenergy.data.remote.table import RemoteColumns, RemoteTable
from deltaenergy.data.remote.url import checked_url, is_url
from deltaenergy.errors import InputError

TABLE_EXTENSIONS = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
ID_COLUMNS = (*PATH_COLUMNS, "id", "image_id", "key", "__key__")
LABEL_COLUMNS = ("label", "class", "class_name")
DOMAIN_COLUMNS = ("domain",)
TEXT_COLUMNS = ("text", "caption", "title")
# Rows that are converted at a time. A table in memory may hold pictures in them.
_ROWS, _ROWS_IN_MEMORY = 4096, 64


@dataclass(frozen=True)
class _Table:
    """The names of a table's columns, and a function that gives the rows of some of them, each time from the first.

    `pictures` is the column that holds pictures, if any; `names` gives what the numbers of a column stand for; `count`
    is the number of rows, where it is known.
    """

    columns: list[str]
    rows: Callable[[Sequence[str]], Iterator[tuple[Any, ...]]]
    pictures: str | None = None
    names: Callable[[str], Sequence[str] | None] = lambda _: None
    count: int | None = None

    def values(self, column: str) -> list[Any]:
        """All values of a column."""
        return [cell for (cell,) in self.rows([column])]


def table_file_images(path: Path | RemoteTable) -> Iterator[ImageItem]:
    """The images that a table file lists or holds. Relative paths are relative to the table's folder."""
    with _reading(path) as table:
        if table.pictures is None:
            yield from _items(table, f"The table {str(path)!r}", path.parent if isinstance(path, Path) else path.folder)
            return
        if not table.count:
            raise InputError(f"The table {str(path)!r} has no rows.")
        # Numbers of equal length: sorted ids are in the order of the rows.
        picture, digits = _in_place(path, table.pictures), len(str(table.count - 1))
        shown = path.as_posix() if isinstance(path, Path) else path.address
        for row, ([name], label, domain) in enumerate(_rows(table, [find_column(_others(table), ID_COLUMNS)])):
            identity = optional_text(name) or f"{shown}#{row:0{digits}}"
            yield ImageItem(identity, picture(row), label, domain)


def _in_place(path: Path | RemoteTable, column: str) -> Callable[[int], ImageSource]:
    """What gives the picture of a row, where it lies."""
    if isinstance(path, RemoteTable):
        of = path.object
        return lambda row: RemoteParquetImage(of.url, of.size or 0, of.version or "", column, row)
    stamp = file_stamp(path)
    return lambda row: ParquetImage(path, column, row, f"{stamp}, row {row}")


def table_file_texts(path: Path) -> list[str]:
    """The texts that a table file gives with its images, row by row."""
    with _reading(path) as table:
        column = find_column(table.columns, TEXT_COLUMNS)
        if column is None:
            raise InputError(
                f"The table {str(path)!r} has no column with texts. Its columns are: "
                f"{', '.join(map(repr, table.columns))}. Name the one with the texts 'text' "
                f"(also known: {', '.join(TEXT_COLUMNS[1:])})."
            )
        texts = [optional_text(cell) for cell in table.values(column)]
    if None in texts:
        raise InputError(f"The table {str(path)!r} has no text in row {texts.index(None) + 1}.")
    return [text for text in texts if text is not None]


def read_columns(source: Any, wanted: Sequence[Sequence[str]]) -> list[list[Any] | None]:
    """Of each group of names the values of the first column that is called so; None where there is none.

    Args:
        source: a table file, or a pyarrow, pandas or polars table.
        wanted: names of each column, whatever their case.
    """
    with contextlib.nullcontext(_in_memory(source)) if is_table(source) else _reading(Path(source)) as table:
        names = [find_column(table.columns, known) for known in wanted]
        return [None if name is None else table.values(name) for name in names]


@contextlib.contextmanager
def _reading(path: Path | RemoteTable) -> Iterator[_Table]:
    """The table in a file; whatever goes wrong while it is read is said with the path."""
    if isinstance(path, Path):
        check_file(path, "The table")
    read = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet}.get(path.suffix.lower(), _jsonl)
    try:
        yield read(path)
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"The table {str(path)!r} cannot be read: its values are nested too deeply.") from error
    except (OSError, ValueError, KeyError, NotImplementedError, csv.Error) as error:  # also pyarrow's
        raise InputError(f"The table {str(path)!r} cannot be read: {error}") from error


def is_table(images: Any) -> bool:
    """Whether this is a table in memory: it names its columns and gives each by name, or speaks Arrow."""
    named = hasattr(images, "__getitem__") and (hasattr(images, "column_names") or hasattr(images, "columns"))
    return named or hasattr(images, "__arrow_c_stream__")


def _in_memory(table: Any) -> _Table:
    """A table in memory; one that has nothing but Arrow's own interface becomes one of pyarrow."""
    if not (hasattr(table, "__getitem__") and (hasattr(table, "column_names") or hasattr(table, "columns"))):
        import pyarrow as pa

        table = pa.table(table)
    names = [str(name) for name in (table.column_names if hasattr(table, "column_names") else table.columns)]

    def rows(wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return zip(*(_cells(table[name]) for name in wanted))

    def holds_pictures(name: str) -> bool:
        first = next((cell for (cell,) in rows([name]) if cell is not None and not isinstance(cell, float)), None)
        return isinstance(first, (bytes, bytearray)) or (isinstance(first, dict) and "bytes" in first)

    called = [name for known in IMAGE_COLUMNS if (name := find_column(names, [known])) is not None]
    return _Table(names, rows, next(filter(holds_pictures, called), None))


def table_images(table: Any) -> Iterator[ImageItem]:
    """The images that a table in memory lists or holds. Relative paths are relative to the current folder."""
    found = _in_memory(table)
    if found.pictures is None:
        yield from _items(found, "The table", Path())
        return
    wanted = [found.pictures, find_column(_others(found), ID_COLUMNS)]
    for row, ((cell, name), label, domain) in enumerate(_rows(found, wanted), start=1):
        yield ImageItem(optional_text(name) or f"row {row}", _picture(cell), label, domain)


def _picture(cell: Any) -> ImageSource:
    """The picture in a cell: bytes, or the hub's record, which may name a file instead."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(data, (bytes, bytearray)):
        return bytes(data)
    if isinstance(cell, dict) and isinstance(cell.get("path"), str):
        return Path(cell["path"])
    return Refusal(NO_IMAGE)


def _cells(column: Any) -> Iterator[Any]:
    """The values of a column, a few at a time where it can be cut."""
    if not (hasattr(column, "slice") and hasattr(column, "__len__")):
        yield from as_list(column)
        return
    for start in range(0, len(column), _ROWS_IN_MEMORY):
        yield from as_list(column.slice(start, _ROWS_IN_MEMORY))


def as_list(column: Any) -> list[Any]:
    """The values of a column as Python objects."""
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def find_column(columns: Iterable[str], known: Sequence[str]) -> str | None:
    """The first column with one of the known names, whatever its case."""
    by_lower = {column.strip().lower(): column for column in columns}
    return next((by_lower[name] for name in known if name in by_lower), None)


def optional_text(value: Any) -> str | None:
    """A cell as text; None for an empty cell, whose value may be None, an empty string or NaN."""
    if value is None or value != value:
        return None
    return str(value).strip() or None


def _others(table: _Table) -> list[str]:
    """The columns beside the one with pictures."""
    return [name for name in table.columns if name != table.pictures]


def _rows(table: _Table, columns: list[str | None]) -> Iterator[tuple[list[Any], str | None, str | None]]:
    """The cells of some columns, the label and the domain of each row; None where there is no such column."""
    wanted = [*columns, *(find_column(_others(table), known) for known in (LABEL_COLUMNS, DOMAIN_COLUMNS))]
    present = [name for name in wanted if name is not None]
    places = [None if name is None else present.index(name) for name in wanted]
    label_names = None if wanted[-2] is None else table.names(wanted[-2])
    for row in table.rows(present):
        *cells, label, domain = (None if place is None else row[place] for place in places)
        yield cells, _label(label, label_names), optional_text(domain)


def _label(value: Any, names: Sequence[str] | None) -> str | None:
    """A class by its name. Hidden classes of the hub's test splits are −1."""
    if names is None or not isinstance(value, int):
        return optional_text(value)
    return names[value] if 0 <= value < len(names) else None


def _at(name: str, base: Path | str, what: str) -> tuple[str, ImageSource]:
    """What a path in a table leads to, with its id: a file or an address, from the table's folder on."""
    if isinstance(base, Path) and not is_url(name):
        return (base / name).as_posix(), base / name
    address = checked_url(name if is_url(name) else f"{base}/{name}", what)
    return address, RemoteFile(address)


def _items(table: _Table, what: str, base: Path | str) -> Iterator[ImageItem]:
    path_column = find_column(table.columns, PATH_COLUMNS)
    if path_column is None:
        raise InputError(
            f"{what} has no column with the images' paths. Its columns are: "
            f"{', '.join(map(repr, table.columns)) or 'none'}. Name the one with the paths 'path' (also known: "
            f"{', '.join(PATH_COLUMNS[1:])}), or in a Parquet file the one with the pictures' bytes 'image'; in a CSV "
            "file the first line holds the column names."
        )
    row = 0
    for row, ([cell], label, domain) in enumerate(_rows(table, [path_column]), start=1):
        if isinstance(cell, (bytes, dict, list)):
            held = {bytes: "bytes", dict: "records", list: "lists"}[type(cell)]
            raise InputError(
                f"{what} holds {held} in column {path_column!r}, not paths. Pictures are read from a column called "
                "'image' that holds their encoded bytes, or the hub's records of bytes and path."
            )
        name = optional_text(cell)
        if name is None:
            yield ImageItem(f"row {row}", Refusal("the table names no file in this row"), label, domain)
        else:
            yield ImageItem(*_at(name, base, f"Row {row} of {what[0].lower()}{what[1:]}"), label, domain)
    if not row:
        raise InputError(f"{what} has no rows.")


def _csv(path: Path | RemoteTable) -> _Table:
    @contextlib.contextmanager
    def records() -> Iterator[csv.DictReader[str]]:
        # utf-8-sig also drops the byte-order mark that spreadsheets write.
        with path.open(encoding="utf-8-sig", newline="") as lines:
            yield csv.DictReader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")

    def rows(wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        with records() as found:
            for record in found:
                yield tuple(record[name] for name in wanted)

    with records() as found:
        return _Table(list(found.fieldnames or []), rows)


def _jsonl(path: Path | RemoteTable) -> _Table:
    def records() -> Iterator[dict[str, Any]]:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        record = json.loads(line)
                    except json.JSONDecodeError as error:
                        raise ValueError(f"line {number} is not JSON ({error.msg}).") from error
                    if not isinstance(record, dict):
                        raise ValueError(f'line {number} is not a JSON object such as {{"path": "a.jpg"}}.')
                    yield record

    def rows(wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return (tuple(record.get(name) for name in wanted) for record in records())

    # Every line may name columns of its own, and the order of their names decides: all are looked at first.
    return _Table(list(dict.fromkeys(name for record in records() for name in record)), rows)


def _parquet(path: Path | RemoteTable) -> _Table:
    import pyarrow.parquet as pq

    source = path if isinstance(path, Path) else path.columns()
    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES)
    schema = file.schema_arrow

    def rows(wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        if not wanted:
            yield from (() for _ in range(file.metadata.num_rows))
            return
        if isinstance(source, RemoteColumns):
            source.expect(file.metadata, wanted)
        for batch in file.iter_batches(_ROWS, columns=list(wanted), use_threads=False):
            yield from zip(*(batch.column(name).to_pylist() for name in wanted))

    return _Table(schema.names, rows, image_column(schema), partial(class_names, schema), file.metadata.num_rows)
