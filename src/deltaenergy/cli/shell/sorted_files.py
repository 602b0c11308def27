"""`score --copy-to`, `--link-to` and `--move-to`: the options, what they refuse, and what is said of them."""

from __future__ import annotations

import glob
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.exits import keeping
from deltaenergy.core.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import ImageItem
    from deltaenergy.sorting import How, JudgedFile, Skipped, SortPlan

WHERE = "DIR/known/CLASS and DIR/none of these. Nothing is overwritten; `deltaenergy undo` takes it back."
CopyOption = Annotated[Path | None, typer.Option("--copy-to", help=f"Copy the images to {WHERE}", metavar="DIR")]
LinkOption = Annotated[Path | None, typer.Option("--link-to", help="Link them there instead.", metavar="DIR")]
MoveOption = Annotated[Path | None, typer.Option("--move-to", help="Move them there instead.", metavar="DIR")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be copied, linked or moved.")]
_DONE = {"copy": "copied", "link": "linked", "move": "moved"}
# So many files that stay where they are get a line of their own.
MOST_LISTED = 20


@dataclass(frozen=True)
class SortRequest:
    """What the user asked for."""

    folder: Path
    how: How
    dry_run: bool

    @property
    def option(self) -> str:
        """How it was asked for."""
        return f"--{self.how.value}-to"


def sort_request(copy_to: Path | None, link_to: Path | None, move_to: Path | None, dry_run: bool) -> SortRequest | None:
    """The one of the three that was given."""
    from deltaenergy.sorting import How

    given = [(how, folder) for how, folder in zip(How, (copy_to, link_to, move_to)) if folder is not None]
    if len(given) > 1:
        raise InputError(f"Give one of {' and '.join(f'--{how.value}-to' for how, _ in given)}.")
    if not given:
        if dry_run:
            raise InputError("--dry-run goes with --copy-to, --link-to or --move-to.")
        return None
    how, folder = given[0]
    return SortRequest(folder, how, dry_run)


def check_request(request: SortRequest, given: Sequence[str] | str, items: Any) -> None:
    """Refuse what could not be done, before the work."""
    from deltaenergy.files import check_writable
    from deltaenergy.sorting import refuse_inside

    arguments = [given] if isinstance(given, str) else list(given)
    if not isinstance(items, list):
        raise InputError(f"{request.option} needs the images: a feature store holds none. Give the folder of images.")
    for item in items:
        file_of(item, request.option)
    refuse_inside(request.folder, [folder for text in arguments for folder in _walked(text)], request.option)
    check_writable(request.folder, folder=True, option=request.option)


def file_of(item: ImageItem, option: str) -> Path:
    """The image's own file; an image in an archive has none."""
    if isinstance(item.source, Path):
        return item.source
    if item.refused:
        return Path(item.id)
    raise InputError(
        f"{option}: {item.id} is no file of its own (it lies in an archive or a feature store). Unpack it first, and "
        "give the folder."
    )


def _walked(text: str) -> list[Path]:
    """The folder below which an argument finds images, if it is one that grows with what is put there."""
    from deltaenergy.data.regular import user_path

    path = user_path(text)
    if not glob.has_magic(text) or os.path.lexists(path):
        return [path]
    parts = path.parts
    if "**" not in parts:
        return []
    return [Path(*parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))])]


def act(request: SortRequest, files: Sequence[JudgedFile]) -> dict[Path, Path]:
    """Sort the files, or say what would be done; gives the new place of each that was moved."""
    from deltaenergy.sorting import How, plan_sorting, sort_files

    plan = plan_sorting(files, request.folder, request.how)
    if request.dry_run:
        _say_plan(plan)
        return {}
    kept = f"Nothing is lost: `deltaenergy undo {plan.folder}/undo-….jsonl` puts back what was {_DONE[plan.how.value]}."
    with keeping(kept), common.progress_bar(f"{request.how.value.title()} files") as progress:
        done = sort_files(plan, progress)
    err.print(f"{done.done:,} file(s) {_DONE[plan.how.value]} to {request.folder}.")
    if done.undo is not None:
        err.print(f"To undo: deltaenergy undo {shlex.quote(str(done.undo))}")
    list_skipped(done.skipped, "were left where they are")
    if plan.how is not How.MOVE:
        return {}
    places = {move.source: move.target for move in plan.moves if not os.path.lexists(move.source)}
    given = (file.source for file in files)
    return {path: places[full] for path in given if (full := Path(os.path.abspath(path))) in places}  # noqa: PTH100


def _say_plan(plan: SortPlan) -> None:
    counts = Counter(move.target.parent for move in plan.moves)
    err.print(f"Dry run: {len(plan.moves):,} file(s) would be {_DONE[plan.how.value]}, none was touched.")
    for folder, number in sorted(counts.items()):
        err.print(f"  {number:>7,}  {visible(str(folder))}")
    renamed = [move for move in plan.moves if move.target.name != move.source.name]
    for move in renamed[:MOST_LISTED]:
        err.print(f"  {visible(str(move.source))} as {visible(move.target.name)}: that name is taken")
    list_skipped(plan.skipped, "would be left where they are")


def list_skipped(skipped: Sequence[Skipped], what: str) -> None:
    """Files that were skipped, and why."""
    if not skipped:
        return
    err.print(f"{len(skipped):,} file(s) {what}:", style="yellow")
    for file in skipped[:MOST_LISTED]:
        err.print(f"  {visible(str(file.path))}: {file.reason}", style="yellow")
    if len(skipped) > MOST_LISTED:
        err.print(f"  and {len(skipped) - MOST_LISTED:,} more", style="yellow")
