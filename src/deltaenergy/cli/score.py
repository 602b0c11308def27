"""`deltaenergy score`: class, confidence, score and verdict for every image."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err, out
from deltaenergy.cli.output import check_output, print_csv, write_rows
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.detector import Detector
    from deltaenergy.scores.base import Score


def score(
    photos: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs, a table with a path column, or - for standard input."),
    ],
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    scores: common.ScoreOption = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    known: Annotated[
        list[str] | None,
        typer.Option("--known", help="In-distribution images to set the threshold with, if there is no --detector."),
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

    The verdict known/unknown needs a threshold: give --detector (written by calibrate or tune), or --known with
    in-distribution images. Without either, the table has labels and scores only.
    """
    from deltaenergy.data.inputs import load_images

    check_output(out_file)
    # Resolved before the model is loaded, so that a mistyped path is reported at once.
    images = load_images(common.read_photo_arguments(photos))
    if detector is not None:
        for name, value in (("--classes", classes), ("--score", scores), ("--template", template), ("--known", known)):
            if value:
                raise InputError(f"{name} is part of the detector in {detector}: give one or the other.")
        detectors = [_load(detector, device)]
        classifier, used = detectors[0].classifier, [detectors[0].score]
    else:
        used = common.make_scores(scores)
        classifier = common.make_classifier(common.load_model_with_status(model, device), classes, template)
        detectors = _calibrate(classifier, used, known, keep, batch_size)
    _check_fitted(used, detectors)
    rows, unreadable = _score(classifier, used, detectors, images, batch_size)
    _emit(rows, unreadable, classifier, used, detectors, out_file, json_output)
    common.finish(unreadable)


def _load(folder: str, device: str) -> Detector:
    from deltaenergy.detector import Detector

    with err.status(f"Loading detector {folder} …"):
        return Detector.load(folder, device=device)


def _calibrate(
    classifier: Classifier, scores: list[Score], known: list[str] | None, keep: float, batch_size: int
) -> list[Detector]:
    """One detector per score, calibrated on the same encoded images; none if there are no known images."""
    from deltaenergy.detector import Detector
    from deltaenergy.scoring import score_images

    if not known:
        return []
    detectors = [common.prepare(Detector(classifier, score)) for score in scores]
    with common.progress_bar("Calibrating") as progress:
        images = known[0] if len(known) == 1 else known
        scorers = [detector.scorer for detector in detectors]
        scored = score_images(classifier, scorers, images, fit=True, batch_size=batch_size, progress=progress)
    common.report_unreadable(scored.unreadable)
    return [detector.calibrate_scored(scored, keep) for detector in detectors]


def _check_fitted(scores: list[Score], detectors: list[Detector]) -> None:
    for score in scores:
        if score.needs_fit and not detectors:
            raise InputError(
                f"Score {score.spec!r} is fitted on in-distribution images: give some with --known, or a --detector."
            )


def _score(
    classifier: Classifier, scores: list[Score], detectors: list[Detector], images: Any, batch_size: int
) -> tuple[list[dict[str, Any]], list[Any]]:
    from deltaenergy.detector import Detector
    from deltaenergy.scoring import score_images

    for detector in detectors or [Detector(classifier, score) for score in scores]:
        common.prepare(detector)
    with common.progress_bar("Scoring") as progress:
        scored = score_images(classifier, scores, images, batch_size=batch_size, progress=progress)
    rows: list[dict[str, Any]] = [
        {"path": item.id, "label": classifier.classes[index], "confidence": float(confidence)}
        for item, index, confidence in zip(scored.items, scored.predicted, scored.confidence)
    ]
    verdicts = [detector.judge(scored) for detector in detectors]
    for i, row in enumerate(rows):
        for position, score in enumerate(scores):
            # One score has plain column names; several are told apart by theirs.
            mark = "" if len(scores) == 1 else f" {score.spec}"
            row[f"score{mark}" if len(scores) == 1 else score.spec] = float(scored.values[score.spec][i])
            row[f"p_value{mark}"] = verdicts[position][i].p_value if verdicts else None
            row[f"is_ood{mark}"] = verdicts[position][i].is_ood if verdicts else None
    return rows, scored.unreadable


def _emit(
    rows: list[dict[str, Any]],
    unreadable: list[Any],
    classifier: Classifier,
    scores: list[Score],
    detectors: list[Detector],
    out_file: Path | None,
    json_output: bool,
) -> None:
    columns = list(rows[0]) if rows else ["path", "label", "confidence", "score", "p_value", "is_ood"]
    if out_file is not None:
        write_rows(out_file, rows, columns)
        err.print(f"{len(rows)} image(s) written to {out_file}", markup=False)
    if json_output:
        common.print_json(
            {
                "model": classifier.model.describe(),
                "classes_hash": classifier.classes_hash,
                "scores": [score.spec for score in scores],
                "thresholds": [detector.threshold for detector in detectors],
                "images": rows,
                "unreadable": [{"path": image.id, "reason": image.reason} for image in unreadable],
            }
        )
    elif out_file is None:
        if sys.stdout.isatty():
            _print_table(rows, scores, has_threshold=bool(detectors))
        else:
            print_csv(rows, columns)


def _print_table(rows: list[dict[str, Any]], scores: list[Score], *, has_threshold: bool) -> None:
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
    for row in rows:
        cells: list[str | Text] = [Text(row["path"]), Text(row["label"]), f"{row['confidence']:.2f}"]
        for score in scores:
            mark, name = ("", "score") if len(scores) == 1 else (f" {score.spec}", score.spec)
            cells.append(f"{row[name]:.4g}")
            if has_threshold:
                unknown = row[f"is_ood{mark}"]
                cells += [f"{row[f'p_value{mark}']:.3f}", Text("unknown", "red") if unknown else Text("known", "green")]
        table.add_row(*cells)
    out.print(table)
    if not has_threshold:
        err.print("[dim]No verdicts without a threshold: add --known DIR, or --detector DIR (see calibrate).[/]")
