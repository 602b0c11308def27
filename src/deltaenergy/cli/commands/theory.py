"""`deltaenergy theory`: check the paper's theorems on a detector and real images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.commands.explain import MapMethod
from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import out, print_json


@command("Research", "deltaenergy theory detector/ --id good/ --open other/ --report theory.html")
def theory(
    by: Annotated[str, typer.Argument(help="Folder of a detector, from tune or calibrate.", metavar="DETECTOR")],
    known: Annotated[Path, typer.Option("--id", help="Images of its classes, one subfolder per class.")],
    unknown: Annotated[
        Path | None,
        o.unset("--open", help="Images of none of its classes, for Theorem 1's pairs and for Figure 1."),
    ] = None,
    against: Annotated[
        Path | None, o.unset("--against", help="Detector tuned without EBM, for Theorem 4's comparison.")
    ] = None,
    domains: Annotated[bool, typer.Option("--domains", help="--id has DOMAIN/CLASS/ rather than CLASS/.")] = False,
    method: Annotated[MapMethod, typer.Option("--method", help="Heatmap of Figure 1.")] = "auto",
    report: o.ReportOption = None,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Check the paper's theorems on a detector and your images.

    Figure 1 needs --open: does attention stay where P_j < 0 is masked, and move where P_j > 0 is?
    """
    from deltaenergy.theory import check_paper

    results.check_report(report)
    found = check_paper(by, known, unknown, against=against, domains=domains, method=method, on=on)
    results.write_report(found, report)
    if json:
        print_json({**found.to_dict(), "unreadable": results.unreadable_records(found.unreadable)})
    else:
        for name, sentence in [*found.sentences(), *found.figure_sentences()]:
            out.print(f"{name}: {sentence}")
    results.finish(found.unreadable)
