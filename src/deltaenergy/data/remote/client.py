"""Requests to object stores and web servers: `head`, `get`, `get_range`, `list_objects`, `put`, `put_file`, `delete`.

    s3://bucket/a.jpg    gs://bucket/a.jpg    az://container/a.jpg    https://host/a.jpg

Object stores are read through obstore, which tries again what may pass; the web is `web.py`'s business. A request ends
in what was requested, in `Refused` if this object is at fault, or in `UnreachableError` if its bucket or server is.
Only `Missing` means that nothing is there: whatever else a store refuses, such as 403, may well be there.

Nothing is written to disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from deltaenergy.data.remote.buckets import open_bucket
from deltaenergy.data.remote.errors import (
    Changed,
    Denied,
    Missing,
    Refused,
    RequestLimits,
    first_line,
    no_credentials,
    out_of_reach,
)
from deltaenergy.data.remote.url import is_web, root_of, scheme_of
from deltaenergy.data.remote.web import Web
from deltaenergy.errors import UnreachableError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

# What stores answer when they do not know who is asking, or no longer; Azure also if a whole account is closed.
_CREDENTIAL_CODES = {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired", "InvalidSecurity",
                     "SignatureDoesNotMatch", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
                     "AuthenticationFailed", "NoAuthenticationInformation", "AuthorizationFailure",
                     "AccountIsDisabled", "PublicAccessNotPermitted"}  # fmt: skip
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
# How obstore's errors begin that come from the source of credentials, such as the machine it runs on.
_NO_CREDENTIALS = re.compile(r"Error performing (token request|[A-Z]+ https?://(169\.254\.|\[?fd00:ec2|sts\.))")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
# Objects that a listing gives at a time: as many as a store puts on a page.
_PAGE = 1000

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object as it was when it was described.

    Attributes:
        url: where it is.
        size: its bytes; None if it was not listed, or if its web server does not send it.
        version: what shows whether it changed: its tag, or else its date; None if it was not listed.
    """

    url: str
    size: int | None = None
    version: str | None = None


def head(url: str) -> RemoteObject:
    """The object at a URL as it is now."""
    if is_web(url):
        return RemoteObject(url, *_connections.web.head(url))
    try:
        return _described(url, _ask(url, lambda store, key: store.head(key)))
    except Missing:
        # An answer without a body does not say whether the bucket is there. A folder is what names share.
        below = _ask(url, lambda store, key: next(iter(store.list(key, chunk_size=1)), []))
        raise Missing(url, is_folder=any(meta["path"] != _key(url) for meta in below)) from None


def get(url: str, limit: int) -> bytes:
    """The object's bytes; one with more than `limit` is `Refused`, before it is read where its size is known."""

    def read(store: ObjectStore, key: str) -> bytes:
        answer = store.get(key)
        if answer.meta["size"] > limit:
            raise Refused(url, f"too large: more than the limit of {limit} bytes")
        return bytes(answer.bytes())

    data = _connections.web.get(url, limit + 1) if is_web(url) else _ask(url, read)
    if len(data) > limit:
        raise Refused(url, f"too large: more than the limit of {limit} bytes")
    return data


def get_range(of: RemoteObject, start: int, end: int) -> bytes:
    """The bytes from `start` to `end`, which must be inside the object; `Changed` if it is another one now."""
    if of.size is None:
        raise Refused(of.url, "its server does not send its size")
    if is_web(of.url):
        data = _connections.web.get_range(of.url, of.size, of.version or "", start, end)
    else:
        options: dict[str, Any] = {"range": (start, end)} | ({"if_match": f'"{of.version}"'} if of.version else {})
        data = _ask(of.url, lambda store, key: bytes(store.get(key, options=options).bytes()))  # type: ignore[arg-type]
    if len(data) != end - start:
        raise Refused(of.url, "cannot be read: its server gives fewer bytes than it promised")
    return data


def list_objects(folder: str) -> Iterator[RemoteObject]:
    """Every object below a folder, at any depth, in no particular order. An empty folder does not exist."""
    root, prefix = root_of(folder), _key(folder)
    pages = _ask(folder, lambda store, _: iter(store.list(prefix or None, chunk_size=_PAGE)))
    while page := _ask(folder, lambda _, __: next(pages, [])):
        yield from (_described(f"{root}/{meta['path']}", meta) for meta in page)


def put(url: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str | None:
    """Write an object, whole or not at all, and return its version; None if a condition was not met: that nothing is
    there, or an object with the version `if_match`.
    """

    def write(store: ObjectStore, key: str) -> str | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if if_absent else "overwrite"
        if if_match is not None:
            mode = {"e_tag": f'"{if_match}"'}
            if scheme_of(url) == "gs":  # where conditions are on generations, not on tags
                there = store.head(key)
                if _tag(there) != if_match:
                    return None
                mode = {"version": there["version"]}
        try:
            return _tag(store.put(key, data, mode=mode, use_multipart=False))
        except (AlreadyExistsError, PreconditionError):
            if mode == "overwrite":
                raise
            return None

    try:
        return _ask(url, write)
    except Missing:
        if if_match is None:
            raise
        return None  # it was removed


def put_file(url: str, file: Path) -> None:
    """Write an object with the bytes of a file, in parts if it is large, whole or not at all."""
    _ask(url, lambda store, key: store.put(key, file))


def delete(url: str) -> None:
    """Remove an object, if it is there."""
    with contextlib.suppress(Missing):
        _ask(url, lambda store, key: store.delete(key))


class Connections:
    """The buckets, which `opener` opens by scheme and name, and web servers that are being read."""

    def __init__(
        self,
        limits: RequestLimits | None = None,
        *,
        opener: Callable[[str, str, RequestLimits], ObjectStore] = open_bucket,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limits = limits or RequestLimits()
        self.web = Web(self.limits, sleep)
        self._opener = opener
        self._buckets: dict[str, ObjectStore] = {}
        self._opening = threading.Lock()

    def bucket(self, url: str) -> ObjectStore:
        """The bucket that a URL is in. Raises `UnreachableError` if the environment does not let it be opened."""
        root = root_of(url)
        with self._opening:
            if root not in self._buckets:
                self._buckets[root] = self._opener(scheme_of(root), root.partition("://")[2], self.limits)
            return self._buckets[root]


def use_connections(connections: Connections | None = None) -> None:
    """Open every bucket again, with these limits, and know nothing of any server."""
    global _connections
    _connections = connections or Connections()


def request_limits() -> RequestLimits:
    """How often and how long stores and servers are asked."""
    return _connections.limits


_connections = Connections()
# The process that has used obstore: its threads are not in those that are forked from it, where a request would hang.
_process: int | None = None


def _ask(url: str, request: Callable[[ObjectStore, str], _Result]) -> _Result:
    global _process
    store = _connections.bucket(url)
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise UnreachableError(
            f"{url} cannot be read in this process, which was forked after cloud storage had been used. "
            "Start processes with multiprocessing's method 'spawn'."
        )
    try:
        return _heeding_interrupts(lambda: request(store, _key(url)))
    except (Refused, UnreachableError):
        raise
    except Exception as error:
        raise _explained(url, error) from error


def _heeding_interrupts(call: Callable[[], _Result]) -> _Result:
    """What `call` gives. Rust does not hear Ctrl-C while it waits, so the main thread lets another one wait."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="request", daemon=True).start()
    return future.result()


def _explained(url: str, error: Exception) -> Exception:
    """What an error of obstore means, by its type, the server's status and the store's own code."""
    from obstore import exceptions as kinds

    text = str(error).partition("\n\nDebug source")[0]
    found, coded = _STATUS.search(text), _CODE.search(text)
    status, code = int(found[1]) if found else None, coded[1] if coded else ""
    why = f"the server answers with status {status}" if status else first_line(text.rpartition("provider: ")[2])
    if code in _NO_BUCKET_CODES:
        return UnreachableError(f"{root_of(url)} cannot be read: there is no such bucket.")
    if isinstance(error, kinds.UnauthenticatedError) or code in _CREDENTIAL_CODES or _NO_CREDENTIALS.search(text):
        return no_credentials(url, code or why)
    if isinstance(error, FileNotFoundError) or status in {404, 410}:
        return Missing(url)
    if isinstance(error, kinds.PermissionDeniedError) or status == 403:
        return Denied(url)
    if isinstance(error, kinds.PreconditionError) or status == 416 or "Wanted range" in text:  # it became shorter
        return Changed(url)
    if isinstance(error, kinds.InvalidPathError):
        return Refused(url, f"an object's name cannot be read ({first_line(error)}). Rename it")
    if "configured region" in text:
        return UnreachableError(f"{root_of(url)} is in another region: set AWS_REGION to that of the bucket.")
    if "body error" in text:
        return Refused(url, "cannot be read: its bytes break off")
    if "HTTP error" in text or (status or 0) >= 500 or status in {408, 429}:
        why = "it does not answer in time" if "kind: Timeout" in str(error) else why
        return out_of_reach(url, why, _connections.limits.attempts)
    return Refused(url, f"cannot be read: {why}")


def _described(url: str, meta: ObjectMeta) -> RemoteObject:
    return RemoteObject(url, meta["size"], _tag(meta))


def _tag(meta: Any) -> str:
    # Azure's listings have tags without quotes, its other answers with them.
    return (meta["e_tag"] or "").strip('"')


def _key(url: str) -> str:
    return url.partition("://")[2].partition("/")[2].rstrip("/")
