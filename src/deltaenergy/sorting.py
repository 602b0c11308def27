"""Sort a user's image files into folders by verdict and class, and undo that.

    FOLDER/known/<class>/…        FOLDER/none of these/…        FOLDER/undo-1.jsonl

`sort` finds a name for every file (`plan_sorting`) and writes the plan to `undo-<n>.jsonl` in the target folder before
it touches a file, so an interrupted run can be undone (`undo`). Nothing is ever overwritten: a file appears under its
name in one step that fails if the name is taken.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import glob
import itertools
import json
import os
import re
import shutil
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from deltaenergy.core.progress import Progress, stage
from deltaenergy.data.file import user_path
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.score import Scoring, no_threshold
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE
from deltaenergy.detector.verdicts import Verdicts
from deltaenergy.errors import OS_REMEDIES, ArtifactError, InputError, OutputError, did_you_mean
from deltaenergy.files import check_writable
from deltaenergy.files.atomic import remove_litter, sync_folder, temporary_folder
from deltaenergy.source import has_pixels, items_of

FORMAT, VERSION = "deltaenergy sorted files", 1
# Characters that some file systems refuse, control characters, and bidirectional controls.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)")
LONGEST_FOLDER, LONGEST_FILE = 120, 255
# Errors of hard links: another disk, a file system without them, a file of another owner.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
# Errors that the next file would also get.
_HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
# Some file systems store times to two seconds.
_SAME_TIME_NS = 2_000_000_000


class How(StrEnum):
    """What is done with a file."""

    COPY = "copy"
    LINK = "link"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """An image's file and its verdict."""

    source: Path
    label: str
    is_ood: bool


@dataclass(frozen=True, slots=True)
class Move:
    """A file and its target; in an undo file also its size and time, to find copies that changed since."""

    source: Path
    target: Path
    size: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that stays where it is, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class SortPlan:
    """The plan. `made` are the folders to create, parents first."""

    folder: Path
    how: How
    moves: list[Move]
    skipped: list[Skipped] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Sorted:
    """What was done or undone.

    Attributes:
        how: copied, linked or moved.
        done: number of files.
        skipped: files that were not touched, and why.
        undo: the file for `undo`, if anything was done.
        moves: the whole plan: every file and its target.
        verdicts: of the images, with their new paths.
    """

    how: How
    done: int
    skipped: list[Skipped]
    undo: Path | None = None
    moves: list[Move] = field(default_factory=list)
    verdicts: Verdicts | None = None


def sort(verdicts: Scoring | Verdicts, into: str | Path, how: str = "copy", *, dry_run: bool = False) -> Sorted:
    """Copy, link or move image files to INTO/known/CLASS and INTO/none of these; `undo` reverses it.

    Args:
        verdicts: of `score`, or of `Detector.predict` on files.
        into: a folder outside the image folders.
        how: `copy`, `link` or `move`.
        dry_run: plan only; `moves` says what would be done.
    """
    if how not in tuple(How):
        raise InputError(f"`how` must be copy, link or move, got {how!r}.{did_you_mean(str(how), map(str, How))}")
    if isinstance(verdicts, Scoring):
        if not verdicts.has_threshold:
            raise no_threshold("sort")
        if not has_pixels(verdicts.images):
            raise InputError(f"Features have no image files to {how}: give the folder of images.")
        for item in items_of(verdicts.images):
            _file_of(item, how)
        given = [verdicts.given] if isinstance(verdicts.given, str | os.PathLike) else verdicts.given
        refuse_inside(into, [one for one in given if isinstance(one, str | os.PathLike)])
    check_writable(into, folder=True, argument="into")
    found = verdicts.collect() if isinstance(verdicts, Scoring) else verdicts
    if found.is_ood is None:
        raise no_threshold("sort")
    items = found.items or [ImageItem(path, Path(path)) for path in found.paths]
    files = [_file_of(item, how) for item in items]
    judged = [JudgedFile(file, one.label, bool(one.is_ood)) for file, one in zip(files, found)]
    plan = plan_sorting(judged, into, How(how))
    if dry_run:
        return Sorted(plan.how, 0, plan.skipped, moves=plan.moves, verdicts=found)
    with stage(f"{how.title()} files") as progress:
        done = sort_files(plan, progress)
    moved = {move.source: move.target for move in plan.moves if not os.path.lexists(move.source)}
    now = [moved.get(Path(os.path.abspath(file)), file) for file in files]  # noqa: PTH100
    placed = replace(found, items=[replace(item, source=file) for item, file in zip(items, now)])
    return replace(done, moves=plan.moves, verdicts=placed)


def _file_of(item: ImageItem, how: str) -> Path:
    """The image's own file; an image in an archive has none."""
    if item.path is not None:
        return item.path
    if item.problem is not None:
        return Path(item.id)
    raise InputError(f"{item.id} is in an archive or feature store, or at a URL: to {how} it, copy it to a folder.")


def plan_sorting(files: Iterable[JudgedFile], folder: str | Path, how: How) -> SortPlan:
    """Find a target for every file, and change nothing.

    A name that is taken gets a number, `cat (2).jpg`; case is ignored, as on some disks. A file given twice is placed
    once. Links are not moved.
    """
    root = Path(os.path.abspath(folder))  # noqa: PTH100 (links stay as the user wrote them)
    folders: dict[str, str] = {}  # one folder per class, even if two safe names are equal
    folders_taken: set[str] = set()
    taken: dict[Path, set[str]] = {}
    plan = SortPlan(root, how, [])
    seen: set[Path] = set()
    for file in files:
        source = Path(os.path.abspath(file.source))  # noqa: PTH100
        if source in seen:
            continue
        seen.add(source)
        if how is How.MOVE and source.is_symlink():
            plan.skipped.append(Skipped(source, "it is a link, and links are not moved"))
            continue
        if not file.is_ood and file.label not in folders:
            name = safe_folder(file.label)
            folders[file.label] = _free_name(name, folders_taken, LONGEST_FOLDER + 8, whole=True)
        place = root / NONE_OF_THESE if file.is_ood else root / KNOWN / folders[file.label]
        if place not in taken:
            taken[place] = {_same(name) for name in _listed(place)}
        plan.moves.append(Move(source, place / _free_name(source.name, taken[place])))
    if plan.moves:
        parents = {parent for move in plan.moves for parent in move.target.parents}
        plan.made.extend(parent for parent in sorted(parents) if not parent.exists())
    return plan


def refuse_inside(folder: str | Path, sources: Iterable[str | os.PathLike[str]]) -> None:
    """Raise `InputError` if `folder` is, or is in, a folder that is searched for images: they would be sorted again."""
    target = Path(os.path.realpath(folder))
    for source in sources:
        place = user_path(source)
        if glob.has_magic(os.fspath(source)) and not os.path.lexists(place):
            if "**" not in place.parts:  # it finds no image in a new folder
                continue
            place = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), place.parts))
        found = Path(os.path.realpath(place))
        if found.is_dir() and target.is_relative_to(found):
            where = "is the folder" if target == found else f"is in {place},"
            raise InputError(
                f"`into` {folder} {where} that the images are read from: the next run would read the sorted files "
                "again. Choose a folder outside it."
            )


def safe_folder(label: str) -> str:
    """A class name as the name of a folder, on any system.

    >>> safe_folder("AC/DC: live?")
    'AC_DC_ live_'
    """
    name = _UNSAFE.sub("_", unicodedata.normalize("NFC", label)).strip(" .")
    if _RESERVED.match(name):
        name = f"_{name}"
    return _cut(name, LONGEST_FOLDER).rstrip(" .") or "_"


def _free_name(name: str, taken: set[str], longest: int = LONGEST_FILE, *, whole: bool = False) -> str:
    """`name`, or with the first free number; it is then taken."""
    stem, ending = (name, "") if whole else os.path.splitext(name)  # noqa: PTH122 (surrogates stay)
    number, free = 1, name
    while _same(free) in taken:
        number += 1
        mark = f" ({number}){ending}"
        free = _cut(stem, longest - len(os.fsencode(mark))) + mark
    taken.add(_same(free))
    return free


def _same(name: str) -> str:
    """A key that is equal for names that some file system treats as equal."""
    return unicodedata.normalize("NFC", name).casefold()


def _cut(text: str, size: int) -> str:
    """`text` in at most `size` bytes, cut between letters."""
    while len(text.encode("utf-8", "surrogateescape")) > size:
        text = text[:-1]
    return text


def _listed(place: Path) -> list[str]:
    try:
        return [entry.name for entry in place.iterdir()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise InputError(f"{place} is a file, not a folder. Choose another folder to sort into.") from None


def sort_files(plan: SortPlan, progress: Progress | None = None) -> Sorted:
    """Carry out a plan. A file that cannot be placed is skipped with a reason."""
    if not plan.moves:
        return Sorted(plan.how, 0, plan.skipped)
    plan.folder.mkdir(parents=True, exist_ok=True)
    undo = _write_plan(plan)
    skipped, done = list(plan.skipped), 0
    with temporary_folder(plan.folder) as scratch:
        for position, move in enumerate(plan.moves):
            try:
                move.target.parent.mkdir(parents=True, exist_ok=True)
                _place(move, plan.how, scratch)
                done += 1
            except OSError as error:
                if error.errno in _HOPELESS:
                    raise OutputError(
                        f"{move.source} could not be placed: {_reason(error)}. {done} of {len(plan.moves)} files were "
                        f"done before it; `deltaenergy undo {undo}` reverses that."
                    ) from error
                skipped.append(Skipped(move.source, _reason(error)))
            except KeyboardInterrupt as stop:
                stop.add_note(f"Nothing is lost: `deltaenergy undo {undo}` reverses what was done.")
                raise
            if progress is not None:
                progress(position + 1, len(plan.moves))
    return Sorted(plan.how, done, skipped, undo)


def _reason(error: OSError) -> str:
    return OS_REMEDIES.get(error.errno or 0, (error.strerror or str(error), ""))[0]


def _write_plan(plan: SortPlan) -> Path:
    """The plan as JSON lines, under the first free name."""
    made = [os.path.relpath(place, plan.folder) for place in plan.made]
    lines: list[dict[str, Any]] = [{"format": FORMAT, "version": VERSION, "how": plan.how.value, "made": made}]
    for move in plan.moves:
        line: dict[str, Any] = {"from": str(move.source), "to": move.target.relative_to(plan.folder).as_posix()}
        with contextlib.suppress(OSError):  # a missing file is reported when it is moved
            status = move.source.stat()
            line |= {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        lines.append(line)
    for number in itertools.count(1):
        undo = plan.folder / f"undo-{number}.jsonl"
        # ASCII: bytes of file names that are not text become escapes, and are restored on reading.
        with contextlib.suppress(FileExistsError), undo.open("x", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
            break
    sync_folder(plan.folder)
    return undo


def _place(move: Move, how: How, scratch: Path) -> None:
    if how is How.LINK:
        move.source.stat()
        move.target.symlink_to(move.source)
    elif how is How.COPY:
        _copy(move.source, move.target, scratch)
    else:
        _move(move.source, move.target, scratch)


def _copy(source: Path, target: Path, scratch: Path) -> None:
    """Copy a file with its times to a free name, atomically."""
    temporary = scratch / "copy"
    try:
        shutil.copyfile(source, temporary)
        shutil.copystat(source, temporary)
        try:
            os.link(temporary, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def _move(source: Path, target: Path, scratch: Path | None = None) -> None:
    """Move a file to a free name. At every moment it is in one of the two places, or in both."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with contextlib.nullcontext(scratch) if scratch is not None else temporary_folder(target.parent) as place:
            _copy(source, target, place)
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    try:
        source.unlink()
    except OSError:
        target.unlink()  # just made by us
        raise


def undo(file: str | Path, *, dry_run: bool = False) -> Sorted:
    """Undo what `sort` did, also if it was interrupted; can be repeated.

    Moved files are moved back, and copies and links are removed, unless they changed since. When nothing is left, empty
    folders that `sort` made and the undo file are removed.
    """
    path = Path(os.path.abspath(file))  # noqa: PTH100
    how, made, moves = _read_plan(path)
    skipped: list[Skipped] = []
    done = 0
    with stage("Undo") as progress:
        for position, move in enumerate(moves, start=1):
            try:
                reason, changed = _take_back(move, how, dry_run)
            except OSError as error:
                reason, changed = _reason(error), False
            done += changed
            if reason is not None:
                skipped.append(Skipped(move.target, reason))
            progress(position, len(moves))
    if not dry_run and not skipped:
        path.unlink()
        remove_litter(path.parent)
        for place in sorted(made, reverse=True):
            with contextlib.suppress(OSError):  # something else is in it
                place.rmdir()
    return Sorted(how, done, skipped)


def _take_back(move: Move, how: How, dry_run: bool) -> tuple[str | None, bool]:
    """Why a file is skipped, or None; and whether something was done."""
    if not os.path.lexists(move.target):
        lost = how is How.MOVE and not os.path.lexists(move.source)
        return ("it is missing, here and at its old path" if lost else None), False
    if how is How.LINK:
        if not move.target.is_symlink() or move.target.readlink() != move.source:
            return "it is no longer the link that was made", False
    elif how is How.COPY:
        if not _as_recorded(move):
            return "it was changed since it was copied", False
    elif move.target.is_symlink() or not move.target.is_file():
        return "it is no longer a file", False
    elif os.path.lexists(move.source):
        # A move that was interrupted halfway left both; of two equal files one may go.
        if not filecmp.cmp(move.source, move.target, shallow=False):
            return f"its old path {move.source} is taken by another file", False
    else:
        if not dry_run:
            move.source.parent.mkdir(parents=True, exist_ok=True)
            _move(move.target, move.source)
        return None, True
    if not dry_run:
        move.target.unlink()
    return None, True


def _as_recorded(move: Move) -> bool:
    if move.target.is_symlink() or not move.target.is_file() or move.size is None or move.mtime_ns is None:
        return False
    status = move.target.stat()
    return status.st_size == move.size and abs(status.st_mtime_ns - move.mtime_ns) <= _SAME_TIME_NS


def _read_plan(path: Path) -> tuple[How, list[Path], list[Move]]:
    remedy = "Give the undo-….jsonl file of the folder that was sorted into."
    if path.exists() and not path.is_file():  # a pipe would block, and a device may have no end
        raise ArtifactError(f"{path} is not a file. {remedy}")
    try:
        header, *rest = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError("another format")
        made = [Path(os.path.normpath(path.parent / str(place))) for place in header["made"]]
        if not all(path.is_relative_to(place) or place.is_relative_to(path.parent) for place in made):
            raise ValueError("a folder is elsewhere")
        return How(header["how"]), made, [_read_move(path.parent, line) for line in rest]
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {_reason(error)}. {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{path} is not an undo file. {remedy}") from error


def _read_move(folder: Path, line: dict[str, Any]) -> Move:
    relative, source = PurePosixPath(line["to"]), Path(line["from"])
    for name in (os.fsencode(relative), os.fsencode(source)):  # half a character is a ValueError
        if b"\0" in name:
            raise ValueError("not a name of a file")
    # A tampered file must not lead outside the folder.
    if relative.is_absolute() or ".." in relative.parts or not relative.parts or not source.is_absolute():
        raise ValueError("a path leads outside")
    size, mtime = line.get("size"), line.get("mtime_ns")
    if not all(number is None or isinstance(number, int) for number in (size, mtime)):
        raise ValueError("not numbers")
    return Move(source, folder / relative, size, mtime)
