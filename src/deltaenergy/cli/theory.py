"""`deltaenergy theory`: check the paper's theorems on a detector and real images."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err, out


def theory(
    detector: Annotated[Path, typer.Argument(help="Detector folder written by tune or calibrate.")],
    id_folder: Annotated[Path, typer.Option("--id", help="Images of its classes, one subfolder per class.")],
    open_folder: Annotated[
        Path | None, typer.Option("--open", help="Images of none of its classes, for Theorem 1's pairs.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="Detector tuned without EBM, for Theorem 4's comparison.")
    ] = None,
    domains: Annotated[bool, typer.Option("--domains", help="--id holds DOMAIN/CLASS/ rather than CLASS/.")] = False,
    tau: Annotated[float, typer.Option("--tau", help="Temperature of the energies.")] = 0.01,
    p: Annotated[
        float | None, typer.Option("--p", help="Kept fraction of the mask. [default: that of its EBM term, or 0.6]")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", "-r", help="Write FILE.html with a plot.")] = None,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
) -> None:
    """Check the paper's theorems on a detector and images: what holds, and which assumption fails on real data."""
    from deltaenergy.detector import Detector
    from deltaenergy.files import write_text
    from deltaenergy.theory import check_theory
    from deltaenergy.tuning.prepare import labelled_items

    items = labelled_items(id_folder, domains)
    with err.status("Loading …"):
        loaded = Detector.load(detector, device=device).classifier
        other = None if against is None else Detector.load(against, model=loaded.model).classifier
    with common.progress_bar("Encoding images") as progress:
        found = check_theory(loaded, items, open_images=open_folder, against=other, tau=tau, p=p, progress=progress)
    if report is not None:
        from deltaenergy.theory.page import theory_page

        write_text(report, theory_page(found, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])))
        err.print(f"Report written to {report}.", markup=False)
    if json_output:
        common.print_json(found.to_dict())
        return
    for name, text in found.sentences():
        out.print(f"{name}: {text}", markup=False, soft_wrap=True)
