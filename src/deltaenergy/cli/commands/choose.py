"""`deltaenergy choose`: rank scores using only known images, by leaving classes out in turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, print_json, print_table

if TYPE_CHECKING:
    from deltaenergy.evaluation.choose import Choice


@command("Make a detector", "deltaenergy choose --id good/", "deltaenergy choose --id good/ --out detector/")
def choose(
    images: Annotated[str, typer.Option("--id", help="Known images: one folder per class, or a table with labels.")],
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            "-s",
            autocompletion=o.complete_score,
            help="Candidate; repeat for several, or use all.",
            show_default="all that work on features, and some τ",
        ),
    ] = None,
    detector: o.DetectorOption = None,
    out: Annotated[
        Path | None, o.unset("--out", "-o", help="Calibrate a detector with the best score and save it here.")
    ] = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Find the best score for your classes, using only images of those classes.

    Classes are split into groups. Each group in turn is left out, and its images serve as unknowns. Without --classes,
    the class folders name the classes. With --detector, its classifier is used.
    """
    import deltaenergy as de
    from deltaenergy.detector.opening import check_detector_folder
    from deltaenergy.files import keeping_result

    if out is not None:
        check_detector_folder(out, overwrite)
    choice = de.choose(o.by_options(detector, classes, model), images, scores, on=on)
    saved = None if out is None else choice.detector()
    if out is not None and saved is not None:
        keeping_result(out, saved.save, what="The detector")
    if json:
        written = {"detector": None} if saved is None or out is None else results.detector_record(out, saved)
        print_json({**choice.to_dict(), **written})
    else:
        _print(choice, out)
    results.finish(choice.unreadable)


def _print(choice: Choice, out: Path | None) -> None:
    rows = []
    for one in choice.ranking:
        auroc, behind = one.auroc, one.behind
        gap = f"{100 * behind.value:.1f} ({100 * behind.low:.1f} to {100 * behind.high:.1f})"
        interval = f"{100 * auroc.low:.1f} to {100 * auroc.high:.1f}"
        last = gap if one is not choice.ranking[0] else ""
        rows.append([one.spec, f"{100 * auroc.value:.1f}", interval, last, f"{100 * one.fpr95:.1f}"])
    print_table(["score", ">AUROC", ">interval", ">behind the best", ">FPR95"], rows)
    err.print(
        f"{choice.images} images of {choice.classes} classes; {choice.folds} groups left out in turn, seed "
        f"{choice.seed}. Intervals: 95%, classes resampled."
    )
    rivals = sum(one.behind.low <= 0 for one in choice.ranking[1:])
    if rivals:
        err.print(f"{rivals} more may be as good: the interval of their distance to the best includes 0.")
    err.print(f'Use it:  --score "{choice.best}"')
    if out is not None:
        err.print(f"Detector saved to {out}.")
