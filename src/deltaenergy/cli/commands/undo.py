"""`deltaenergy undo`: put back what `score --move-to` moved, and remove what it copied or linked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.exits import SOME_UNREADABLE
from deltaenergy.cli.shell.sorted_files import list_skipped


def undo(
    file: Annotated[Path, typer.Argument(help="The undo-….jsonl file in the folder that was sorted into.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")] = False,
    json_output: common.JsonOption = False,
) -> None:
    """Undo a sort: move files back, delete copies and links.

    Files that changed since, or whose old path is taken, are skipped and listed (exit code 1).
    """
    from deltaenergy.sorting import How, undo_sorting

    with common.progress_bar("Undoing") as progress:
        undone = undo_sorting(file, dry_run=dry_run, progress=progress)
    if json_output:
        skipped = [{"path": str(file.path), "reason": file.reason} for file in undone.skipped]
        common.print_json({"how": undone.how.value, "done": undone.done, "skipped": skipped, "dry_run": dry_run})
    else:
        what = "moved back" if undone.how is How.MOVE else "removed"
        err.print(f"{undone.done:,} file(s) {'would be ' if dry_run else ''}{what}.")
        list_skipped(undone.skipped, "were skipped")
    if undone.skipped:
        raise typer.Exit(SOME_UNREADABLE)
