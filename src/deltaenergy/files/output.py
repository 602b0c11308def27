"""Where results go: found out before the work, and never the reason why finished work is lost."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from deltaenergy.errors import OS_REMEDIES, DeltaEnergyError, InputError, OutputError
from deltaenergy.files.atomic import file_to_write, temporary_folder

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # also as a `Path`, which has one slash less


def check_writable(path: str | Path, *, folder: bool = False, argument: str = "") -> None:
    """Raise `InputError` unless `path` can be written: call it before long work. It leaves nothing behind.

    Args:
        path: the file, or with `folder` the folder, that the result will go to. It need not exist, nor its parents:
            they are made when it is written.
        folder: whether the result is a folder of files.
        argument: which argument of the call names it, for the message.
    """
    said = f"`{argument}` {path}" if argument else str(path)
    if _URL.match(str(path)):
        raise InputError(f"{said} is a URL. Give a path on this machine.")
    with _explained(said):
        if folder:
            wanted = Path(os.path.realpath(path))
            if wanted.exists() and not wanted.is_dir():
                raise InputError(f"{said} is a file. Give a folder, which is made if it does not exist.")
        else:
            target = file_to_write(path, said)
            wanted = target.parent
            try:
                if target.exists():
                    os.close(os.open(target, os.O_WRONLY))  # changes nothing, not even its time
            except PermissionError:
                raise InputError(f"{said} is write-protected. Give another name, or lift the protection.") from None
        place = wanted
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        place.stat()  # of the links that are left now, all go round in a circle
        if not place.is_dir():
            raise InputError(f"{said} cannot be written: {place} is a file, not a folder. Choose another place.")
        within = f"{place}" if place == wanted else f"{wanted} does not exist, and cannot be made in {place}"
        with _explained(said, within), temporary_folder(place) as probe:
            (probe / "probe").touch()


def keeping_result(path: str | Path, write: Callable[[Path], None], *, what: str = "The result") -> None:
    """Call `write(path)`; if that fails, write the result elsewhere and raise an `OutputError` that says where.

    Tried in turn: another name next to `path`, and a new folder among the system's temporary ones.

    Args:
        path: the file or folder to write.
        write: writes the result, a file or a folder, to the path it is given.
        what: how the message calls the result.
    """
    path = Path(path)
    try:
        write(path)
    except (OSError, DeltaEnergyError) as error:
        place = _write_beside(path, write) or _write_temporary(path.name, write)
        rest = "It could be kept nowhere else either. Make room and run again."
        if place is not None:
            rest = f"It is kept in {place}: move it to where you want it."
        raise OutputError(f"{what} could not be written to {path}: {_reason(error)}.\n{rest}") from error


def move_aside(file: Path, target: Path) -> Path | None:
    """Give an unfinished file a free name next to `target`, or in a new folder among the system's temporary ones."""
    if (beside := _free_name(target, "partial")) is not None:
        with contextlib.suppress(OSError):
            return file.rename(beside)
    return _write_temporary(target.name, lambda place: shutil.move(file, place))


def _free_name(path: Path, word: str) -> Path | None:
    names = (path.with_name(f"{path.stem}.{word}-{number}{path.suffix}") for number in range(1, 100))
    return next((name for name in names if not os.path.lexists(name)), None)


def _write_beside(path: Path, write: Callable[[Path], object]) -> Path | None:
    """Write under another name in the same folder, if that folder is there; None if that fails too."""
    if not path.parent.is_dir() or (other := _free_name(path, "kept")) is None:
        return None
    with contextlib.suppress(OSError, DeltaEnergyError):
        # In a temporary folder first, so a second failure leaves nothing.
        with temporary_folder(path.parent) as folder:
            write(folder / path.name)
            (folder / path.name).rename(other)
        return other
    return None


def _write_temporary(name: str, write: Callable[[Path], object]) -> Path | None:
    """Write to a new folder among the system's temporary ones; None if that fails too."""
    with contextlib.suppress(OSError, DeltaEnergyError):
        folder = Path(tempfile.mkdtemp(prefix="deltaenergy-"))
        try:
            write(folder / name)
            return folder / name
        except (OSError, DeltaEnergyError):
            shutil.rmtree(folder, ignore_errors=True)  # made a moment ago, by us
    return None


@contextlib.contextmanager
def _explained(said: str, where: str = "") -> Iterator[None]:
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
