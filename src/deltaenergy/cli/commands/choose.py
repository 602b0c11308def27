"""`deltaenergy choose`: rank scores on known images alone, by leaving classes out in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.options import check_count, check_seed, complete_score
from deltaenergy.cli.shell.records import detector_record
from deltaenergy.core.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem
    from deltaenergy.evaluation.choose import Choice
    from deltaenergy.evaluation.disagreement import ScoreDisagreement
    from deltaenergy.scores.base import Score


def choose(
    context: typer.Context,
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
            autocompletion=complete_score,
            help="Candidate; repeat it, separate by commas, or all. Default: all that work on features, and some τ.",
            show_default=False,
        ),
    ] = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    folds: Annotated[
        int, typer.Option("--folds", min=2, callback=check_count, help="Parts the classes are split into.")
    ] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, callback=check_seed, help="Of split and intervals.")] = 0,
    out_folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Calibrate a detector with the best score and save it here.")
    ] = None,
    disagreements: Annotated[
        int,
        typer.Option(
            "--disagreements",
            min=0,
            callback=check_count,
            help="List so many images on which the best score and a rival differ.",
        ),
    ] = 0,
    keep: common.KeepOption = 0.95,
    overwrite: common.OverwriteOption = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Find the score that best tells your classes from everything else, without any image of none of them.

    The classes are split into --folds parts. Each part in turn is taken off the class list, and its images play the
    unknowns. Without --classes, the names of the class folders are the class names. With --detector, its classifier is
    used.
    """
    from deltaenergy.detector.detector import Detector
    from deltaenergy.evaluation.choose import choose_from_features, disagreement_of, labelled_features
    from deltaenergy.files import keeping_result
    from deltaenergy.source import load_images

    place = common.ModelPlace(device, backend, precision, calibrate_on)
    common.refuse_beside_detector(context, detector, "classes", "template", "model")
    if out_folder is not None:
        common.check_detector_out(out_folder, overwrite)
    items = load_images(id_images)
    if detector is None:
        # What cannot run is told before a model is loaded and a prompt encoded.
        candidates = feature_scores(scores, items)
        classifier = _classifier(id_images, items, classes, model, template, place)
    else:
        classifier = common.load_detector(detector, place).classifier
        candidates = feature_scores(scores, items, classifier)
    with common.progress_bar("Encoding images") as progress:
        known = labelled_features(classifier, items, batch_size=batch_size, progress=progress)
    with common.progress_bar("Leaving classes out") as progress:
        choice = choose_from_features(
            classifier,
            known.features,
            known.truth,
            candidates,
            folds=folds,
            seed=seed,
            unreadable=known.unreadable,
            progress=progress,
        )
    apart = disagreement_of(classifier, known, choice, disagreements) if disagreements else None
    saved = None
    if out_folder is not None:
        saved = Detector(classifier, choice.best).calibrate(known.features, keep)
        keeping_result(out_folder, saved.save, what="The detector")
    if json_output:
        written = {"detector": None} if saved is None or out_folder is None else detector_record(out_folder, saved)
        more = {} if apart is None else {"disagreement": apart.to_dict(lambda row: {"image": known.names[row]})}
        common.print_json({**choice.to_dict(), **more, **written})
    else:
        _print(choice, out_folder)
        if apart is not None:
            _print_disagreement(apart, known.names)
    common.finish(known.unreadable)


def feature_scores(
    specs: Sequence[str] | None, images: Sequence[ImageItem], classifier: Classifier | None = None
) -> list[Score]:
    """The scores that `--score` names, or every candidate that is cheap and can run, and a line on the others."""
    from deltaenergy.evaluation.choose import candidate_scores, given_to_choose

    given = given_to_choose([images], classifier)
    if specs:
        return common.make_scores(specs, given)
    candidates, left_out = candidate_scores(given)
    if left_out is not None:
        err.print(left_out, style="dim", soft_wrap=True, markup=False)
    return candidates


def _classifier(
    images: str,
    items: Sequence[ImageItem],
    classes: str | None,
    model: str,
    template: list[str] | None,
    place: common.ModelPlace,
) -> Classifier:
    """A zero-shot one of the named classes, or of the classes that the images are labelled with."""
    if classes is None:
        from deltaenergy.core.labels import class_names

        names = class_names(items)
        if not names:
            raise InputError(
                f"--id {images}: the images have no classes. Sort them into one folder per class, or give a table "
                "with a label column."
            )
        return common.zero_shot(model, place, names, template)
    return common.zero_shot(model, place, classes, template)


def _print(choice: Choice, out_folder: Path | None) -> None:
    from rich.table import Table

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
        f"{choice.seed}. Intervals: 95%, classes resampled."
    )
    rivals = [candidate for candidate in choice.ranking[1:] if candidate.behind.low <= 0]
    if rivals:
        err.print(f"{len(rivals)} other(s) may be as good: the interval of their distance to the best holds 0.")
    err.print(f'Use it:  --score "{choice.best}"')
    if out_folder is not None:
        err.print(f"Detector saved to {out_folder}.")


def _print_disagreement(apart: ScoreDisagreement, names: Sequence[str]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in (f"above, by {apart.first}", f"by {apart.second}"):
        table.add_column(heading, justify="right")
    table.add_column("image", overflow="fold")
    for one in apart.images:
        table.add_row(f"{100 * one.first:.0f}%", f"{100 * one.second:.0f}%", visible(names[one.row]))
    out.print(table)
    err.print(
        f"Where {apart.first} and {apart.second} differ most: the share of the images that each is above. Of all "
        f"images, their orders have a rank correlation of {apart.correlation:.3f}.",
        markup=False,
    )


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"
