"""`deltaenergy sort` and `undo`: sort image files into folders by verdict and class, and undo it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, print_json
from deltaenergy.cli.shell.exits import SOME_UNREADABLE
from deltaenergy.core.text import counted, visible

if TYPE_CHECKING:
    from deltaenergy.sorting import Skipped, Sorted

_DONE = {"copy": "copied", "link": "linked", "move": "moved"}
# At most this many files that stay, or get another name, are listed.
MOST_LISTED = 20


@command(
    "Use",
    "deltaenergy sort inbox/ --detector detector/ --into sorted/",
    'deltaenergy sort inbox/ --classes "dog,cat,horse" --id good/ --into sorted/ --how move --dry-run',
)
def sort(
    images: o.ImagesArgument,
    into: Annotated[Path, typer.Option(help="Folder to sort into, outside the image folders.")],
    how: Annotated[Literal["copy", "link", "move"], typer.Option(help="What to do with the files.")] = "copy",
    dry_run: o.DryRunOption = False,
    detector: o.DetectorOption = None,
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    template: o.TemplateOption = None,
    score: o.ScoreOption = None,
    known: o.KnownOption = None,
    keep: o.KeepOption = None,
    fdr: o.FdrOption = None,
    report: o.ReportOption = None,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Sort image files into INTO/known/CLASS and INTO/none of these.

    Nothing is overwritten, and `deltaenergy undo` reverses it. The other options are those of score.
    """
    import deltaenergy as de

    results.check_report(report)
    by = o.by_options(detector, classes, model, template)
    known_images = o.read_images(known) if known else None
    verdicts = de.score(o.read_images(images), by, score=score, known=known_images, keep=keep, fdr=fdr, on=on)
    done = de.sort(verdicts, into, how, dry_run=dry_run)
    results.write_report(done.verdicts, report, detector=verdicts.detector)
    if json:
        more = {"undo": None if done.undo is None else str(done.undo), "counts": verdicts.counts.to_dict()}
        moves = [{"from": str(move.source), "to": str(move.target)} for move in done.moves]
        print_json({**_record(done, dry_run), **more, "files": moves})
    elif dry_run:
        _print_plan(done)
    else:
        err.print(f"{counted(done.done, 'file')} {_DONE[how]} to {into}.")
        _list_skipped(done.skipped, "left where they are")
    if done.undo is not None:
        err.print(f"To undo: deltaenergy undo {shlex.quote(str(done.undo))}")
    results.close(verdicts)


@command("Use", "deltaenergy undo sorted/undo-1.jsonl --dry-run", "deltaenergy undo sorted/undo-1.jsonl")
def undo(
    file: Annotated[Path, typer.Argument(help="The undo-….jsonl file in the folder that was sorted into.")],
    dry_run: o.DryRunOption = False,
    json: o.JsonOption = False,
) -> None:
    """Undo a sort: move files back, delete copies and links.

    Files that changed since, or whose old path is taken, are skipped and listed (exit code 1).
    """
    import deltaenergy as de

    undone = de.undo(file, dry_run=dry_run)
    if json:
        print_json(_record(undone, dry_run))
    else:
        what = "moved back" if undone.how == "move" else "removed"
        err.print(f"{counted(undone.done, 'file')} {'would be ' if dry_run else ''}{what}.")
        _list_skipped(undone.skipped, "skipped")
    if undone.skipped:
        raise typer.Exit(SOME_UNREADABLE)


def _record(done: Sorted, dry_run: bool) -> dict[str, object]:
    skipped = [{"path": str(file.path), "reason": file.reason} for file in done.skipped]
    return {"how": done.how.value, "done": done.done, "skipped": skipped, "dry_run": dry_run}


def _print_plan(plan: Sorted) -> None:
    counts = Counter(move.target.parent for move in plan.moves)
    err.print(f"Dry run: {counted(len(plan.moves), 'file')} would be {_DONE[plan.how]}, none was touched.")
    for folder, number in sorted(counts.items()):
        err.print(f"  {number:>7,}  {visible(str(folder))}")
    for move in [move for move in plan.moves if move.target.name != move.source.name][:MOST_LISTED]:
        err.print(f"  {visible(str(move.source))} as {visible(move.target.name)}: that name is taken")
    _list_skipped(plan.skipped, "would be left where they are")


def _list_skipped(skipped: Sequence[Skipped], what: str) -> None:
    if not skipped:
        return
    err.print(f"{counted(len(skipped), 'file')} {what}:", style="yellow")
    for file in skipped[:MOST_LISTED]:
        err.print(f"  {visible(str(file.path))}: {file.reason}", style="yellow")
    if len(skipped) > MOST_LISTED:
        err.print(f"  and {len(skipped) - MOST_LISTED:,} more", style="yellow")
