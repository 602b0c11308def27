"""Errors whose message is meant for the user: what was wrong, where, and what to do about it.

A message names arguments as in Python, in backticks: "`keep` must be above 0", "pass `overwrite=True`". The command
line prints it with its own options in their place, and exits with code 2; it never shows a traceback. What the
operating system refuses (a full disk, a missing right) is put into words here too.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable

# What the system's error numbers mean for a file, and what can be done about it.
OS_REMEDIES = {
    errno.EACCES: ("permission is denied", "Choose another place, or ask for permission."),
    errno.EPERM: ("the system does not give permission", "Choose another place, or ask for permission."),
    errno.EROFS: ("the file system is read-only", "Choose a place on another one."),
    errno.ENOSPC: ("no space is left on the disk", "Make room, or choose a place on another disk."),
    errno.EDQUOT: ("your share of the disk is used up", "Make room, or choose a place on another disk."),
    errno.EFBIG: ("the file would be larger than allowed here", "Choose a place on another disk."),
    errno.ENAMETOOLONG: ("the name is too long", "Choose a shorter one."),
    errno.ELOOP: ("its links go round in a circle", "Choose another place, or mend the link."),
    errno.ENOENT: ("it does not exist", "Check the name."),
    errno.ENOTDIR: ("a part of its path is a file, not a folder", "Check the name."),
    errno.EISDIR: ("it is a folder, not a file", "Give the name of a file."),
    errno.EEXIST: ("it is there already", "Choose another name."),
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
    """An object store or web server does not answer, or not to us: no fault of any one picture, so the run ends."""


class OutputError(DeltaEnergyError, OSError):
    """A finished result could not be written where it was wanted; the message says where it is instead."""


class UnreadableImagesError(InputError):
    """Some images could not be decoded, in a call whose result must have one row per image."""

    def __init__(self, unreadable: Iterable[Unreadable]) -> None:
        self.unreadable = tuple(unreadable)
        shown = "\n".join(f"  {u.id}: {u.reason}" for u in self.unreadable[:10])
        more = f"\n  … and {len(self.unreadable) - 10} more" if len(self.unreadable) > 10 else ""
        super().__init__(
            f"{len(self.unreadable)} image(s) could not be read:\n{shown}{more}\n"
            "Remove them, or use `encode(...)` or `Detector.predict(...)`, which skip and list them."
        )


class ResultWarning(UserWarning):
    """A warning of what the result says as well: a command, which prints the result, leaves it out."""


class SkippedImages(ResultWarning):
    """Some images could not be read, and were left out; the result lists them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known words and lists them all: the tail of an 'unknown name' message."""
    known = sorted(set(known))
    near = difflib.get_close_matches(word.lower(), known, n=2, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"{hint} Known: {', '.join(known)}."


def is_want_of_room(error: BaseException) -> bool:
    """Whether something could not be written for reasons of the disk: no fault of what was being done."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
    return isinstance(error, OutputError) or full


def explain_os_error(error: OSError) -> str:
    """What the system refused, for which file, and what to do: one message."""
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    if error.errno == errno.ENOENT and not files:  # Python's own, such as for a missing temporary folder
        return f"{error.strerror}."
    reason, remedy = OS_REMEDIES.get(error.errno or 0, (error.strerror or str(error) or type(error).__name__, ""))
    return f"{' and '.join(files)}{': ' if files else ''}{reason.rstrip('.')}. {remedy}".strip()
