"""`deltaenergy demo`: the main job, offline, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import out
from deltaenergy.cli.shell.records import detector_record

if TYPE_CHECKING:
    from deltaenergy.demo import Demo


def demo(
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and the detector.")] = Path(
        "deltaenergy-demo"
    ),
    model: common.ModelOption = "lite",
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
) -> None:
    """Classify sample photographs offline, reject those of other things, and write a report and a detector."""
    from deltaenergy.files import check_writable, keeping_result

    check_writable(out_folder, folder=True, option="--out")
    with common.status("Importing …"):
        from deltaenergy.demo import run_demo
        from deltaenergy.report import write_report
    with common.progress_bar("Encoding photographs") as progress:
        result = run_demo(model, device=device, command="deltaenergy demo", progress=progress)
    report = out_folder / "report.html"
    keeping_result(report, lambda place: write_report(result.evaluation, place, title="deltaenergy demo"))
    keeping_result(out_folder / "detector", result.detector.save, what="The detector")
    if json_output:
        rows = [*result.known, *result.unknown]
        common.print_json(
            {
                **detector_record(out_folder / "detector", result.detector),
                "images": [row.to_dict() for row in rows],
                "report": str(report),
            }
        )
        return
    _print(result, report, out_folder / "detector")


def _print(result: Demo, report: Path, detector: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from deltaenergy.demo import CLASSES

    out.print(f"Classes: {', '.join(CLASSES)}\n")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("photograph", "closest class", "confidence", result.detector.score.spec, "p", "verdict"):
        table.add_column(name, justify="right" if name in {"confidence", result.detector.score.spec, "p"} else "left")
    for verdict in [*result.known, *result.unknown]:
        table.add_row(
            Text(verdict.path),
            Text(verdict.label),
            f"{verdict.confidence:.2f}",
            f"{verdict.score:.3f}",
            f"{verdict.p_value:.3f}",
            Text("none of these", "red") if verdict.is_ood else Text(verdict.label, "green"),
        )
    out.print(table)
    rejected = sum(bool(verdict.is_ood) for verdict in result.unknown)
    kept = sum(not verdict.is_ood for verdict in result.known)
    out.print(
        f"\n{kept} of {len(result.known)} photographs of listed classes kept, "
        f"{rejected} of {len(result.unknown)} photographs of other things rejected."
    )
    out.print(f"Report:   {report.resolve()}")
    out.print(f"Detector: {detector.resolve()}")
    out.print('Next:     deltaenergy score YOUR_IMAGES --classes "dog,cat,…" --id IMAGES_OF_THOSE')
