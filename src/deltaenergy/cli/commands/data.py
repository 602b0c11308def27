"""`deltaenergy data`: the data sets that benchmarks know, and what of them lies under a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import out
from deltaenergy.cli.shell.examples import named

if TYPE_CHECKING:
    from deltaenergy.data.catalogue.audit import DatasetReport

app = typer.Typer(help="The data sets that benchmarks know.", no_args_is_help=True)
_STYLES = {"complete": "green", "partial": "yellow", "differs": "yellow", "present": "yellow", "absent": "dim"}


@named(app, "check", "data check")
def check(
    root: Annotated[Path, typer.Argument(help="The folder that holds a folder per data set.")],
    names: Annotated[list[str] | None, typer.Argument(help="Look at these data sets only.", show_default=False)] = None,
    json_output: common.JsonOption = False,
) -> None:
    """Say which data sets are there and complete, and what to do for the others. Files are counted, not opened."""
    from deltaenergy.data.catalogue.audit import check_root, unknown_folders

    with common.status("Counting images …"):
        reports = check_root(root, names)
        others = unknown_folders(root) if not names else []
    if json_output:
        common.print_json({"root": str(root), "datasets": [asdict(report) for report in reports], "others": others})
        return
    _print(reports)
    if others:
        out.print(f"\nNo known data set, but usable as images: {', '.join(others)}")


@named(app, "list", "data list")
def list_command(json_output: common.JsonOption = False) -> None:
    """List the data sets with their classes, the hash of their names, their licence and where a person gets them."""
    from deltaenergy.data.catalogue.dataset import get_dataset, list_datasets

    datasets = [get_dataset(name) for name in list_datasets()]
    if json_output:
        keys = ("name", "title", "folders", "licence", "obtain", "paper", "template", "names_hash")
        common.print_json(
            [{**{key: getattr(d, key) for key in keys}, "classes": len(d.names)} for d in datasets],
        )
        return
    from rich.text import Text

    for dataset in datasets:
        out.print(Text(dataset.name, "bold cyan"), Text(f"  {dataset.title} ({dataset.paper})"), sep="", soft_wrap=True)
        classes = f"{len(dataset.names)}, names {dataset.names_hash}" if dataset.classes else "none, or its folders"
        for key, text in (("classes", classes), ("licence", dataset.licence), ("obtain", dataset.obtain)):
            out.print(Text(f"  {key:<9}", "dim"), Text(text), sep="", soft_wrap=True)


def _print(reports: list[DatasetReport]) -> None:
    from rich.text import Text

    width = max(len(report.name) for report in reports)
    for report in sorted(reports, key=lambda report: report.status == "absent"):
        line = Text(f"{report.name:<{width}}  ").append(f"{report.status:<8}", _STYLES[report.status])
        if report.folder is not None:
            line.append(f"  {report.images:>9,} images")
            if report.classes_expected:
                line.append(f", {len(report.per_class)} of {report.classes_expected} classes")
            line.append(f"  {report.folder}", "dim")
        out.print(line, soft_wrap=True)
        if report.advice:
            out.print(Text(f"{'':<{width}}  {report.advice}", "dim"), soft_wrap=True)
