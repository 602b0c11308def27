"""Images listed in a table: a CSV, TSV, JSONL or Parquet file, or a pyarrow, pandas or polars table in memory.

One column holds paths; `label` (or `class`) and `domain` are taken along where present.
"""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from deltaenergy.data.decode import ImageSource, Refusal
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import check_file
from deltaenergy.errors import InputError

TABLE_EXTENSIONS = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "class_name")
DOMAIN_COLUMNS = ("domain",)
TEXT_COLUMNS = ("text", "caption", "title")


def table_file_images(path: Path) -> list[ImageItem]:
    """The images that a table file lists. Relative paths are relative to the table's folder."""
    with _reading(path) as (columns, values):
        return _items(columns, values, f"The table {str(path)!r}", path.parent)


def table_file_texts(path: Path) -> list[str]:
    """The texts that a table file gives with its images, row by row."""
    with _reading(path) as (columns, values):
        column = find_column(columns, TEXT_COLUMNS)
        if column is None:
            raise InputError(
                f"The table {str(path)!r} has no column with texts. Its columns are: {', '.join(map(repr, columns))}. "
                f"Name the one with the texts 'text' (also known: {', '.join(TEXT_COLUMNS[1:])})."
            )
        texts = [optional_text(cell) for cell in values(column)]
    if None in texts:
        raise InputError(f"The table {str(path)!r} has no text in row {texts.index(None) + 1}.")
    return [text for text in texts if text is not None]


def read_columns(source: Any, wanted: Sequence[Sequence[str]]) -> list[list[Any] | None]:
    """Of each group of names the values of the first column that is called so; None where there is none.

    Args:
        source: a table file, or a pyarrow, pandas or polars table.
        wanted: names of each column, whatever their case.
    """
    if is_table(source):
        source = _with_columns(source)
        names = [str(name) for name in (source.column_names if hasattr(source, "column_names") else source.columns)]
        return [None if (name := find_column(names, known)) is None else as_list(source[name]) for known in wanted]
    with _reading(Path(source)) as (columns, values):
        return [None if (name := find_column(columns, known)) is None else values(name) for known in wanted]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[list[str], Callable[[str], list[Any]]]]:
    """The columns' names and a function that gives a column's values; whatever goes wrong is said with the path."""
    check_file(path, "The table")
    read = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet}.get(path.suffix.lower(), _read_jsonl)
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


def _with_columns(table: Any) -> Any:
    """The table itself, or as one of pyarrow where it has nothing but Arrow's own interface."""
    if hasattr(table, "__getitem__") and (hasattr(table, "column_names") or hasattr(table, "columns")):
        return table
    import pyarrow as pa

    return pa.table(table)


def table_images(table: Any) -> list[ImageItem]:
    """The images that a table in memory lists. Relative paths are relative to the current folder."""
    table = _with_columns(table)
    names = table.column_names if hasattr(table, "column_names") else table.columns
    return _items([str(name) for name in names], lambda name: as_list(table[name]), "The table", Path())


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


def _items(columns: Sequence[str], values: Callable[[str], list[Any]], what: str, base: Path) -> list[ImageItem]:
    path_column = find_column(columns, PATH_COLUMNS)
    if path_column is None:
        raise InputError(
            f"{what} has no column with the images' paths. Its columns are: {', '.join(map(repr, columns)) or 'none'}. "
            f"Name the one with the paths 'path' (also known: {', '.join(PATH_COLUMNS[1:])}); in a CSV file the first "
            "line holds the column names."
        )
    paths = values(path_column)
    if not paths:
        raise InputError(f"{what} has no rows.")
    nothing = [None] * len(paths)
    labels, domains = (
        values(column) if (column := find_column(columns, known)) else nothing
        for known in (LABEL_COLUMNS, DOMAIN_COLUMNS)
    )
    items = []
    for row, (cell, label, domain) in enumerate(zip(paths, labels, domains), start=1):
        if isinstance(cell, (bytes, dict)):
            raise InputError(
                f"{what} holds images in column {path_column!r}, not their paths. Load it with the datasets library, "
                "as in datasets.load_dataset('parquet', data_files=...)['train'], and give that data set."
            )
        name = optional_text(cell)
        source: ImageSource = Refusal("the table names no file in this row") if name is None else base / name
        identity = f"row {row}" if name is None else (base / name).as_posix()
        items.append(ImageItem(identity, source, optional_text(label), optional_text(domain)))
    return items


def _read_csv(path: Path) -> tuple[list[str], Callable[[str], list[Any]]]:
    # utf-8-sig also drops the byte-order mark that spreadsheets write.
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        columns = list(rows.fieldnames or [])
        records = list(rows)
    return columns, lambda name: [record[name] for record in records]


def _read_jsonl(path: Path) -> tuple[list[str], Callable[[str], list[Any]]]:
    records: list[dict[str, Any]] = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"line {number} is not JSON ({error.msg}).") from error
                if not isinstance(record, dict):
                    raise ValueError(f'line {number} is not a JSON object such as {{"path": "a.jpg"}}.')
                records.append(record)
    columns = list(dict.fromkeys(name for record in records for name in record))
    return columns, lambda name: [record.get(name) for record in records]


def _read_parquet(path: Path) -> tuple[list[str], Callable[[str], list[Any]]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    return file.schema_arrow.names, lambda name: as_list(file.read(columns=[name])[name])
