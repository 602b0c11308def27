"""Errors with a message for the user: what is wrong, where, and how to fix it.

A message names arguments as in Python, in backticks: "`keep` must be above 0", "pass `overwrite=True`". The command
line prints it with options instead, without a traceback, and exits with code 2. Refusals of the operating system (a
full disk, a missing permission) also get their message here.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable

# Now: when memory has run out, no module can be imported any more.
try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

# What the system's error numbers mean for a file, and the remedy.
OS_REMEDIES = {
    errno.EACCES: ("permission is denied", "Choose another place, or ask for permission."),
    errno.EPERM: ("the system does not permit it", "Choose another place, or ask for permission."),
    errno.EROFS: ("the file system is read-only", "Choose a place on another one."),
    errno.ENOSPC: ("no space is left on the disk", "Make room, or choose a place on another disk."),
    errno.EDQUOT: ("your disk quota is used up", "Make room, or choose a place on another disk."),
    errno.EFBIG: ("the file would be larger than allowed here", "Choose a place on another disk."),
    errno.ENAMETOOLONG: ("the name is too long", "Choose a shorter one."),
    errno.ELOOP: ("its links form a loop", "Choose another place, or fix the link."),
    errno.ENOENT: ("it does not exist", "Check the name."),
    errno.ENOTDIR: ("a part of its path is a file, not a folder", "Check the name."),
    errno.EISDIR: ("it is a folder, not a file", "Give the name of a file."),
    errno.EEXIST: ("it already exists", "Choose another name."),
    errno.EIO: ("the disk or the connection to it failed", "Try again, or copy the data elsewhere."),
    errno.ESTALE: ("the connection to its disk was lost", "Try again, or copy the data elsewhere."),
    errno.EMFILE: ("too many files are open", "Raise the limit, as with `ulimit -n 4096`."),
    errno.ENFILE: ("too many files are open on this machine", "Close other programs."),
    errno.ENOMEM: ("there is not enough memory", "Close other programs, or use a smaller batch."),
    errno.ETIMEDOUT: ("it did not answer in time", "Check the connection, and try again."),
    errno.ECONNREFUSED: ("the connection was refused", "Check the connection, and try again."),
    errno.ENETUNREACH: ("there is no network", "Check the connection, and try again."),
}


class DeltaEnergyError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(DeltaEnergyError, ValueError):
    """An argument or a file cannot be used as it is."""


class ModelUnavailableError(DeltaEnergyError, OSError):
    """A model's files are neither on disk nor reachable."""


class NotFittedError(DeltaEnergyError, RuntimeError):
    """A detector or score was used before the step that prepares it."""


class ArtifactError(DeltaEnergyError):
    """A saved artefact is damaged, or was made with another model, class list or version."""


class UnreachableError(DeltaEnergyError):
    """Cloud storage or a web server does not answer or refuses us: no single image is at fault, so the run ends."""


class OutputError(DeltaEnergyError, OSError):
    """A finished result could not be written where requested; the message says where it is instead."""


class UnreadableImagesError(InputError):
    """Some images could not be decoded, in a call whose result must have one row per image."""

    def __init__(self, unreadable: Iterable[Unreadable]) -> None:
        self.unreadable = tuple(unreadable)
        count = len(self.unreadable)
        shown = "\n".join(f"  {u.id}: {u.reason}" for u in self.unreadable[:10])
        more = f"\n  … and {count - 10} more" if count > 10 else ""
        super().__init__(
            f"{count} image{'s' * (count != 1)} could not be read:\n{shown}{more}\nRemove them, or use "
            "`encode(...)` or `Detector.predict(...)`, which skip and list them."
        )


class ResultWarning(UserWarning):
    """A warning that repeats what the result says: commands, which print the result, do not show it."""


class SkippedImages(ResultWarning):
    """Some images could not be read and were skipped; the result lists them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an 'unknown name' message: the nearest known words, and all of them."""
    known = sorted(set(known))
    near = difflib.get_close_matches(word.lower(), known, n=2, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"{hint} Known: {', '.join(known)}."


def is_want_of_room(error: BaseException) -> bool:
    """Whether a write failed because of the disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
    return isinstance(error, OutputError) or full


def explain_os_error(error: OSError) -> str:
    """One message: what the system refused, for which file, and the remedy."""
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    if error.errno == errno.ENOENT and not files:  # raised by Python itself, such as for a missing temporary folder
        return f"{error.strerror}."
    reason, remedy = OS_REMEDIES.get(error.errno or 0, (error.strerror or str(error) or type(error).__name__, ""))
    return f"{' and '.join(files)}{': ' if files else ''}{reason.rstrip('.')}. {remedy}".strip()


def first_line(error: BaseException) -> str:
    """What an error says in its first line; its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def used_up_its_memory() -> bool:
    """Whether this process has taken more than nine tenths of what a limit such as `ulimit -v` allows it."""
    if resource is None or (allowed := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return False
    with contextlib.suppress(OSError), Path("/proc/self/status").open("rb") as status:  # on Linux
        most = next(line for line in status if line.startswith(b"VmPeak:"))
        return int(most.split()[1]) * 1024 > 0.9 * allowed
    return False
