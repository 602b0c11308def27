"""`deltaenergy model check`: whether a model on another backend says the same as on torch, and how fast it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import out
from deltaenergy.cli.shell.examples import named
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.evaluation.backend_check import BackendAgreement

app = typer.Typer(help="Models on other backends.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Models on other backends."""


@named(app, "check", "model check")
def check(
    model: Annotated[str, typer.Argument(help="lite (bundled, offline), a folder, or a hub id.")],
    images: Annotated[str, typer.Option("--images", "--id", help="Known images, best in class folders.")],
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    classes: common.ClassesOption = None,
    open_images: Annotated[
        str | None, typer.Option("--open", help="Images of none of the classes.", show_default=False)
    ] = None,
    score: common.OneScoreOption = None,
    template: common.TemplateOption = None,
    keep: common.KeepOption = 0.95,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Compare a model on a backend, in a precision, with itself on torch: labels, verdicts, AUROC and speed.

    Every other image of --images sets a threshold; the others, and those of --open, are judged. It is called equal only
    if no label and no verdict differs among at least 299 judged images. Images for int8 ranges (--calibrate-on) should
    not be among --images. Whatever is found, the exit code is 0, or 1 if some images could not be read; --json
    tells `equal`.
    """
    from deltaenergy.core.classes import check_classes, read_classes
    from deltaenergy.core.labels import class_names
    from deltaenergy.evaluation.backend_check import check_agreement
    from deltaenergy.source import load_images

    if backend in (None, "torch") and precision in ("auto", "fp32"):
        raise InputError("model check compares with torch in fp32: give another --backend or --precision.")
    place = common.ModelPlace(device, backend, precision, calibrate_on)
    known = load_images(images)
    unknown = load_images(open_images) if open_images is not None else None
    names = read_classes(classes) if classes is not None else class_names(known)
    if not names:
        raise InputError(
            f"--images {images}: the images have no classes. Sort them into class folders, or pass --classes."
        )
    chosen = common.make_scores(score)
    if len(chosen) != 1:
        raise InputError("Agreement is that of one score: give --score once.")
    candidate = common.load_model_with_status(model, place)
    reference = common.load_model_with_status(model, common.ModelPlace(str(candidate.device), precision="fp32"))
    with common.progress_bar("Encoding on both") as progress:
        found = check_agreement(
            reference,
            candidate,
            check_classes(names),
            known,
            unknown,
            score=chosen[0],
            templates=template or None,
            keep=keep,
            batch_size=batch_size,
            progress=progress,
        )
    if json_output:
        common.print_json(found.to_dict())
    else:
        _print(found)
    common.finish(found.unreadable)


def _print(found: BackendAgreement) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, differ, total in (
        ("labels", found.labels_differ, found.known),
        ("labels, open set", found.open_labels_differ, found.images - found.known),
        ("verdicts, torch's threshold", found.verdicts_differ, found.judged),
        ("verdicts, own thresholds", found.own_verdicts_differ, found.judged),
    ):
        if total:
            table.add_row(name, f"{total - differ:,} of {total:,} agree ({1 - differ / total:.2%})")
    thresholds = ["none" if one is None else f"{one:.6g}" for one in found.thresholds]
    table.add_row("thresholds", f"{thresholds[0]} on torch, {thresholds[1]} here")
    if found.difference is not None and found.auroc is not None:
        change, low, high = found.difference
        table.add_row("AUROC", f"{found.auroc:.4f} on torch, {change:+.4f} here ({low:+.4f} to {high:+.4f})")
    table.add_row(
        "largest score difference",
        f"{found.largest_score_difference:.3g} (the scores' standard deviation is {found.score_deviation:.3g})",
    )
    table.add_row("least cosine of features", f"{found.least_cosine:.6f}")
    ours, theirs = found.milliseconds
    table.add_row(
        "speed",
        f"{found.speed:.2f}× torch ({ours:.1f} ms an image against {theirs:.1f}; "
        f"batches {min(found.ratios):.2f}× to {max(found.ratios):.2f}×)",
    )
    out.print(f"{found.model}: {found.backend}, {found.precision} beside torch, fp32; {found.score}", markup=False)
    out.print(table)
    out.print(found.conclusion(), style="green" if found.equal else "yellow", soft_wrap=True)
