"""Bytes from object stores and web servers, through fsspec: asked for when they are needed, and asked for again when
a request fails for a passing reason.

    s3://bucket/a.jpg    gs://bucket/a.jpg    az://container/a.jpg    https://host/a.jpg

Time-outs, lost connections and the answers "too many requests" and "not now" are tried again, a few times, after
waits that double and are drawn at random, so that many workers do not come back all at once. What is missing or
forbidden is said at once. A store that still does not answer is an `UnreachableError`, which ends the run: it says
nothing about the picture. Nothing is written to disk.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, ClassVar, TypeVar

from deltaenergy.data.decode import Streamed, UnreadableImage
from deltaenergy.data.pixel_budget import PixelBudget
from deltaenergy.data.remote.errors import Meaning, in_words, meaning_of
from deltaenergy.data.remote.stores import LIMITS, RequestLimits, lacks_bucket, open_store
from deltaenergy.data.remote.url import is_web, kind_of, place_of, scheme_of
from deltaenergy.errors import UnreachableError

# The stamp of a picture that nobody listed: nothing tells whether it changed.
UNLISTED = "not listed"
# Of pictures whose size is known before, no more bytes than this are held at a time, by all threads together.
_BYTES = PixelBudget(1 << 29)

REQUEST_SECONDS = 300

_Result = TypeVar("_Result")


class Refused(OSError):
    """The server answered, and did not give what was asked for; the message is the reason, as half a sentence."""

    def __init__(self, reason: str, meaning: Meaning = Meaning.OTHER) -> None:
        super().__init__(reason)
        self.meaning = meaning


@dataclass(frozen=True, slots=True)
class RemoteFile(Streamed):
    """One picture on an object store or web server, by its address; its size where a listing told it."""

    url: str
    size: int | None
    stamp: str

    far: ClassVar[bool] = True

    def open(self) -> IO[bytes]:
        """The picture's bytes, fetched now. Raises `UnreachableError` if the store itself is out of reach."""
        return fetched_picture(self.size, lambda: fetch(self.url, 0, _connections.limits.image_bytes + 1))


def fetched_picture(size: int | None, read: Callable[[], bytes], what: str = "") -> IO[bytes]:
    """The bytes that `read` gives, counted as held until they are closed. What is refused is said of `what`.

    Raises `UnreadableImage`, or `UnreachableError` if the store itself is out of reach.
    """
    most = _connections.limits.image_bytes
    too_large = f"too large: more than the limit of {most} bytes for a picture at an address"
    if (size or 0) > most:
        raise UnreadableImage(too_large)
    with contextlib.ExitStack() as held:
        held.enter_context(_BYTES.hold(size or 0))
        try:
            data = read()
        except Refused as refused:
            raise UnreadableImage(f"{what}{refused}") from refused
        if len(data) > most:
            raise UnreadableImage(too_large)
        return _Fetched(data, held.pop_all())


class _Fetched(io.BytesIO):
    """Bytes in memory that count as held until they are closed."""

    def __init__(self, data: bytes, held: contextlib.ExitStack) -> None:
        super().__init__(data)
        self._held = held

    def close(self) -> None:
        self._held.close()
        super().close()


def fetch(address: str, start: int, end: int) -> bytes:
    """The bytes from `start` up to `end`, or to the end of the object if that comes first.

    Raises `Refused`, or `UnreachableError` if the store is out of reach.
    """

    def request(store: Any) -> bytes:
        if is_web(address):
            return bytes(on_loop(store, _web_part, address, start, end))
        part: bytes = store.cat_file(address, start=start, end=end, timeout=REQUEST_SECONDS)
        return part

    try:
        return ask(address, request)
    except Refused as refused:
        if refused.meaning is Meaning.EMPTY:
            return b""
        raise


def ask(address: str, request: Callable[[Any], _Result]) -> _Result:
    """What `request` gives for the store that `address` leads to, after as many attempts as it takes, but few.

    Raises `Refused` if this address is at fault, `UnreachableError` if its store or server is.
    """
    connections = _connections
    store, limits = connections.store(scheme_of(address)), connections.limits
    began = waited = time.monotonic()
    for attempt in range(limits.attempts):
        try:
            result = request(store)
        except Refused:
            raise
        except Exception as raised:  # the libraries' errors have no common base
            error, meaning = _understood(store, address, raised)
            if not meaning.passing:
                raise _told_at_once(address, meaning, error) from error
            if attempt + 1 == limits.attempts or time.monotonic() - began > limits.most_seconds:
                raise _given_up(connections, address, meaning, error, waited) from error
            waited = time.monotonic()
            connections.sleep(limits.first_wait * 2**attempt * random.uniform(0.5, 1))
        else:
            connections.answered[place_of(address)] = time.monotonic()
            return result
    raise AssertionError("the last attempt returns or raises")


def _understood(store: Any, address: str, error: Exception) -> tuple[Exception, Meaning]:
    """What an error says; where nothing is there, whether the whole bucket is missing."""
    meaning = meaning_of(error)
    if meaning is not Meaning.MISSING:
        return error, meaning
    try:
        return error, Meaning.NO_BUCKET if lacks_bucket(store, address) else meaning
    except Exception as failed:
        return failed, meaning_of(failed)


def _told_at_once(address: str, meaning: Meaning, error: Exception) -> Exception:
    kind = kind_of(address)
    # A web server knows nobody: there, it is the page that asks for a password.
    if meaning is Meaning.UNKNOWN_CALLER and not is_web(address):
        return UnreachableError(
            f"{place_of(address)} cannot be read: {kind.name} does not accept the credentials, or there are none "
            f"({in_words(error)}). They are taken from the environment: {kind.credentials}."
        )
    if meaning is Meaning.NO_BUCKET:
        return UnreachableError(f"{place_of(address)} cannot be read: there is no such bucket.")
    reason = {
        Meaning.MISSING: "nothing is at this address",
        Meaning.DENIED: "no permission to read it",
        Meaning.UNKNOWN_CALLER: "no permission to read it: the server asks for a password",
    }.get(meaning)
    return Refused(reason or f"cannot be read: {in_words(error)}", meaning)


def _given_up(connections: Connections, address: str, meaning: Meaning, error: Exception, waited: float) -> Exception:
    """Whether a request that failed so often speaks against this address alone.

    An answer that breaks off does, and so does a failure on the web, where servers fail on single pages. A web server
    that does not answer is at fault alone if it gave something else since the last wait, or if it never gave
    anything while another did: lists of addresses outlive some of their servers.
    """
    place = place_of(address)
    why = in_words(error)
    if meaning is Meaning.CUT or (meaning is Meaning.FAILED and is_web(address)):
        return Refused(f"cannot be read: {why}", meaning)
    if is_web(address):
        itself = connections.answered.get(place)
        lately = any(at >= waited for at in connections.answered.copy().values())
        if (itself is not None and itself >= waited) or (itself is None and lately):
            return Refused(f"its server cannot be reached: {why}", meaning)
    return UnreachableError(
        f"{place} cannot be reached: {why}. It was asked {connections.limits.attempts} times, last for {address}. "
        "Check the connection and run again."
    )


async def _web_part(store: Any, address: str, start: int, end: int) -> bytes:
    session = await store.set_session()
    # The bytes as they lie there: parts of a compressed answer are of no use.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-{end - 1}"} if start else {})
    async with session.get(store.encode_url(address), headers=headers) as answer:
        answer.raise_for_status()
        if start and answer.status != 206:
            raise Refused("its server does not give parts of a file")
        return await body_of(answer, end - start)


async def body_of(answer: Any, most: int) -> bytes:
    """The first bytes of a web server's answer. What is more is never read: leaving the answer ends the connection."""
    parts, missing = [], most
    while missing > 0 and (part := await answer.content.read(min(missing, 1 << 20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


async def _web_head(store: Any, address: str) -> dict[str, Any]:
    session = await store.set_session()
    async with session.get(store.encode_url(address), headers={"Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        headers = answer.headers
        size = headers.get("Content-Length", "")
        return {
            "type": "file",
            "size": int(size) if size.isdecimal() else None,
            "ETag": headers.get("ETag"),
            "LastModified": headers.get("Last-Modified"),
        }


def describe(address: str) -> dict[str, Any]:
    """What the store says of an object, in fsspec's words: `type` and `size` at least. Raises as `ask` does."""
    if is_web(address):
        return ask(address, lambda store: on_loop(store, _web_head, address))
    return ask(address, lambda store: dict(store.info(address)))


def stamp_of_info(info: dict[str, Any]) -> str:
    """What tells whether the object may have changed: its size, and its tag or else its date."""
    # Google's etag, and Azure's, changes with whatever is noted about an object; a hash only with its bytes, but Azure
    # takes it from the writer. So a hash where the store itself made it, and else what changes too often.
    tag = next((info[key] for key in ("ETag", "md5Hash", "etag") if info.get(key)), None)
    dates = ("LastModified", "last_modified", "updated", "mtime")
    date = next((info[key] for key in dates if info.get(key)), None)
    told = f"tag {str(tag).strip(chr(34))}" if tag else f"of {date}" if date else "undated"
    return f"{info.get('size')} bytes, {told}"


def on_loop(store: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What an asynchronous function of a store gives."""
    from fsspec.asyn import sync

    return sync(store.loop, function, store, *arguments, timeout=REQUEST_SECONDS)


class Connections:
    """The file systems of fsspec that are open, and when each server or bucket last gave what was asked for.

    One file system for each kind of address and each process: connections do not survive a fork.
    """

    def __init__(
        self,
        limits: RequestLimits = LIMITS,
        *,
        opener: Callable[[str, RequestLimits], Any] = open_store,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limits, self.sleep = limits, sleep
        self.answered: dict[str, float] = {}
        self._opener = opener
        self._stores: dict[tuple[int, str], Any] = {}
        self._opening = threading.Lock()

    def store(self, scheme: str) -> Any:
        """The file system for a kind of address."""
        key = (os.getpid(), scheme)
        with self._opening:
            if key not in self._stores:
                self._stores[key] = self._opener(scheme, self.limits)
            return self._stores[key]


def forget_connections(anew: Connections | None = None) -> None:
    """Open every store anew, and know nothing of any server."""
    global _connections
    _connections = anew or Connections()


_connections = Connections()
