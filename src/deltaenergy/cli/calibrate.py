"""`deltaenergy calibrate`: set the threshold on in-distribution images and save the detector."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err
from deltaenergy.cli.records import detector_record, unreadable_records
from deltaenergy.errors import InputError


def calibrate(
    images: Annotated[list[str], typer.Argument(help="In-distribution images, as for score.")],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the detector.")],
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    scores: common.ScoreOption = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    keep: common.KeepOption = 0.95,
    overwrite: common.OverwriteOption = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Set the threshold so that the share --keep of these images is accepted, and save classifier, score and threshold.

    With --detector, its classifier (a tuned one, say) gets a new threshold, and a new score if --score is given.
    """
    from deltaenergy.data.inputs import load_images
    from deltaenergy.detector import Detector
    from deltaenergy.files import keeping_result
    from deltaenergy.scores.runnable import check_runnable, given_by

    common.check_detector_out(out_folder, overwrite)
    # Resolved before the model is loaded, so that a mistyped path is reported at once.
    items = load_images(common.read_image_arguments(images))
    given = given_by([items]) if detector is None else None
    chosen = common.make_scores(scores, given) if scores or detector is None else None
    if chosen is not None and len(chosen) != 1:
        raise InputError("A detector has one score: give --score once.")
    if detector is not None:
        if classes or template:
            raise InputError(f"--classes and --template are part of the detector in {detector}.")
        loaded = common.load_detector(detector, device)
        new = Detector(loaded.classifier, chosen[0] if chosen else loaded.score)
    else:
        assert chosen is not None
        new = Detector(common.zero_shot(model, device, classes, template), chosen[0])
    check_runnable([new.score], given_by([items], new.classifier))
    common.prepare(new)
    with common.progress_bar("Calibrating") as progress, warnings.catch_warnings():
        # The unreadable images are listed below, one by one.
        warnings.filterwarnings("ignore", message=".*calibration image.*")
        new.calibrate(items, keep, batch_size=batch_size, progress=progress)
    keeping_result(out_folder, new.save, what="The detector")
    count = len(new.calibration_scores)
    if json_output:
        unreadable = unreadable_records(new.unreadable)
        common.print_json({**detector_record(out_folder, new), "images": count, "unreadable": unreadable})
    else:
        err.print(
            f"Threshold {new.threshold:.6g} for {new.score.spec} keeps {keep:.0%} of {count} images. "
            f"Detector saved to {out_folder}."
        )
        if count * (1 - keep) < 5 and keep < 1:
            err.print(
                f"Only {count} images: the true keep rate may differ from {keep:.0%} by several points. "
                "A hundred or more are better.",
                style="yellow",
            )
    common.finish(new.unreadable)
