"""`deltaenergy calibrate`: set the threshold on in-distribution images and save the detector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the detector that --out holds.")] = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Set the threshold so that the share --keep of these images is accepted, and save classifier, score and threshold.

    With --detector, its classifier (a tuned one, say) gets a new threshold, and a new score if --score is given.
    """
    from deltaenergy.artifact import RECORD
    from deltaenergy.detector import Detector
    from deltaenergy.files import check_writable, keeping_result

    check_writable(out_folder, folder=True, option="--out")
    if (out_folder / RECORD).exists() and not overwrite:
        raise InputError(f"--out {out_folder} holds a detector already. Choose another folder, or give --overwrite.")
    if detector is not None:
        if classes or template:
            raise InputError(f"--classes and --template are part of the detector in {detector}.")
        with err.status(f"Loading detector {detector} …"):
            loaded = Detector.load(detector, device=device)
        chosen = common.make_scores(scores) if scores else [loaded.score]
        classifier = loaded.classifier
    else:
        chosen = common.make_scores(scores)
        classifier = common.make_classifier(common.load_model_with_status(model, device), classes, template)
    if len(chosen) != 1:
        raise InputError("A detector has one score: give --score once.")
    new = common.prepare(Detector(classifier, chosen[0]))
    with common.progress_bar("Calibrating") as progress:
        import warnings

        with warnings.catch_warnings():
            # The unreadable images are listed below, one by one.
            warnings.filterwarnings("ignore", message=".*calibration image.*")
            new.calibrate(common.read_photo_arguments(images), keep, batch_size=batch_size, progress=progress)
    keeping_result(out_folder, new.save, what="The detector")
    count = len(new.calibration_scores)
    if json_output:
        common.print_json(
            {
                "detector": str(out_folder),
                "score": new.score.spec,
                "threshold": new.threshold,
                "keep": keep,
                "images": count,
                "unreadable": [{"path": image.id, "reason": image.reason} for image in new.unreadable],
            }
        )
    else:
        err.print(
            f"Threshold {new.threshold:.6g} for {new.score.spec} keeps {keep:.0%} of {count} images. "
            f"Detector saved to {out_folder}.",
            markup=False,
        )
        if count * (1 - keep) < 5 and keep < 1:
            err.print(
                f"[yellow]Only {count} images: the true keep rate may differ from {keep:.0%} by several points. "
                "A hundred or more are better.[/]"
            )
    common.finish(new.unreadable)
