"""`deltaenergy calibrate`: set the threshold on known images and save the detector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, print_json
from deltaenergy.core.text import visible

if TYPE_CHECKING:
    from deltaenergy.detector.class_check import ClassAccuracy

# Below this share of labelled images classified correctly, calibrate names the worst classes and a remedy.
LOW_ACCURACY = 0.8


@command(
    "Make a detector",
    'deltaenergy calibrate good/ --classes "dog,cat,horse" --out detector/',
    "deltaenergy calibrate more/ --detector detector/ --keep 0.99 --out lenient/",
)
def calibrate(
    images: o.ImagesArgument,
    out: o.OutDetectorOption,
    detector: o.DetectorOption = None,
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    template: o.TemplateOption = None,
    score: o.ScoreOption = None,
    keep: Annotated[float, typer.Option(help="Share of new known images to keep.")] = 0.95,
    confidence: Annotated[
        float | None,
        o.unset(help="Keep at least --keep with this confidence, such as 0.9, instead of on average. Rejects less."),
    ] = None,
    by_class: Annotated[
        bool,
        typer.Option("--by-class", help="Separate threshold for each class with enough images (one folder per class)."),
    ] = False,
    keep_images: Annotated[
        bool,
        typer.Option(
            "--keep-images", help="Store features and thumbnails of these images in the detector, for explain."
        ),
    ] = False,
    tolerate: Annotated[
        str | None,
        o.unset(help="Corruptions to tolerate: blur,noise,jpeg,dark. Fewer unknown images are then rejected."),
    ] = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
    int8_images: o.Int8Option = None,
) -> None:
    """Set the threshold on known images and save a detector.

    It prints the guarantee, or how many more images one needs. With --detector, that detector's classifier (for example
    a tuned one) gets a new threshold, and a new score with --score.
    """
    import deltaenergy as de

    made = de.calibrate(
        o.read_images(images),
        o.by_options(detector, classes, model, template, int8_images),
        out,
        score=score,
        keep=keep,
        confidence=confidence,
        by_class=by_class,
        keep_images=keep_images,
        tolerate=tolerate or (),
        overwrite=overwrite,
        on=on,
    )
    accuracy = made.class_accuracy
    if json:
        found = {
            "images": len(made.calibration_scores),
            "class_thresholds": made.class_thresholds,
            "accuracy": None if accuracy is None else accuracy.share,
            "class_accuracy": {} if accuracy is None else {name: right / all_ for name, all_, right in accuracy.rows},
            "unreadable": results.unreadable_records(made.unreadable),
        }
        print_json({**results.detector_record(out, made), **found})
    else:
        err.print(f"{results.threshold_words(made)} Detector saved to {out}.")
        for name, bound in made.class_thresholds.items():
            err.print(f"  {visible(name)}: {bound:.6g}")
        results.print_guarantee(made)
        if accuracy is not None:
            _print_accuracy(accuracy)
    results.finish(made.unreadable)


def _print_accuracy(accuracy: ClassAccuracy) -> None:
    """Accuracy on labelled images; if it is low, also the worst classes and a remedy."""
    text = f"Accuracy on these {accuracy.images} labelled images: {accuracy.share:.0%}."
    if accuracy.share < LOW_ACCURACY:
        worst = ", ".join(f"{visible(name)} ({right} of {images})" for name, images, right in accuracy.worst(5))
        text += (
            f" Lowest: {worst}. A threshold cannot fix that: tune on these classes with `deltaenergy tune --train DIR`."
        )
    err.print(text, style="yellow" if accuracy.share < LOW_ACCURACY else None)
