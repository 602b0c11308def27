"""`deltaenergy calibrate`: set the threshold on known images and save the detector."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.records import detector_record, unreadable_records
from deltaenergy.cli.shell.results import print_guarantee
from deltaenergy.core.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.detector.class_check import ClassAccuracy

# Below this share of labelled images classified correctly, calibrate names the worst classes and a remedy.
LOW_ACCURACY = 0.8


def calibrate(
    context: typer.Context,
    images: Annotated[list[str], typer.Argument(help="In-distribution images, as for score.")],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the detector.")],
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    scores: common.OneScoreOption = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    keep: common.KeepOption = 0.95,
    confidence: common.ConfidenceOption = None,
    by_class: Annotated[
        bool,
        typer.Option("--by-class", help="Set a threshold for each class that has enough images (folders per class)."),
    ] = False,
    keep_images: Annotated[
        bool,
        typer.Option(
            "--keep-images", help="Keep features and small pictures of these images in the detector, for explain."
        ),
    ] = False,
    overwrite: common.OverwriteOption = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Set the threshold that keeps the share --keep of new images like these, and save the detector.

    It prints what is guaranteed, and how many images are missing if they are too few. With --detector, that detector's
    classifier (for example a tuned one) gets a new threshold, and a new score with --score.
    """
    from deltaenergy.detector.detector import Detector
    from deltaenergy.files import keeping_result
    from deltaenergy.scores.availability import check_runnable, closed_tower, given_by, unlabelled
    from deltaenergy.source import load_images

    if by_class and keep == 1:
        raise InputError("--by-class needs --keep below 1: one threshold for all keeps every image as it is.")
    place = common.ModelPlace(device, backend, precision, calibrate_on)
    common.refuse_beside_detector(context, detector, "classes", "template", "model")
    common.check_detector_out(out_folder, overwrite)
    # Resolved before the model is loaded, so that a mistyped path is reported at once.
    items = load_images(common.read_image_arguments(images))
    if by_class and all(item.label is None for item in items):
        raise InputError("--by-class needs to know each image's class: give a folder with one subfolder per class.")
    lacks = {"labels": unlabelled(items), "pixels": closed_tower(place.backend, place.precision)}
    given = given_by([items]).without(**lacks) if detector is None else None
    chosen = common.make_scores(scores, given) if scores or detector is None else None
    if chosen is not None and len(chosen) != 1:
        raise InputError("A detector has one score: give --score once.")
    if detector is not None:
        loaded = common.load_detector(detector, place)
        new = Detector(loaded.classifier, chosen[0] if chosen else loaded.score)
    else:
        assert chosen is not None
        new = Detector(common.zero_shot(model, place, classes, template), chosen[0])
    check_runnable([new.score], given_by([items], new.classifier))
    common.prepare(new)
    with common.progress_bar("Calibrating") as progress, warnings.catch_warnings():
        # The unreadable images are listed below, one by one, and so is what the threshold promises.
        warnings.filterwarnings("ignore", message=".*calibration image.*")
        new.calibrate(
            items,
            keep,
            confidence,
            by_class=by_class,
            keep_images=keep_images,
            batch_size=batch_size,
            progress=progress,
        )
    keeping_result(out_folder, new.save, what="The detector")
    count = len(new.calibration_scores)
    if json_output:
        accuracy = new.class_accuracy
        found = {
            "images": count,
            "class_thresholds": new.class_thresholds,
            "accuracy": None if accuracy is None else accuracy.share,
            "class_accuracy": {} if accuracy is None else {name: right / all_ for name, all_, right in accuracy.rows},
            "unreadable": unreadable_records(new.unreadable),
        }
        common.print_json({**detector_record(out_folder, new), **found})
    else:
        err.print(f"{common.threshold_words(new)} Detector saved to {out_folder}.", markup=False)
        for name, bound in new.class_thresholds.items():
            err.print(f"  {visible(name)}: {bound:.6g}", markup=False)
        print_guarantee(new)
        if new.class_accuracy is not None:
            _print_accuracy(new.class_accuracy)
    common.finish(new.unreadable)


def _print_accuracy(accuracy: ClassAccuracy) -> None:
    """How often labelled images are classified correctly; where that is seldom, the worst classes and a remedy."""
    text = f"Accuracy on these {accuracy.images} labelled images: {accuracy.share:.0%}."
    if accuracy.share < LOW_ACCURACY:
        worst = ", ".join(f"{visible(name)} ({right} of {images})" for name, images, right in accuracy.worst(5))
        text += f" Lowest: {worst}. A threshold cannot fix that: learn the classes with `deltaenergy tune --train DIR`."
    err.print(text, markup=False, style="yellow" if accuracy.share < LOW_ACCURACY else None)
