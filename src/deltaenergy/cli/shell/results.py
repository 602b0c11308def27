"""Verdicts on their way out: a table on a terminal, CSV to a pipe, a file, JSON; and the closing lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.core.text import counted, visible
from deltaenergy.detector.fiftyone import names_fiftyone, write_fiftyone
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE, verdict_columns
from deltaenergy.detector.verdict_files import print_csv, stream_rows, write_rows

if TYPE_CHECKING:
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.verdict import Counts
    from deltaenergy.detector.verdicts import Verdicts

Rows = list[dict[str, Any]]


def emit(
    parts: Iterable[Verdicts],
    classes: Sequence[str],
    *,
    top_k: int = 1,
    out_file: Path | None = None,
    document: Callable[[Rows], dict[str, Any]] | None = None,
) -> None:
    """To a file or a pipe as they come. A terminal's table needs all rows, and so does JSON.

    `document` makes the JSON document from the rows, where JSON was requested.
    """
    columns = verdict_columns(min(top_k, len(classes)))
    rows_of_parts = (part.rows() for part in parts)
    if out_file is not None and names_fiftyone(out_file):
        rows = [row for part in rows_of_parts for row in part]
        _write_fiftyone(rows, classes, out_file)
        if document is not None:
            common.print_json(document(rows))
        return
    if out_file is not None and document is None:
        err.print(f"{counted(stream_rows(out_file, rows_of_parts, columns), 'image')} written to {out_file}")
        return
    if document is None and not sys.stdout.isatty():
        print_csv([], columns)
        for part in rows_of_parts:
            print_csv(part, columns, header=False)
        return
    rows = [row for part in rows_of_parts for row in part]
    if document is None:
        _print_table(rows, columns)
        return
    if out_file is not None:
        write_rows(out_file, rows, columns)
        err.print(f"{counted(len(rows), 'image')} written to {out_file}")
    common.print_json(document(rows))


def _write_fiftyone(rows: Rows, classes: Sequence[str], folder: Path) -> None:
    from deltaenergy.files import keeping_result

    written: list[tuple[int, int]] = []
    keeping_result(folder, lambda place: written.append(write_fiftyone(place, rows, classes)), what="The table")
    images, skipped = written[-1]
    err.print(f"{counted(images, 'image')} written to {folder}")
    if skipped:
        err.print(f"{counted(skipped, 'image')} skipped: not a file, so FiftyOne cannot show it.", style="yellow")


def print_counts(counts: Counts) -> None:
    """The closing line on standard error."""
    unreadable = f"{counts.unreadable:,} unreadable"
    if counts.rejected is None:
        err.print(f"{counts.images:,} scored, {unreadable}.")
        err.print("No verdicts without a threshold: add --id FOLDER, or --detector FOLDER.", style="dim")
        return
    err.print(f"{counts.images - counts.rejected:,} {KNOWN}, {counts.rejected:,} {NONE_OF_THESE}, {unreadable}.")


def print_guarantee(detector: Detector, fdr: float | None = None) -> None:
    """What the verdicts guarantee, on standard error; in yellow where that is less than what was requested."""
    from deltaenergy.stats.thresholds import percent

    guarantee = detector.guarantee
    if guarantee is None:
        return
    if fdr is None:
        err.print(visible(str(guarantee)), style=None if guarantee.holds else "yellow")
        return
    count = len(detector.calibration_scores)
    err.print(
        f"Of the rejected images, at most {percent(fdr)} are known in expectation. With {count} calibration images no "
        f"p-value is below {1 / (count + 1):.2g}: to find a few unknown images among very many, calibrate on about "
        f"1 / ({fdr:g} × their share) images."
    )


def _print_table(rows: Rows, columns: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    ranks = [rank for rank in range(2, len(columns)) if f"label_{rank}" in columns]
    judged = any(row["is_ood"] is not None for row in rows)
    table = Table(box=None, header_style="bold")
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("confidence", justify="right")
    for rank in ranks:
        table.add_column(f"class {rank}")
        table.add_column("", justify="right")
    table.add_column(rows[0]["score_name"] if rows else "score", justify="right")
    if judged:
        table.add_column("p", justify="right")
        table.add_column("verdict")
    for row in rows:
        cells: list[str | Text] = [visible(row["path"]), visible(row["label"]), f"{row['confidence']:.2f}"]
        for rank in ranks:
            cells += [visible(row[f"label_{rank}"]), f"{row[f'confidence_{rank}']:.2f}"]
        cells.append(f"{row['score']:.4g}")
        if judged:
            p_value = "–" if row["p_value"] is None else f"{row['p_value']:.3f}"
            cells += [p_value, Text(row["verdict"], "red" if row["is_ood"] else "green")]
        table.add_row(*cells)
    out.print(table)
