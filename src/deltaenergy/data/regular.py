"""Whether a path leads to a file that may be opened, asked before anything is opened.

To open a named pipe would wait for ever, and a device may have no end. Every reader of a user's file in this package
asks here first, so that one answer holds for all commands.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from deltaenergy.errors import InputError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def why_not_a_file(path: Path | str) -> str | None:
    """Why `path` cannot be opened as a regular file, as half a sentence; None if nothing speaks against it."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 (a Path per name is slow)
    except (OSError, ValueError) as error:
        return why_not_reached(path, error)
    return None if stat.S_ISREG(mode) else what_it_is(mode)


def what_it_is(mode: int) -> str:
    """What something is that is no regular file, as half a sentence."""
    if stat.S_ISDIR(mode):
        return "a folder, not an image file"
    return f"{_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file"


def why_not_reached(path: Path | str, error: OSError | ValueError) -> str:
    """Why the system refused to look at `path`, as half a sentence."""
    if isinstance(error, UnicodeError):
        return "no file has this name: it is not valid text"
    if isinstance(error, ValueError):
        return "no file has this name: it holds a NUL character"
    if isinstance(error, FileNotFoundError):
        broken = os.path.islink(path)  # noqa: PTH114 (Path.is_link raises where this answers)
        return "a symbolic link to a file that does not exist" if broken else "the file does not exist"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if error.errno == errno.ELOOP:
        return "cannot be read: its symbolic links lead in a circle"
    return f"cannot be read: {(error.strerror or str(error)).lower()}"


def check_file(path: Path, what: str) -> None:
    """Raise an `InputError` that begins with `what` unless `path` may be opened as a regular file."""
    if (reason := why_not_a_file(path)) is not None:
        raise InputError(f"{what} {str(path)!r} cannot be read: {reason.removeprefix('cannot be read: ')}.")


def user_path(path: str | os.PathLike[str]) -> Path:
    """`path` with `~` replaced by the user's home; an unknown `~name` stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser raises for an unknown ~name)


def is_folder(path: Path) -> bool:
    """Whether a folder is there; no for whatever the system refuses to look at, where `Path.is_dir` raises."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Whether a regular file is there; no for whatever the system refuses to look at, where `Path.is_file` raises."""
    return os.path.isfile(path)  # noqa: PTH113
