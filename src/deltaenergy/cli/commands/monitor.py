"""`deltaenergy monitor`: is what comes in still what the detector was calibrated for?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.exits import CHANGED
from deltaenergy.cli.shell.options import check_seed
from deltaenergy.cli.shell.records import unreadable_records
from deltaenergy.cli.shell.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.monitor import Monitor

# Classes told of in a terminal; the page and --json have all.
CLASSES_TOLD = 5


def monitor(
    detector: Annotated[str, typer.Option("--detector", "-d", help="Folder of a calibrated detector.")],
    state: Annotated[Path, typer.Option("--state", help="FILE.json that remembers; made if it does not exist.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="New images in the order they came, or a table that score --out wrote; none to look at the state.",
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Share of false alarms, at any time. Default: 0.04.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="Added to alpha, for calibration images that mislead. Default: 0.01."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, callback=check_seed, help="Random seed for ties between scores. Default: 0."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", "-r", help="Write the rate over time, classes and pictures to FILE.html.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help=f"Exit with code {CHANGED} if the images have changed.")
    ] = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    batch_size: common.BatchOption = 32,
) -> None:
    """Say whether the images have changed since the detector was calibrated.

    Give every image once. The state file goes on from run to run. However many images come, the probability of a false
    alarm is at most alpha + delta. An alarm stays: calibrate again with images of the new kind, and begin a new state.
    """
    from deltaenergy.detector.verdict_tables import holds_verdicts
    from deltaenergy.monitor import open_monitor
    from deltaenergy.store.store_pass import names_a_store

    common.check_report(report)
    given = common.read_image_arguments(images) if images else None
    table = given if given is not None and holds_verdicts(given) else None
    items: Any = None
    if given is not None and table is None:
        items = given if names_a_store(given) else common.list_images(given)
    elif given is None and not state.exists():
        raise InputError(f"--state {state} does not exist yet, so that there is nothing to look at: give images.")
    loaded = common.prepare(common.load_detector(detector, common.Place(device)))
    unreadable: list[Unreadable] = []
    with open_monitor(state, loaded, alpha=alpha, delta=delta, seed=seed) as found:
        before = found.images
        if table is not None:
            found.read(table)
        elif items is not None:
            with common.progress_bar("Looking") as progress:
                unreadable = found.watch(items, batch_size=batch_size, progress=progress)
        if given is not None:
            err.print(f"{found.images - before:,} image(s) looked at{' in the table' if table else ''}.")
    if report is not None:
        _write_report(found, report)
    _tell(found, unreadable, json_output)
    if exit_code and found.changed:
        common.report_unreadable(unreadable)
        raise typer.Exit(CHANGED)
    common.finish(unreadable)


def _write_report(found: Monitor, report: Path) -> None:
    from deltaenergy.files import keeping_result
    from deltaenergy.report import write_report

    with common.status("Writing the report …"):
        keeping_result(report, lambda place: write_report(found, place, command=common.typed()), what="The report")
    err.print(f"Report written to {report}")


def _tell(found: Monitor, unreadable: list[Unreadable], json_output: bool) -> None:
    status, changes = found.status, found.history.changes()
    if json_output:
        common.print_json(
            {
                **status.to_dict(),
                "classes": [vars(change) for change in changes],
                "pictures": [vars(picture) for picture in list(found.history.pictures)[::-1]],
                "unreadable": unreadable_records(unreadable),
            }
        )
        return
    out.print(str(status), style="bold red" if status.changed else "green", markup=False, soft_wrap=True)
    if status.changed:
        for change in changes[:CLASSES_TOLD]:
            if change.recent_flagged:
                before = f"; {change.before_flagged:,} of the {change.before:,} before" if change.before else ""
                out.print(
                    f"  {visible(change.label)}: {change.recent_flagged:,} of the last {change.recent:,} images that "
                    f"are most like it{before}",
                    markup=False,
                    soft_wrap=True,
                )
        names = [visible(picture.id) for picture in list(found.history.pictures)[-3:][::-1]]
        out.print(f"  Last called none of these: {', '.join(names)}", markup=False, soft_wrap=True)
