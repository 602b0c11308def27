"""`deltaenergy score`: class, confidence, score and verdict for every image."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err, out
from deltaenergy.cli.output import check_output, print_csv, stream_rows, write_rows
from deltaenergy.cli.records import record_columns, score_keys, scored_records, unreadable_records
from deltaenergy.cli.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem, Unreadable
    from deltaenergy.detector import Detector
    from deltaenergy.scores.base import Score
    from deltaenergy.scores.runnable import Given
    from deltaenergy.scoring import Scored


def score(
    images: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs, a table with a path column, or - for standard input."),
    ],
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    scores: common.ScoreOption = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    id_images: Annotated[
        list[str] | None,
        typer.Option("--id", help="In-distribution images to set the threshold with, if there is no --detector."),
    ] = None,
    keep: common.KeepOption = 0.95,
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the table to FILE.csv, .jsonl or .parquet.")
    ] = None,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Say which class each image is, how sure that is, and whether it is any of the classes.

    The verdict known/unknown needs a threshold: give --detector (written by calibrate or tune), or --id with
    in-distribution images. Without either, the table has labels and scores only.
    """
    from deltaenergy.data.inputs import load_images
    from deltaenergy.data.store_pass import names_a_store
    from deltaenergy.detector import Detector
    from deltaenergy.scores.defaults import WITHOUT_ID_IMAGES
    from deltaenergy.scoring import stream_scores

    check_output(out_file)
    # Resolved before the model is loaded, so that a mistyped path is reported at once; a store is read as it goes.
    given = common.read_image_arguments(images)
    items = given if names_a_store(given) else load_images(given)
    unreadable: list[Unreadable] = []
    if detector is not None:
        for name, value in (("--classes", classes), ("--score", scores), ("--template", template), ("--id", id_images)):
            if value:
                raise InputError(f"{name} is part of the detector in {detector}: give one or the other.")
        detectors = [common.load_detector(detector, device)]
        classifier, used = detectors[0].classifier, [detectors[0].score]
    else:
        id_items = load_images(id_images[0] if len(id_images) == 1 else id_images) if id_images else []
        default = None if id_items else WITHOUT_ID_IMAGES
        used = common.make_scores(scores, _given(items, id_items), default=default)
        classifier = common.zero_shot(model, device, classes, template)
        detectors, unreadable = _calibrate(classifier, used, id_items, keep, batch_size)
    prepared = [common.prepare(one) for one in detectors or [Detector(classifier, score) for score in used]]
    with common.progress_bar("Scoring") as progress:
        scorers = [one.scorer for one in prepared]
        batches = stream_scores(classifier, scorers, items, batch_size=batch_size, progress=progress)
        parts = _records(batches, classifier, used, detectors, unreadable)
        _emit(parts, unreadable, classifier, used, detectors, out_file, json_output)
    common.finish(unreadable)


def _calibrate(
    classifier: Classifier, scores: list[Score], images: list[ImageItem], keep: float, batch_size: int
) -> tuple[list[Detector], list[Unreadable]]:
    """One detector per score, calibrated on the same encoded images; none if there are no images."""
    from deltaenergy.detector import Detector
    from deltaenergy.scoring import score_images

    if not images:
        return [], []
    detectors = [common.prepare(Detector(classifier, score)) for score in scores]
    scorers = [detector.scorer for detector in detectors]
    with common.progress_bar("Calibrating") as progress:
        scored = score_images(classifier, scorers, images, fit=True, batch_size=batch_size, progress=progress)
    return [detector.calibrate_scored(scored, keep) for detector in detectors], list(scored.unreadable)


def _given(images: Any, id_images: list[ImageItem]) -> Given:
    """What is there for scores, before a model is loaded and a prompt encoded."""
    from deltaenergy.scores.runnable import Lack, given_by

    nothing = Lack("no --id", "it is fitted on in-distribution images. Give some with --id, or a --detector.")
    return given_by([images, id_images]).without(id_data=None if id_images else nothing)


def _records(
    batches: Iterator[Scored],
    classifier: Classifier,
    scores: list[Score],
    detectors: list[Detector],
    unreadable: list[Unreadable],
) -> Iterator[list[dict[str, Any]]]:
    """The records of each batch; images that could not be read are added to `unreadable`."""
    for batch in batches:
        unreadable += batch.unreadable
        yield scored_records(batch, classifier.classes, scores, [detector.judge(batch) for detector in detectors])


def _emit(
    parts: Iterator[list[dict[str, Any]]],
    unreadable: list[Unreadable],
    classifier: Classifier,
    scores: list[Score],
    detectors: list[Detector],
    out_file: Path | None,
    json_output: bool,
) -> None:
    """To a file or a pipe as they come; JSON and a terminal's table need all records."""
    columns = record_columns(scores)
    if out_file is not None and not json_output:
        count = stream_rows(out_file, parts, columns)
        err.print(f"{count} image(s) written to {out_file}")
        return
    if not json_output and not sys.stdout.isatty():
        print_csv([], columns)
        for part in parts:
            print_csv(part, columns, header=False)
        return
    records = [record for part in parts for record in part]
    if out_file is not None:
        write_rows(out_file, records, columns)
        err.print(f"{len(records)} image(s) written to {out_file}")
    if json_output:
        common.print_json(
            {
                "model": classifier.model.describe(),
                "classes_hash": classifier.classes_hash,
                "scores": [score.spec for score in scores],
                "thresholds": [detector.threshold for detector in detectors],
                "images": records,
                "unreadable": unreadable_records(unreadable),
            }
        )
    else:
        _print_table(records, scores, has_threshold=bool(detectors))


def _print_table(records: list[dict[str, Any]], scores: list[Score], *, has_threshold: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("confidence", justify="right")
    for score in scores:
        table.add_column(score.spec, justify="right")
        if has_threshold:
            table.add_column("p", justify="right")
            table.add_column("verdict")
    for record in records:
        cells: list[str | Text] = [visible(record["path"]), visible(record["label"]), f"{record['confidence']:.2f}"]
        for score in scores:
            value, p_value, is_ood = score_keys(score, scores)
            cells.append(f"{record[value]:.4g}")
            if has_threshold:
                verdict = Text("unknown", "red") if record[is_ood] else Text("known", "green")
                cells += [f"{record[p_value]:.3f}", verdict]
        table.add_row(*cells)
    out.print(table)
    if not has_threshold:
        err.print("No verdicts without a threshold: add --id DIR, or --detector DIR (see calibrate).", style="dim")
