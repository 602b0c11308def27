"""`deltaenergy explain`: maps of what speaks for a class or moves the score, as a page or as one PNG per image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.commands.paper_figure import write_paper_figure
from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.exits import keeping
from deltaenergy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.detector.detector import Detector


def explain(
    context: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders, globs, a table with a path column, or - for standard input.", show_default=False
        ),
    ] = None,
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
            "--method", help="value-path, rollout (transformers), grad-cam (convolutional), occlusion, or auto."
        ),
    ] = "auto",
    target: Annotated[
        str, typer.Option("--target", help="class: the one each image is named; score: the score; or a class name.")
    ] = "class",
    paper_figure: Annotated[
        bool,
        typer.Option("--paper-figure", help="Measure the paper's Figure 1 on --known and --unknown images instead."),
    ] = False,
    known: Annotated[
        str | None, typer.Option("--known", help="Images of the classes, for --paper-figure.", show_default=False)
    ] = None,
    unknown: Annotated[
        str | None, typer.Option("--unknown", help="Images of none of them, for --paper-figure.", show_default=False)
    ] = None,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Show where in each image it stands what speaks for its class, or what moves its score.

    Give --detector (written by calibrate or tune), or --classes. The page also takes ΔEnergy apart for every image.
    After an interruption, the same command goes on where it stopped. With --paper-figure, images come from --known and
    --unknown: does attention stay where P_j < 0 is masked, and move where P_j > 0 is?
    """
    from deltaenergy.explanation.page import check_page_name, png_names, write_explanations
    from deltaenergy.files import check_writable
    from deltaenergy.source import load_images

    place = common.Place(device, backend, precision, calibrate_on)
    common.refuse_beside_detector(context, detector, "classes", "score", "template", "model")
    if paper_figure:
        for option, given in (("IMAGES", images), ("--png", png), ("--score", score)):
            if given:
                raise InputError(f"{option} has no part in --paper-figure: leave it out.")
        _check_method(method)
        write_paper_figure(known, unknown, out_file, detector, classes, model, template, method, place, batch_size)
        return
    if known is not None or unknown is not None:
        raise InputError("--known and --unknown are for --paper-figure: give that as well.")
    if not images:
        raise InputError("Give the images to explain: files, folders, globs, a table, or - for standard input.")
    if out_file is None and png is None:
        raise InputError("Give --out page.html for a page, --png DIR for one PNG per image, or both.")
    if out_file is not None:
        check_page_name(out_file, "--out")
        check_writable(out_file, option="--out")
    if png is not None:
        check_writable(png, folder=True, option="--png")
    _check_method(method)
    # Resolved before the model is loaded, so that a mistyped path is reported at once.
    items = load_images(common.read_image_arguments(images))
    png_names(items, png)
    judge = _judge(detector, classes, model, score, template, target, place)
    with keeping("Finished images are kept: the same command goes on."), common.progress_bar("Explaining") as progress:
        written = write_explanations(
            judge,
            items,
            out_file,
            png=png,
            method=method,
            target=target,
            batch_size=batch_size,
            progress=progress,
            command=common.typed(),
        )
    before = f", {written.from_before} of them in an earlier run" if written.from_before else ""
    err.print(f"{written.images} explained{before}.")
    for where, what in ((out_file, "Page"), (png, "PNGs")):
        if where is not None:
            err.print(f"{what} written to {where}", markup=False)
    common.finish(written.unreadable)


def _check_method(name: str) -> None:
    """Told before a model is loaded."""
    from deltaenergy.explanation.methods import AUTO, METHODS

    if name != AUTO and name not in METHODS:
        raise InputError(f"Unknown --method {name!r}.{did_you_mean(name, [AUTO, *METHODS])}")


def _judge(
    detector: str | None,
    classes: str | None,
    model: str,
    score: str | None,
    template: list[str] | None,
    target: str,
    place: common.Place,
) -> Detector | Classifier:
    """The detector, or a zero-shot classifier of the class names, with a score if one is asked for."""
    from deltaenergy.detector.detector import Detector
    from deltaenergy.explanation.targets import SCORE
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
