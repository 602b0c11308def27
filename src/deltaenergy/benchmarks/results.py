"""Result files of benchmarks: one small file per finished cell, and two tables made from all of them.

    RESULTS/cells/<id>.json     one cell = one method on one case with one seed; written whole or not at all
    RESULTS/runs/<id>.json      what was asked for, and what was skipped and why
    RESULTS/results.parquet     every measured value, one per row, with everything that identifies it
    RESULTS/results.json        the same, and the runs
    RESULTS/log.jsonl           when each cell was finished and how long it took: never part of a comparison

A cell's id is a hash of everything that decides its values, so that results of several models, benchmarks and
protocols live in one folder, and a cell that is there need not be computed again. Nothing in them but the log holds
a time: a run that was killed and gone on with ends with the same bytes as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltaenergy.data.items import Unreadable
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import read_json, replacing, write_json

FORMAT = 1
# Columns of results.parquet: what identifies a value, then the value.
IDENTITY = (
    "benchmark",
    "spec_hash",
    "case",
    "group",
    "seed",
    "method",
    "tuner",
    "score",
    "protocol",
    "limit",
    "shots",
    "search",
    "template",
    "model",
    "model_fingerprint",
    "classes_hash",
    "n_classes",
    "fitted_on",
    "images_hash",
    "deltaenergy",
    "torch",
    "cell",
)
MEASURED = ("closed", "kind", "open", "metric", "value", "n_closed", "n_open")


@dataclass(frozen=True)
class Skip:
    """Something that was asked for and is not done."""

    case: str
    what: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """A finished cell: what it is, what was measured, the curves for plots, and what it could not do."""

    identity: dict[str, Any]
    rows: list[dict[str, Any]]
    curves: list[dict[str, Any]]
    skipped: tuple[Skip, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def id(self) -> str:
        """The name of its file."""
        return str(self.identity["cell"])


class Results:
    """A results folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.is_file():
            raise InputError(f"{self.folder} is a file; results need a folder, which is made if it does not exist.")

    def get(self, cell_id: str) -> Cell | None:
        """The cell if it is finished."""
        path = self._cell_file(cell_id)
        return _read_cell(path) if path.is_file() else None

    def add(self, cell: Cell, seconds: float) -> None:
        """Write a finished cell, then a line of the log."""
        write_json(
            self._cell_file(cell.id),
            {
                "format": FORMAT,
                "identity": cell.identity,
                "rows": cell.rows,
                "skipped": [asdict(skip) for skip in cell.skipped],
                "unreadable": [asdict(image) for image in cell.unreadable],
                "curves": cell.curves,
            },
        )
        line = {"cell": cell.id, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "seconds": round(seconds, 3)}
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def cells(self) -> list[Cell]:
        """All finished cells, in a fixed order."""
        return sorted(map(_read_cell, (self.folder / "cells").glob("*.json")), key=_cell_order)

    def runs(self) -> list[dict[str, Any]]:
        """What was asked for, one record per run."""
        return [read_json(path) for path in sorted((self.folder / "runs").glob("*.json"))]

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Record what was asked for and what was skipped; the same request replaces its record."""
        request = {key: record[key] for key in ("benchmark", "spec_hash", "protocol", "limit", "model_fingerprint")}
        write_json(self.folder / "runs" / f"{record['benchmark']}-{hash_value(request)}.json", dict(record))

    def write_tables(self) -> None:
        """Make results.parquet and results.json from all cells, each replaced at once."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        cells, types = self.cells(), _arrow_types()
        rows = [{**cell.identity, **row} for cell in cells for row in cell.rows]
        schema = pa.schema([(name, types.get(name, pa.string())) for name in (*IDENTITY, *MEASURED)])
        columns = {name: [row.get(name) for row in rows] for name in schema.names}
        with replacing(self.folder / "results.parquet") as temporary:
            pq.write_table(pa.table(columns, schema=schema), temporary)
        write_json(
            self.folder / "results.json",
            {
                "format": FORMAT,
                "runs": self.runs(),
                "cells": [{"identity": cell.identity, "rows": cell.rows} for cell in cells],
            },
        )

    def _cell_file(self, cell_id: str) -> Path:
        return self.folder / "cells" / f"{cell_id}.json"


def _read_cell(path: Path) -> Cell:
    record = read_json(path)
    try:
        if record["format"] != FORMAT:
            raise KeyError("format")
        return Cell(
            record["identity"],
            record["rows"],
            record["curves"],
            tuple(Skip(**skip) for skip in record["skipped"]),
            tuple(Unreadable(**image) for image in record["unreadable"]),
        )
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is no whole cell of format {FORMAT}: remove it, and it is done again.") from error


def hash_value(value: Any) -> str:
    """A short hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def _cell_order(cell: Cell) -> tuple[Any, ...]:
    identity = cell.identity
    return (
        identity["benchmark"],
        identity["model"],
        identity["protocol"],
        identity["case"],
        identity["method"],
        -1 if identity["seed"] is None else identity["seed"],
        cell.id,
    )


def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    whole = dict.fromkeys(("seed", "limit", "shots", "n_classes", "n_closed", "n_open"), pa.int64())
    return {**whole, "value": pa.float64(), "search": pa.bool_()}
