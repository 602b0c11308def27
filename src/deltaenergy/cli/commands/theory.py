"""`deltaenergy theory`: check the paper's theorems on a detector and real images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.options import check_finite
from deltaenergy.cli.shell.records import unreadable_records


def theory(
    detector: Annotated[Path, typer.Argument(help="Detector folder written by tune or calibrate.")],
    id_folder: Annotated[Path, typer.Option("--id", help="Images of its classes, one subfolder per class.")],
    open_folder: Annotated[
        Path | None,
        typer.Option("--open", help="Images of none of its classes, for Theorem 1's pairs and for Figure 1."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="Detector tuned without EBM, for Theorem 4's comparison.")
    ] = None,
    domains: Annotated[bool, typer.Option("--domains", help="--id holds DOMAIN/CLASS/ rather than CLASS/.")] = False,
    method: Annotated[
        str, typer.Option("--method", help="Heatmap of Figure 1: auto, grad-cam, value-path, occlusion or rollout.")
    ] = "auto",
    tau: Annotated[float, typer.Option("--tau", help="Temperature of the energies.")] = 0.01,
    p: Annotated[
        float | None, typer.Option("--p", help="Kept fraction of the mask. Default: that of its EBM term, or 0.6.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="ε of Theorem 3's condition. Default: each image's smallest.")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", "-r", help="Write FILE.html with a plot.")] = None,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Check the paper's theorems and its Figure 1 on a detector and images: what holds, and what fails.

    Figure 1 needs --open: does attention stay where P_j < 0 is masked, and move where P_j > 0 is?
    """
    from deltaenergy.detector.detector import Detector
    from deltaenergy.explanation.methods import check_method
    from deltaenergy.files import keeping_result, write_text
    from deltaenergy.source import load_images
    from deltaenergy.theory import check_theory
    from deltaenergy.theory.figure1 import claims, figure1, figure_record, has_pixels
    from deltaenergy.theory.page import theory_page
    from deltaenergy.tuning.prepare import labelled_items

    check_finite("--tau", tau, positive=True)
    check_finite("--p", p, positive=True)
    check_finite("--epsilon", epsilon)
    check_method(method, "--method")
    common.check_report(report)
    items = labelled_items(id_folder, domains)
    others = None if open_folder is None else load_images(open_folder)
    loaded = common.load_detector(str(detector), common.ModelPlace(device)).classifier
    other = None
    if against is not None:
        with common.status(f"Loading detector {against} …"):
            other = Detector.load(against, model=loaded.model).classifier
    with common.progress_bar("Encoding images") as progress:
        found = check_theory(
            loaded,
            items,
            open_images=others,
            against=other,
            tau=tau,
            p=p,
            epsilon=epsilon,
            batch_size=batch_size,
            progress=progress,
        )
    figure = None
    if others is not None and has_pixels(items) and has_pixels(others):
        with common.progress_bar("Masking images") as progress:
            figure = figure1(loaded, items, others, method=method, tau=tau, batch_size=batch_size, progress=progress)
    if report is not None:
        page = theory_page(found, figure, common.typed())
        keeping_result(report, lambda place: write_text(place, page), what="The report")
        err.print(f"Report written to {report}.")
    if json_output:
        record = None if figure is None else figure_record(figure)
        common.print_json({**found.to_dict(), "figure_1": record, "unreadable": unreadable_records(found.unreadable)})
    else:
        for name, text in found.sentences():
            out.print(f"{name}: {text}")
        for claim in [] if figure is None else claims(figure):
            out.print(f"Figure 1 {'holds' if claim.holds else 'does not hold'}: {claim.claim}. {claim.found}")
        if figure is None:
            out.print("Figure 1: Not checked: it needs --open, and images rather than feature stores.")
    common.finish(found.unreadable)
