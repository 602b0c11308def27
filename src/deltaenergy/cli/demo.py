"""`deltaenergy demo`: the main job, offline, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err, out

if TYPE_CHECKING:
    from deltaenergy.demo import Demo


def demo(
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and the detector.")] = Path(
        "deltaenergy-demo"
    ),
    model: common.ModelOption = "lite",
    json_output: common.JsonOption = False,
) -> None:
    """Classify sample photographs offline, reject those of other things, and write a report and a detector."""
    with err.status("Importing …"):
        from deltaenergy.demo import run_demo
        from deltaenergy.report import write_report
    with common.progress_bar("Encoding photographs") as progress:
        result = run_demo(model, command="deltaenergy demo", progress=progress)
    report = out_folder / "report.html"
    write_report(result.evaluation, report, title="deltaenergy demo")
    result.detector.save(out_folder / "detector")
    if json_output:
        rows = [*result.known, *result.unknown]
        common.print_json(
            {
                "images": [{name: getattr(row, name) for name in row.__dataclass_fields__} for row in rows],
                "threshold": result.detector.threshold,
                "report": str(report),
                "detector": str(out_folder / "detector"),
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
    for name in ("photograph", "most like", "confidence", result.detector.score.spec, "p", "verdict"):
        table.add_column(name, justify="right" if name in {"confidence", result.detector.score.spec, "p"} else "left")
    for verdict in [*result.known, *result.unknown]:
        table.add_row(
            Text(verdict.id),
            Text(verdict.label),
            f"{verdict.confidence:.2f}",
            f"{verdict.score:.3f}",
            f"{verdict.p_value:.3f}",
            Text("none of these", "red") if verdict.is_ood else Text(verdict.label, "green"),
        )
    out.print(table)
    rejected = sum(verdict.is_ood for verdict in result.unknown)
    kept = sum(not verdict.is_ood for verdict in result.known)
    out.print(
        f"\n{kept} of {len(result.known)} photographs of listed classes kept, "
        f"{rejected} of {len(result.unknown)} photographs of other things rejected."
    )
    out.print(f"Report:   {report.resolve()}", soft_wrap=True)
    out.print(f"Detector: {detector.resolve()}", soft_wrap=True)
    out.print('Next:     deltaenergy score YOUR_PHOTOS --classes "dog,cat,…" --known PHOTOS_OF_THOSE', soft_wrap=True)
