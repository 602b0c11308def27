"""Take a sorting back: what was moved goes home, and copies and links are removed, unless somebody changed them."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from deltaenergy.core.progress import Progress
from deltaenergy.errors import OS_REMEDIES, ArtifactError
from deltaenergy.files.atomic import remove_litter
from deltaenergy.sorting.act import FORMAT, VERSION, move_new
from deltaenergy.sorting.plan import How, Left

# Some file systems keep times to two seconds only.
_SAME_TIME_NS = 2_000_000_000


@dataclass(frozen=True)
class Undone:
    """How many files were put back or removed, and those that were left, with the reason."""

    how: How
    done: int
    left: list[Left]


@dataclass(frozen=True)
class _Line:
    source: Path
    target: Path
    size: int | None
    mtime_ns: int | None


def undo_sorting(file: str | Path, *, dry_run: bool = False, progress: Progress | None = None) -> Undone:
    """Undo what `sort_files` did, or had done when it was stopped; may be repeated.

    Files that it did not get to are passed over. When nothing is left, the folders that it made are removed if they
    are empty, and so is the undo file.
    """
    path = Path(os.path.abspath(file))  # noqa: PTH100
    how, made, lines = _read(path)
    left: list[Left] = []
    done = 0
    for position, line in enumerate(lines):
        try:
            reason, changed = _take_back(line, how, dry_run)
        except OSError as error:
            reason, changed = OS_REMEDIES.get(error.errno or 0, (error.strerror or str(error), ""))[0], False
        done += changed
        if reason is not None:
            left.append(Left(line.target, reason))
        if progress is not None:
            progress(position + 1, len(lines))
    if not dry_run and not left:
        path.unlink()
        remove_litter(path.parent)
        for place in sorted(made, reverse=True):
            with contextlib.suppress(OSError):  # something else is in it
                place.rmdir()
    return Undone(how, done, left)


def _take_back(line: _Line, how: How, dry_run: bool) -> tuple[str | None, bool]:
    """Why a file is left, if it is; and whether something was done."""
    if not os.path.lexists(line.target):
        lost = how is How.MOVE and not os.path.lexists(line.source)
        return ("it is neither here nor where it came from" if lost else None), False
    if how is How.LINK:
        if not line.target.is_symlink() or line.target.readlink() != line.source:
            return "it is no longer the link that was made", False
    elif how is How.COPY:
        if not _as_recorded(line):
            return "it was changed since it was copied", False
    elif line.target.is_symlink() or not line.target.is_file():
        return "it is no longer a file", False
    elif os.path.lexists(line.source):
        # A move that was interrupted between its two halves left both; of two equal files one may go.
        if not filecmp.cmp(line.source, line.target, shallow=False):
            return f"its old place {line.source} is taken by another file", False
    else:
        if not dry_run:
            line.source.parent.mkdir(parents=True, exist_ok=True)
            move_new(line.target, line.source)
        return None, True
    if not dry_run:
        line.target.unlink()
    return None, True


def _as_recorded(line: _Line) -> bool:
    if line.target.is_symlink() or not line.target.is_file() or line.size is None or line.mtime_ns is None:
        return False
    found = line.target.stat()
    return found.st_size == line.size and abs(found.st_mtime_ns - line.mtime_ns) <= _SAME_TIME_NS


def _read(path: Path) -> tuple[How, list[Path], list[_Line]]:
    if path.exists() and not path.is_file():  # a pipe would be waited for, and a device may have no end
        raise ArtifactError(f"{path} is not a file. Give the undo-….jsonl file of the folder that was sorted into.")
    try:
        values = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        header, *rest = values
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError("another format")
        how = How(header["how"])
        made = [Path(os.path.normpath(path.parent / str(place))) for place in header["made"]]
        if not all(path.is_relative_to(place) or place.is_relative_to(path.parent) for place in made):
            raise ValueError("a folder lies elsewhere")
        return how, made, [_line(path.parent, value) for value in rest]
    except OSError as error:
        reason = OS_REMEDIES.get(error.errno or 0, (error.strerror or str(error), ""))[0]
        raise ArtifactError(
            f"{path} cannot be read: {reason}. Give the undo-….jsonl file of a folder that `score` sorted into."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"{path} is no undo file of `deltaenergy score`. Give the undo-….jsonl file of the folder that was sorted "
            "into."
        ) from error


def _line(folder: Path, value: dict[str, Any]) -> _Line:
    relative = PurePosixPath(value["to"])
    source = Path(value["from"])
    for name in (os.fsencode(relative), os.fsencode(source)):  # half a character is a ValueError
        if b"\0" in name:
            raise ValueError("no name of a file")
    # A file that was tampered with must not lead us elsewhere.
    if relative.is_absolute() or ".." in relative.parts or not relative.parts or not source.is_absolute():
        raise ValueError("a path leads outside")
    size, mtime = value.get("size"), value.get("mtime_ns")
    if not all(number is None or isinstance(number, int) for number in (size, mtime)):
        raise ValueError("no numbers")
    return _Line(source, folder / relative, size, mtime)
