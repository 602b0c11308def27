"""`deltaenergy choose`: rank scores on in-distribution images alone, by leaving classes out in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err, out
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.choosing import Choice
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.scores.base import Score


def choose(
    id_images: Annotated[
        str, typer.Option("--id", help="In-distribution images: one folder per class, or a table with labels.")
    ],
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            "-s",
            help="Candidate; repeat it, separate by commas, or all (that work on features). [default: thirteen]",
            show_default=False,
        ),
    ] = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Parts the classes are dealt into.")] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the deal and the intervals.")] = 0,
    out_folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Calibrate a detector with the best score and save it here.")
    ] = None,
    keep: common.KeepOption = 0.95,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Find the score that best tells your classes from classes like them, without any out-of-distribution image.

    The classes are dealt into --folds parts. Each part in turn is taken off the class list, and its images play the
    unknowns. Without --classes, the names of the class folders are the class names. With --detector, its classifier
    is used.
    """
    from deltaenergy.choosing import CANDIDATES, choose_from_features, labelled_features
    from deltaenergy.detector import Detector

    if out_folder is not None and out_folder.is_file():
        raise InputError(f"--out {out_folder} is a file. Give a folder, which is made if it does not exist.")
    candidates = feature_scores(scores or CANDIDATES)
    classifier = _classifier(id_images, classes, model, template, detector, device)
    with common.progress_bar("Encoding images") as progress:
        features, truth, unreadable = labelled_features(classifier, id_images, batch_size=batch_size, progress=progress)
    with common.progress_bar("Leaving classes out") as progress:
        choice = choose_from_features(
            classifier, features, truth, candidates, folds=folds, seed=seed, unreadable=unreadable, progress=progress
        )
    if out_folder is not None:
        Detector(classifier, choice.best).calibrate(features, keep).save(out_folder)
    if json_output:
        common.print_json({**choice.to_dict(), "detector": None if out_folder is None else str(out_folder)})
    else:
        _print(choice, out_folder)
    common.finish(unreadable)


def feature_scores(specs: Sequence[str]) -> list[Score]:
    """The scores that `--score` names; `all` stands for those that need no patches or pixels."""
    scores = common.make_scores(specs)
    return [score for score in scores if not score.needs_images] if "all" in specs else scores


def _classifier(
    images: str, classes: str | None, model: str, template: list[str] | None, detector: str | None, device: str
) -> Classifier:
    """The detector's, or a zero-shot one of the named classes, or of the classes that the images are labelled with."""
    from deltaenergy.detector import Detector

    if detector is not None:
        if classes or template:
            raise InputError(f"--classes and --template are part of the detector in {detector}.")
        with err.status(f"Loading detector {detector} …"):
            return Detector.load(detector, device=device).classifier
    if classes is None:
        from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
        from deltaenergy.data.inputs import load_images
        from deltaenergy.labels import class_names

        names = class_names(load_images(images))
        if not names:
            raise InputError(
                f"--id {images}: the images have no classes. Sort them into one folder per class, or give a table "
                "with a label column."
            )
        return ZeroShotClassifier(common.load_model_with_status(model, device), names, templates=template or None)
    return common.make_classifier(common.load_model_with_status(model, device), classes, template)


def _print(choice: Choice, out_folder: Path | None) -> None:
    from rich.table import Table

    from deltaenergy.choosing import CAVEAT

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("score", no_wrap=True)
    for heading in ("AUROC", "interval", "behind the best", "FPR95"):
        table.add_column(heading, justify="right", no_wrap=True)
    for candidate in choice.ranking:
        auroc, behind = candidate.auroc, candidate.behind
        gap = "" if candidate is choice.ranking[0] else _percent(behind.value, behind.low, behind.high)
        table.add_row(
            candidate.spec,
            f"{100 * auroc.value:.1f}",
            f"{100 * auroc.low:.1f} to {100 * auroc.high:.1f}",
            gap,
            f"{100 * candidate.fpr95:.1f}",
        )
    out.print(table)
    err.print(
        f"{choice.images} images of {choice.classes} classes; {choice.folds} parts left out in turn, seed "
        f"{choice.seed}. Intervals: 95 %, classes resampled.",
        markup=False,
    )
    rivals = [candidate for candidate in choice.ranking[1:] if candidate.behind.low <= 0]
    if rivals:
        err.print(
            f"{len(rivals)} other(s) may be as good: the interval of their distance to the best holds 0.", markup=False
        )
    err.print(CAVEAT, style="yellow", markup=False)
    err.print(f'Use it:  --score "{choice.best}"', markup=False)
    if out_folder is not None:
        err.print(f"Detector saved to {out_folder}.", markup=False)


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"
