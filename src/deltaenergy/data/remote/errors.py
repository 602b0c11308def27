"""What may go wrong with a request: for this object only, or for everything there.

A `Refused` says something about one object: nothing is there, it may not be read, it changed. An `UnreachableError`
says something about its bucket or server, and ends the run: a lost store is never a million unreadable images.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from deltaenergy.data.remote.url import SCHEMES, is_web, root_of, scheme_of
from deltaenergy.errors import InputError, UnreachableError

_SECRET = re.compile(r"\b(access_token|sig|signature|AccountKey|SharedAccessSignature)=[^\s;&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How often and how long a store or server is asked, and for how much at most.

    Attributes:
        attempts: requests for one thing, if those before failed for a reason that may pass.
        first_wait: seconds before the second attempt; each later wait is up to twice as long.
        most_seconds: after this time no new attempt is made.
        connect_seconds: until a connection must be there.
        silent_seconds: without a byte, until an answer is given up.
        request_seconds: for one whole request.
        image_bytes: an image is held whole while it is decoded, and many are fetched at a time.
    """

    attempts: int = 5
    first_wait: float = 0.5
    most_seconds: float = 120.0
    connect_seconds: float = 10.0
    silent_seconds: float = 20.0
    request_seconds: float = 600.0
    image_bytes: int = 1 << 28


class Refused(OSError):
    """The server answered, and did not give what was requested; `reason` is half a sentence about the object."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url, self.reason = url, reason


class Missing(Refused):
    """Nothing is there; `is_folder` if there are objects below."""

    def __init__(self, url: str, *, is_folder: bool = False) -> None:
        super().__init__(url, "a folder is at this URL: end it with a slash" if is_folder else "nothing is at this URL")
        self.is_folder = is_folder


class Denied(Refused):
    """It may not be read with these credentials."""

    def __init__(self, url: str, reason: str = "no permission to read it") -> None:
        super().__init__(url, reason)


class Changed(Refused):
    """The object is not the one that was described."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "it changed after it was listed")


def no_credentials(url: str, why: str) -> UnreachableError:
    """The error for a store that does not know the caller."""
    scheme = SCHEMES[scheme_of(url)]
    return UnreachableError(
        f"{url} cannot be read: {scheme.name} does not accept the credentials, or there are none ({why}). "
        f"Credentials are read from the environment: {scheme.credentials}."
    )


def out_of_reach(url: str, why: str, attempts: int) -> UnreachableError:
    """The error for a store or server that does not answer."""
    return UnreachableError(
        f"{root_of(url)} cannot be reached: {why}. It was asked {attempts} times, last for {url}. Check the connection "
        "and run again."
    )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """What is refused in this block becomes an `InputError` with what to do about it."""
    try:
        yield
    except Refused as refused:
        hint, credentials = "", SCHEMES[scheme_of(refused.url)].credentials
        if isinstance(refused, Denied) and credentials:
            hint = f" Credentials are read from the environment: {credentials}."
        elif isinstance(refused, Missing) and not is_web(refused.url):
            hint = f" Check the name; {root_of(refused.url)}/ lists the bucket."
        raise InputError(f"{refused}.{hint}") from refused


def first_line(said: object) -> str:
    """What a library says, in one short line without secrets."""
    text = (str(said).splitlines() or [""])[0].strip().rstrip(".")
    return _SECRET.sub(r"\1=…", text or type(said).__name__)[:160]
