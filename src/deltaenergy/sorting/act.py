"""Copy, link or move files to where a plan puts them.

The whole plan is written to `undo-<n>.jsonl` in the target folder, and is on disk before the first file is touched: a
run that is interrupted at any point can be taken back. Nothing is ever overwritten: a file appears under its name in
one step that fails if the name is taken.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltaenergy.core.progress import Progress
from deltaenergy.errors import OS_REMEDIES, OutputError
from deltaenergy.files.atomic import sync_folder, temporary_folder
from deltaenergy.sorting.plan import How, Left, Placement, Plan

FORMAT, VERSION = "deltaenergy sorted files", 1
# Where hard links are refused: another disk, a file system without them, a file of another owner.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
# What the next file would meet as well.
_HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@dataclass(frozen=True)
class Sorted:
    """What was done: the file that takes it back (None if there was nothing to do), how many, and what was left."""

    undo: Path | None
    done: int
    left: list[Left]


def sort_files(plan: Plan, progress: Progress | None = None) -> Sorted:
    """Carry out a plan. A file that cannot be placed is left, with a reason, and all others are done."""
    if not plan.placements:
        return Sorted(None, 0, plan.left)
    plan.folder.mkdir(parents=True, exist_ok=True)
    undo = _write_plan(plan)
    left = list(plan.left)
    done = 0
    with temporary_folder(plan.folder) as scratch:
        for position, one in enumerate(plan.placements):
            try:
                one.target.parent.mkdir(parents=True, exist_ok=True)
                _place(one, plan.how, scratch)
                done += 1
            except OSError as error:
                reason = OS_REMEDIES.get(error.errno or 0, (error.strerror or str(error), ""))[0]
                if error.errno in _HOPELESS:
                    raise OutputError(
                        f"{one.source} could not be placed: {reason}. {done} of {len(plan.placements)} files were done "
                        f"before it; `deltaenergy undo {undo}` takes them back."
                    ) from error
                left.append(Left(one.source, reason))
            if progress is not None:
                progress(position + 1, len(plan.placements))
    return Sorted(undo, done, left)


def _write_plan(plan: Plan) -> Path:
    """The plan as JSON lines, under the first free name."""
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "how": plan.how.value,
        "made": [os.path.relpath(place, plan.folder) for place in plan.made],
    }
    lines = [header]
    for one in plan.placements:
        line: dict[str, Any] = {"from": str(one.source), "to": one.target.relative_to(plan.folder).as_posix()}
        with contextlib.suppress(OSError):  # one that is gone is told when its turn comes
            found = one.source.stat()
            line |= {"size": found.st_size, "mtime_ns": found.st_mtime_ns}
        lines.append(line)
    number = 1
    while True:
        undo = plan.folder / f"undo-{number}.jsonl"
        try:
            # ASCII: bytes of file names that are no text become escapes, and come back as what they were.
            with undo.open("x", encoding="ascii") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            break
        except FileExistsError:
            number += 1
    sync_folder(plan.folder)
    return undo


def _place(one: Placement, how: How, scratch: Path) -> None:
    if how is How.LINK:
        one.source.stat()
        one.target.symlink_to(one.source)
    elif how is How.COPY:
        copy_new(one.source, one.target, scratch)
    else:
        move_new(one.source, one.target, scratch)


def copy_new(source: Path, target: Path, scratch: Path) -> None:
    """Copy a file with its times to a name that must be free; half a copy is never seen under it."""
    temporary = scratch / "copy"
    try:
        shutil.copyfile(source, temporary)
        shutil.copystat(source, temporary)
        _give_name(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def move_new(source: Path, target: Path, scratch: Path | None = None) -> None:
    """Move a file to a name that must be free. At every moment it is in one of the two places, or in both."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with contextlib.nullcontext(scratch) if scratch is not None else temporary_folder(target.parent) as place:
            copy_new(source, target, place)
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    try:
        source.unlink()
    except OSError:
        target.unlink()  # made a moment ago, by us
        raise


def _give_name(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        temporary.rename(target)
