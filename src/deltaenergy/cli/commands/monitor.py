"""`deltaenergy monitor`: do incoming images still look like the calibration images?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, out, print_json
from deltaenergy.cli.shell.exits import CHANGED, DONE
from deltaenergy.core.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.monitor import Monitor

# Classes printed to a terminal; the page and --json have all.
CLASSES_SHOWN = 5


@command(
    "Operate",
    "deltaenergy monitor today/ --detector detector/ --state state.json --report monitor.html",
    "deltaenergy monitor verdicts.parquet --detector detector/ --state state.json --json",
)
def monitor(
    detector: Annotated[str, typer.Option("--detector", "-d", help="Folder of a calibrated detector.")],
    state: Annotated[Path, typer.Option(help="State file, FILE.json; made if it does not exist.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(help="New images in the order they came, or a table of score --out; omit to print the state."),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Probability of a false alarm, over all time.", show_default="0.04")
    ] = None,
    report: o.ReportOption = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help=f"Exit with code {CHANGED} if the images have changed.")
    ] = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Check whether incoming images have changed since calibration.

    Pass every image once. The state file carries over between runs. The probability of a false alarm, over all time, is
    at most alpha + 0.01. Alarms are permanent: recalibrate with images of the new kind and start a new state file.
    """
    import deltaenergy as de
    from deltaenergy.detector.verdicts import holds_verdicts
    from deltaenergy.models.on import On
    from deltaenergy.source import list_images

    results.check_report(report)
    given = o.read_images(images) if images else None
    if given is None and not state.exists():
        raise InputError(f"`state` {state} does not exist yet: give images to start it.")
    table = given is not None and holds_verdicts(given)
    listed = given if given is None or table else list_images(given)
    unreadable: list[Unreadable] = []
    with de.Monitor.open(state, detector, alpha=alpha, on=on) as watching:
        before = watching.images
        if listed is not None:
            unreadable = watching.watch(listed, batch_size=On.of(on).batch_size)
            err.print(f"New images{' in the table' if table else ''}: {watching.images - before:,}.")
    results.write_report(watching, report)
    _print(watching, unreadable, json)
    results.finish(unreadable, CHANGED if exit_code and watching.changed else DONE)


def _print(watching: Monitor, unreadable: list[Unreadable], json: bool) -> None:
    status, changes = watching.status, watching.history.changes()
    newest_first = list(watching.history.flagged)[::-1]
    if json:
        print_json(
            {
                **status.to_dict(),
                "classes": [vars(change) for change in changes],
                "flagged_images": [vars(image) for image in newest_first],
                "unreadable": results.unreadable_records(unreadable),
            }
        )
        return
    out.print(str(status), style="bold red" if status.changed else "green")
    if not status.changed:
        return
    for change in changes[:CLASSES_SHOWN]:
        if change.recent_flagged:
            before = f"; {change.before_flagged:,} of the {change.before:,} before" if change.before else ""
            out.print(
                f"  {visible(change.label)}: {change.recent_flagged:,} of the last {change.recent:,} images rejected"
                f"{before}"
            )
    out.print(f"  Last rejected: {', '.join(visible(image.id) for image in newest_first[:3])}")
