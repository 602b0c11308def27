"""`deltaenergy score --adapt`: the adaptive stream, which says in every output that order matters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.output import print_csv, stream_rows, write_rows
from deltaenergy.cli.shell.records import unreadable_records
from deltaenergy.cli.shell.text import visible

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem, Unreadable
    from deltaenergy.detector.adaptive import AdaptiveDetector

# `adapted_by` stands in every row, so that a table without its closing line still says what it is.
COLUMNS = ["path", "position", "label", "confidence", "score", "is_ood", "adapted_by"]


def score_adapted(
    classifier: Classifier,
    adapter: str,
    images: Any,
    id_images: list[ImageItem],
    keep: float,
    out_file: Path | None,
    json_output: bool,
    batch_size: int,
) -> None:
    """Score images in their order with a memory of the ones before."""
    from deltaenergy.detector.adaptive import ORDER_DEPENDENT, AdaptiveDetector

    detector = AdaptiveDetector(classifier, adapter)
    with common.progress_bar(f"Preparing {detector.adapter.spec}") as progress:
        detector.prepare(progress)
    if id_images:
        with common.progress_bar("Calibrating") as progress:
            detector.calibrate(id_images, keep, batch_size=batch_size, progress=progress)
    unreadable: list[Unreadable] = []
    with common.progress_bar("Scoring") as progress:
        parts = _records(detector, detector.batches(images, batch_size=batch_size, progress=progress), unreadable)
        _emit(parts, unreadable, detector, out_file, json_output)
    err.print(ORDER_DEPENDENT)
    common.finish(unreadable)


def _records(
    detector: AdaptiveDetector, batches: Iterator[Any], unreadable: list[Unreadable]
) -> Iterator[list[dict[str, Any]]]:
    position = 0
    for batch in batches:
        unreadable += batch.unreadable
        verdicts = [asdict(verdict) for verdict in detector.judge(batch, position)]
        position += len(verdicts)
        yield [{"path": verdict.pop("id"), **verdict, "adapted_by": detector.adapter.spec} for verdict in verdicts]


def _emit(
    parts: Iterator[list[dict[str, Any]]],
    unreadable: list[Unreadable],
    detector: AdaptiveDetector,
    out_file: Path | None,
    json_output: bool,
) -> None:
    """To a file or a pipe as they come; JSON and a terminal's table need all records."""
    from deltaenergy.detector.adaptive import ORDER_DEPENDENT

    if out_file is not None and not json_output:
        count = stream_rows(out_file, parts, COLUMNS)
        err.print(f"{count} image(s) written to {out_file}")
        return
    if not json_output and not sys.stdout.isatty():
        print_csv([], COLUMNS)
        for part in parts:
            print_csv(part, COLUMNS, header=False)
        return
    records = [record for part in parts for record in part]
    if out_file is not None:
        write_rows(out_file, records, COLUMNS)
        err.print(f"{len(records)} image(s) written to {out_file}")
    if json_output:
        classifier = detector.classifier
        common.print_json(
            {
                "model": classifier.model.describe(),
                "classes_hash": classifier.classes_hash,
                "adaptive": {
                    "adapter": detector.adapter.spec,
                    "order_dependent": True,
                    "p_values": None,
                    "note": ORDER_DEPENDENT,
                },
                "threshold": detector.threshold,
                "images": records,
                "unreadable": unreadable_records(unreadable),
            }
        )
    else:
        _print_table(records, detector)


def _print_table(records: list[dict[str, Any]], detector: AdaptiveDetector) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    table.add_column("image", overflow="fold")
    table.add_column("class")
    for number in ("confidence", detector.adapter.spec):
        table.add_column(number, justify="right")
    if detector.threshold is not None:
        table.add_column("verdict")
    for record in records:
        cells: list[str | Text] = [visible(record["path"]), visible(record["label"])]
        cells += [f"{record['confidence']:.2f}", f"{record['score']:.4g}"]
        if detector.threshold is not None:
            cells.append(Text("unknown", "red") if record["is_ood"] else Text("known", "green"))
        table.add_row(*cells)
    out.print(table)
