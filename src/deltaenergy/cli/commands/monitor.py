"""`deltaenergy monitor`: do incoming images still look like the calibration images?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.exits import CHANGED
from deltaenergy.cli.shell.records import unreadable_records
from deltaenergy.core.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.monitor import Monitor

# Classes printed to a terminal; the page and --json have all.
CLASSES_SHOWN = 5


def monitor(
    detector: Annotated[str, typer.Option("--detector", "-d", help="Folder of a calibrated detector.")],
    state: Annotated[Path, typer.Option("--state", help="State file, FILE.json; made if it does not exist.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(help="New images in the order they came, or a table of score --out; none: print the state."),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Probability of a false alarm, over all time. Default: 0.04.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", "-r", help="Write the rate over time, classes and images to FILE.html.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help=f"Exit with code {CHANGED} if the images have changed.")
    ] = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Check whether incoming images have changed since calibration.

    Give every image once. The state file carries over between runs. However many images come, the probability of a
    false alarm is at most alpha + 0.01. Alarms are permanent: recalibrate with images of the new kind and start a new
    state file.
    """
    from deltaenergy.detector.verdict_tables import holds_verdicts
    from deltaenergy.monitor import Monitor
    from deltaenergy.store.store_pass import names_a_store

    common.check_report(report)
    given = common.read_image_arguments(images) if images else None
    table = given if given is not None and holds_verdicts(given) else None
    items: Any = None
    if given is not None and table is None:
        items = given if names_a_store(given) else common.list_images(given)
    elif given is None and not state.exists():
        raise InputError(f"--state {state} does not exist yet: give images to start it.")
    loaded = common.prepare(common.load_detector(detector, common.ModelPlace(device)))
    unreadable: list[Unreadable] = []
    with Monitor.open(state, loaded, alpha=alpha) as watching:
        before = watching.images
        if table is not None:
            watching.read(table)
        elif items is not None:
            with common.progress_bar("Monitoring") as progress:
                unreadable = watching.watch(items, batch_size=batch_size, progress=progress)
        if given is not None:
            err.print(f"New images{' in the table' if table else ''}: {watching.images - before:,}.")
    if report is not None:
        _write_report(watching, report)
    _print(watching, unreadable, json_output)
    if exit_code and watching.changed:
        common.report_unreadable(unreadable)
        raise typer.Exit(CHANGED)
    common.finish(unreadable)


def _write_report(watching: Monitor, report: Path) -> None:
    from deltaenergy.files import keeping_result
    from deltaenergy.report import write_report

    with common.status("Writing the report …"):
        keeping_result(report, lambda place: write_report(watching, place, command=common.typed()), what="The report")
    err.print(f"Report written to {report}")


def _print(watching: Monitor, unreadable: list[Unreadable], json_output: bool) -> None:
    status, changes = watching.status, watching.history.changes()
    newest_first = list(watching.history.flagged)[::-1]
    if json_output:
        common.print_json(
            {
                **status.to_dict(),
                "classes": [vars(change) for change in changes],
                "flagged_images": [vars(image) for image in newest_first],
                "unreadable": unreadable_records(unreadable),
            }
        )
        return
    lines = [str(status)]
    if status.changed:
        for change in changes[:CLASSES_SHOWN]:
            if change.recent_flagged:
                before = f"; {change.before_flagged:,} of the {change.before:,} before" if change.before else ""
                rejected = f"{change.recent_flagged:,} of the last {change.recent:,} images rejected{before}"
                lines.append(f"  {visible(change.label)}: {rejected}")
        lines.append(f"  Last rejected: {', '.join(visible(image.id) for image in newest_first[:3])}")
    out.print(lines[0], style="bold red" if status.changed else "green", markup=False, soft_wrap=True)
    for line in lines[1:]:
        out.print(line, markup=False, soft_wrap=True)
