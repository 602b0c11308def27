"""Errors whose message is meant for the user: what was wrong, where, and what to do about it.

The command line prints the message of a `DeltaEnergyError` and exits with code 2; it never shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable


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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known words and lists them all: the tail of an 'unknown name' message."""
    known = sorted(known)
    near = difflib.get_close_matches(word.lower(), known, n=2, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"{hint} Known: {', '.join(known)}."


def near_names(word: str, names: Iterable[str]) -> str:
    """As `did_you_mean`, for names that may be a thousand: only the nearest are said unless they are few."""
    known = list(names)
    if len(known) <= 20:
        return did_you_mean(word, known)
    near = difflib.get_close_matches(word, known, n=2)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
