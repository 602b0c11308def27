"""`deltaenergy explain`: heatmaps of what supports a class or drives the score, as a page or as one PNG per image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.detector.detector import Detector


def explain(
    context: typer.Context,
    images: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs, a table with a path column, or - for standard input."),
    ],
    out_file: Annotated[Path | None, typer.Option("--out", "-o", help="Write a page to FILE.html.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write one PNG per image to this folder.")] = None,
    detector: common.DetectorOption = None,
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    score: Annotated[
        str | None,
        typer.Option("--score", "-s", help="Score for --target score, if there is no --detector.", show_default=False),
    ] = None,
    template: common.TemplateOption = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto, grad-cam (convolutional), rollout (transformers), occlusion (any, slow) or value-path.",
        ),
    ] = "auto",
    target: Annotated[
        str, typer.Option("--target", help="What to explain: class (the predicted one), score, or a class name.")
    ] = "class",
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Show which parts of each image support its class or drive its score.

    Give --detector (written by calibrate or tune), or --classes. The page also shows, for a rejected image, why it was
    rejected, and ΔEnergy by class for every image.
    """
    from deltaenergy.explanation.methods import check_method
    from deltaenergy.explanation.page import check_outputs, write_explanations
    from deltaenergy.source import load_images

    place = common.ModelPlace(device, backend, precision, calibrate_on)
    common.refuse_beside_detector(context, detector, "classes", "score", "template", "model")
    check_method(method, "--method")
    # All of this is checked before the model is loaded.
    items = load_images(common.read_image_arguments(images))
    check_outputs(items, out_file, png, options=("--out", "--png"))
    by = _detector_or_classifier(detector, classes, model, score, template, target, place)
    with common.progress_bar("Explaining") as progress:
        summary = write_explanations(
            by,
            items,
            out_file,
            png=png,
            method=method,
            target=target,
            batch_size=batch_size,
            progress=progress,
            command=common.typed(),
        )
    err.print(f"{summary.images} explained.")
    for where, what in ((out_file, "Page"), (png, "PNGs")):
        if where is not None:
            err.print(f"{what} written to {where}", markup=False)
    common.finish(summary.unreadable)


def _detector_or_classifier(
    detector: str | None,
    classes: str | None,
    model: str,
    score: str | None,
    template: list[str] | None,
    target: str,
    place: common.ModelPlace,
) -> Detector | Classifier:
    """The detector, or a zero-shot classifier of the class names, with a score if one is asked for."""
    from deltaenergy.detector.detector import Detector
    from deltaenergy.explanation.methods import SCORE
    from deltaenergy.scores.availability import Given, Lack

    if detector is not None:
        return common.prepare(common.load_detector(detector, place))
    used = None
    if score is not None or target == SCORE:
        nothing = Lack("no --detector", "it is fitted on known images: give a --detector.")
        found = common.make_scores(None if score is None else [score], Given().without(id_data=nothing))
        if len(found) > 1:
            raise InputError("A map shows one score: give --score once.")
        used = found[0]
    classifier = common.zero_shot(model, place, classes, template)
    return classifier if used is None else common.prepare(Detector(classifier, used))
