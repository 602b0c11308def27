"""`deltaenergy demo`: the main job, offline, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import out, print_json, print_table


@command("Use", "deltaenergy demo", "deltaenergy demo --out my-demo --json")
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and the detector.")] = Path(
        "deltaenergy-demo"
    ),
    model: o.ModelOption = None,
    json: o.JsonOption = False,
) -> None:
    """Try it on sample photos, offline. Writes a report and a detector."""
    from rich.text import Text

    from deltaenergy.core.progress import stage

    with stage("Importing"):
        from deltaenergy.demo import CLASSES, run_demo
    found = run_demo(model or "lite", folder)
    report, saved, verdicts = folder / "report.html", folder / "detector", [*found.known, *found.unknown]
    if json:
        record = results.detector_record(saved, found.detector)
        print_json({**record, "images": [one.to_dict() for one in verdicts], "report": str(report)})
        return
    out.print(f"Classes: {', '.join(CLASSES)}\n")
    columns = ["photo", "closest class", ">confidence", f">{found.detector.score.spec}", "verdict", "more like"]
    rows = [
        [
            one.path,
            one.label,
            f"{one.confidence:.2f}",
            f"{one.score:.3f}",
            Text(one.answer or "", "red" if one.is_ood else "green"),
            one.more_like or "",
        ]
        for one in verdicts
    ]
    print_table(columns, rows)
    kept, rejected = sum(not one.is_ood for one in found.known), sum(bool(one.is_ood) for one in found.unknown)
    out.print(
        f"\n{kept} of {len(found.known)} photos of listed classes kept, "
        f"{rejected} of {len(found.unknown)} photos of other things rejected."
    )
    results.print_guarantee(found.detector)
    out.print(f"Report:   {report.resolve()}")
    out.print(f"Detector: {saved.resolve()}")
    out.print('Next:     deltaenergy score YOUR_IMAGES --classes "dog,cat,…"')
