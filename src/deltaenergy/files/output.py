"""Where results go: found out before the work, and never the reason why finished work is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from deltaenergy.errors import OS_REMEDIES, DeltaEnergyError, InputError, OutputError
from deltaenergy.files.atomic import temporary_folder


def check_writable(path: str | Path, *, folder: bool = False, argument: str = "") -> None:
    """Raise `InputError` unless `path` can be written: call it before long work. It leaves nothing behind.

    Args:
        path: the file, or with `folder` the folder, that the result will go to. It need not exist, nor its parents:
            they are made when it is written.
        folder: whether the result is a folder of files.
        argument: which argument of the call names it, for the message.
    """
    said = f"`{argument}` {path}" if argument else str(path)
    with _explained(said):
        target = Path(os.path.realpath(path))
        if folder:
            if target.exists() and not target.is_dir():
                raise InputError(f"{said} is a file. Give a folder, which is made if it does not exist.")
        else:
            _check_file(target, said)
        wanted = target if folder else target.parent
        place = wanted
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        place.stat()  # of the links that are left now, all go round in a circle
        if not place.is_dir():
            raise InputError(f"{said} cannot be written: {place} is a file, not a folder. Choose another place.")
        within = f"{place}" if place == wanted else f"{wanted} does not exist, and cannot be made in {place}"
        with _explained(said, within), temporary_folder(place) as probe:
            (probe / "probe").touch()


def keeping_result(
    path: str | Path,
    write: Callable[[Path], None],
    *,
    what: str = "The result",
    otherwise: Callable[[], None] | None = None,
) -> None:
    """Call `write(path)`; if that fails, write the result elsewhere and raise an `OutputError` that says where.

    Tried in turn: another name beside `path`, a new folder among the system's temporary ones, and `otherwise`, which
    should show the result on standard output.

    Args:
        path: the file or folder to write.
        write: writes the result, a file or a folder, to the path it is given.
        what: how the message calls the result.
        otherwise: the last resort.
    """
    path = Path(path)
    try:
        write(path)
    except (OSError, DeltaEnergyError) as error:
        because = f"{what} could not be written to {path}: {_reason(error)}"
        place = _write_beside(path, write) or _write_temporary(path, write)
        if place is not None:
            raise OutputError(f"{because}.\nIt is kept in {place}: move it to where you want it.") from error
        if otherwise is not None:
            otherwise()
            raise OutputError(
                f"{because}.\nIt could be kept nowhere else either, and is on standard output."
            ) from error
        raise OutputError(f"{because}.\nIt could be kept nowhere else either. Make room and run again.") from error


def _check_file(target: Path, said: str) -> None:
    if target.is_dir():
        raise InputError(f"{said} is a folder. Give the name of a file.")
    if target.exists():
        if not target.is_file():
            raise InputError(f"{said} is not an ordinary file, so nothing is written there. Give another name.")
        try:
            os.close(os.open(target, os.O_WRONLY))  # changes nothing, not even its time
        except PermissionError:
            raise InputError(f"{said} is write-protected. Give another name, or lift the protection.") from None


def move_aside(file: Path, target: Path) -> Path | None:
    """Give an unfinished file a free name beside `target`, or in a new folder among the system's temporary ones."""
    names = (target.with_name(f"{target.stem}.partial-{number}{target.suffix}") for number in range(1, 100))
    beside = next((name for name in names if not os.path.lexists(name)), None)
    if beside is not None:
        with contextlib.suppress(OSError):
            return file.rename(beside)
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="deltaenergy-"))
        try:
            return Path(shutil.move(file, folder / target.name))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # made a moment ago, by us
    return None


def _write_beside(path: Path, write: Callable[[Path], None]) -> Path | None:
    """Write under another name in the same folder, if that folder is there; None if that fails too."""
    others = (path.with_name(f"{path.stem}.kept-{number}{path.suffix}") for number in range(1, 100))
    other = next((name for name in others if not os.path.lexists(name)), None)
    if other is None or not path.parent.is_dir():
        return None
    try:
        # In a folder of our own first, so that a second failure leaves nothing.
        with temporary_folder(path.parent) as folder:
            write(folder / path.name)
            (folder / path.name).rename(other)
    except (OSError, DeltaEnergyError):
        return None
    return other


def _write_temporary(path: Path, write: Callable[[Path], None]) -> Path | None:
    """Write to a new folder among the system's temporary ones; None if that fails too."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="deltaenergy-"))
    except OSError:
        return None
    try:
        write(folder / path.name)
    except (OSError, DeltaEnergyError):
        shutil.rmtree(folder, ignore_errors=True)  # made a moment ago, by us
        return None
    return folder / path.name


@contextlib.contextmanager
def _explained(said: str, where: str = "") -> Iterator[None]:
    """Turn the system's errors into a message with a remedy."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        reason, remedy = OS_REMEDIES.get(error.errno or 0, (_reason(error), "Choose another place."))
        place = f" ({where})" if where else ""
        raise InputError(f"{said} cannot be written: {reason}{place}. {remedy}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{said!r} is not a file name: {error}. Give another.") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error).rstrip(".")
