"""Verdicts where each image must have a row: the table of `Verdicts`, and `error`, why an image has no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaenergy.detector.verdict import verdict_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.detector.verdicts import Verdicts


def error_schema(classes: int = 1) -> pa.Schema:
    """The columns of `with_errors`."""
    import pyarrow as pa

    return verdict_schema(classes).append(pa.field("error", pa.string()))


def with_errors(verdicts: Verdicts) -> pa.Table:
    """A row for each image that was read, then one for each that was not: with its path and error, and nothing else."""
    import pyarrow as pa

    table = verdicts.to_table()
    judged = table.append_column("error", pa.nulls(len(table), pa.string()))
    failed = [{"path": image.id, "error": image.reason} for image in verdicts.unreadable]
    return pa.concat_tables([judged, pa.Table.from_pylist(failed, judged.schema)])
