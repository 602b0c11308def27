"""Result files of benchmarks: one small file per finished cell, and two tables made from all of them.

    RESULTS/cells/<id>.json     one cell = one method on one case with one seed; written atomically
    RESULTS/runs/<id>.json      what was requested, and what was skipped and why
    RESULTS/results.parquet     every measured value, one per row, with everything that identifies it
    RESULTS/results.json        the same, and the runs
    RESULTS/log.jsonl           when each cell was finished and how long it took; never compared

A cell's id is a hash of everything that decides its values, so results of several models, benchmarks and protocols
share a folder, and a finished cell is not computed again. Only the log has times: a run that was killed and resumed
ends with the same bytes. A cell has a checksum, its name is the hash of its identity, and every value is checked on
reading.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltaenergy.data.items import Unreadable
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import hash_value, read_json, replacing, write_json
from deltaenergy.files.artifact import CHECKSUM, check_seal, sealed
from deltaenergy.files.atomic import remove_litter
from deltaenergy.files.schema import Where, list_of, mapping_of, number, optional, path_text, record, text, truth, whole

FORMAT = 1
# Columns of results.parquet: what identifies a value, then the value.
IDENTITY = (
    "benchmark", "spec_hash", "case", "group", "seed", "method", "tuner", "score", "protocol", "limit", "shots",
    "search", "template", "model", "model_fingerprint", "classes_hash", "n_classes", "fitted_on", "images_hash",
    "deltaenergy", "torch", "cell",
)  # fmt: skip
# Only some cells: the table's settings of the row, and fixed parameters of a search, as JSON; the batch if it matters.
OPTIONAL = ("recipe", "grid", "fixed", "batch_size")
MEASURED = ("closed", "kind", "open", "metric", "value", "n_closed", "n_open")
WHOLE_NUMBERS = ("seed", "limit", "shots", "n_classes", "n_closed", "n_open", "batch_size")


@dataclass(frozen=True)
class Skip:
    """Something that was requested and not done."""

    case: str
    what: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """A finished cell: its identity, results, curves for plots, and what was skipped."""

    identity: dict[str, Any]
    rows: list[dict[str, Any]]
    curves: list[dict[str, Any]]
    skipped: tuple[Skip, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def id(self) -> str:
        return str(self.identity["cell"])


class Results:
    """A results folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.is_file():
            raise InputError(f"{self.folder} is a file; results need a folder, which is created if it does not exist.")

    def get(self, cell_id: str) -> Cell | None:
        """The cell if it is finished."""
        path = self._cell_file(cell_id)
        return _read_cell(path) if path.is_file() else None

    def add(self, cell: Cell, seconds: float) -> None:
        """Write a finished cell, then a line of the log."""
        described = {
            "format": FORMAT,
            "identity": cell.identity,
            "rows": cell.rows,
            "skipped": [asdict(skip) for skip in cell.skipped],
            "unreadable": [asdict(image) for image in cell.unreadable],
            "curves": cell.curves,
        }
        write_json(self._cell_file(cell.id), sealed(described))
        line = {"cell": cell.id, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "seconds": round(seconds, 3)}
        # One write in append mode: lines of several runs in one folder do not mix.
        handle = os.open(self.folder / "log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)

    def cells(self) -> list[Cell]:
        return sorted(map(_read_cell, (self.folder / "cells").glob("*.json")), key=_cell_order)

    def runs(self) -> list[dict[str, Any]]:
        found = {path: read_json(path) for path in sorted((self.folder / "runs").glob("*.json"))}
        for path, run in found.items():
            _RUN(run, Where(str(path)))
        return list(found.values())

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Record what was requested and skipped; the same request replaces its record."""
        request = {key: record[key] for key in ("benchmark", "spec_hash", "protocol", "limit", "model_fingerprint")}
        write_json(self.folder / "runs" / f"{record['benchmark']}-{hash_value(request)}.json", dict(record))

    def write_tables(self) -> None:
        """Make results.parquet and results.json from all cells, each replaced atomically."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        cells = self.cells()
        rows = [{**cell.identity, **row} for cell in cells for row in cell.rows]
        types = {**dict.fromkeys(WHOLE_NUMBERS, pa.int64()), "value": pa.float64(), "search": pa.bool_()}
        named = (*IDENTITY, *OPTIONAL, *MEASURED)
        schema = pa.schema([(name, types.get(name, pa.string())) for name in named])
        columns = {name: [row.get(name) for row in rows] for name in schema.names}
        # Opened here, because Arrow accepts only paths that are valid text.
        with replacing(self.folder / "results.parquet") as temporary, temporary.open("wb") as file:
            pq.write_table(pa.table(columns, schema=schema), file)
        for place in ("cells", "runs"):
            # A run that was killed at the end of a cell leaves a temporary folder, and the next may have no cell to
            # write.
            remove_litter(self.folder / place)
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


_TEXT, _TEXT_OR_NONE = text(), optional(text())
_COUNT_OR_NONE = optional(whole(0))
# Everything in an identity decides the hash, except the name of the model, the version of torch and the hash itself.
_UNDECIDING = ("model", "torch", "cell")
_IDENTITY_ENTRIES = {
    **dict.fromkeys(IDENTITY, _TEXT),
    **dict.fromkeys(("group", "tuner", "template", "fitted_on"), optional(text(blank=True))),
    **dict.fromkeys(("seed", "limit", "shots"), _COUNT_OR_NONE),
    "search": optional(truth()),
    "n_classes": whole(1),
    **dict.fromkeys(("recipe", "grid", "fixed"), _TEXT),
    "batch_size": whole(1),
}
_ROW = record(
    {
        **dict.fromkeys(("closed", "kind", "metric"), _TEXT),
        "open": _TEXT_OR_NONE,
        "value": number(),
        "n_closed": whole(0),
        "n_open": whole(0),
    }
)
_SHARES, _SCORES = list_of(number(0, 1), least=1), list_of(number(), least=1)
_CURVE = record(
    {
        **dict.fromkeys(("closed", "kind", "open"), _TEXT),
        **dict.fromkeys(("ood_kept", "id_kept"), _SHARES),
        **dict.fromkeys(("closed_scores", "open_scores"), _SCORES),
    }
)
_CELL = record(
    {
        "format": whole(FORMAT, FORMAT),
        "identity": record(_IDENTITY_ENTRIES, may_lack=OPTIONAL),
        "rows": list_of(_ROW),
        "skipped": list_of(record({"case": _TEXT, "what": _TEXT, "reason": text(blank=True)})),
        "unreadable": list_of(record({"id": path_text(), "reason": path_text()})),
        "curves": list_of(_CURVE),
        CHECKSUM: _TEXT,
    }
)
_RUN = record(
    {
        **dict.fromkeys(("benchmark", "title", "spec_hash", "protocol", "model_fingerprint", "deltaenergy"), _TEXT),
        "limit": _COUNT_OR_NONE,
        "seeds": list_of(whole(0)),
        "methods": list_of(_TEXT),
        "model": record({"name": _TEXT, "fingerprint": _TEXT}, others=True),
        "skipped": list_of(mapping_of(text(blank=True))),
        "unreadable": list_of(record({"id": path_text(), "reason": path_text()})),
    },
    others=True,
)


def _read_cell(path: Path) -> Cell:
    found = read_json(path)
    try:
        _CELL(found, Where(str(path)))
        check_seal(found, path)
        identity = found["identity"]
        decides = {key: value for key, value in identity.items() if key not in _UNDECIDING}
        if not identity["cell"] == path.stem == hash_value(decides):
            raise ArtifactError(f"{path} does not match its name: the hash of its identity differs.")
    except ArtifactError as error:
        raise ArtifactError(f"{error} It is not a complete cell: remove it, and it will be run again.") from error
    return Cell(
        identity,
        found["rows"],
        found["curves"],
        tuple(Skip(**skip) for skip in found["skipped"]),
        tuple(Unreadable(**image) for image in found["unreadable"]),
    )


def _cell_order(cell: Cell) -> tuple[Any, ...]:
    identity, first = cell.identity, ("benchmark", "model", "protocol", "case", "method")
    return *(identity[name] for name in first), -1 if identity["seed"] is None else identity["seed"], cell.id
