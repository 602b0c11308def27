"""Parts of an object at an address, all of one version: an object that changes under way is never read as a mixture.

An object is described once: its size, and its tag or date. Each answer that carries a part tells these too, and is
refused, unread, if they differ. Google's and Azure's libraries do not show what comes with an answer: there the object
is described again behind each part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from deltaenergy.data.remote.client import REQUEST_SECONDS, Refused, ask, body_of, describe, on_loop, stamp_of_info
from deltaenergy.data.remote.errors import Meaning
from deltaenergy.data.remote.url import is_web, scheme_of

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object as it was when it was described; `version` is what tells whether it changed."""

    address: str
    size: int
    version: str


class Changed(Refused):
    """The object is not the one that was described."""

    def __init__(self) -> None:
        super().__init__("it changed after it was listed")


def described(address: str) -> RemoteObject:
    """The object at an address as it is now. Raises as `ask` does."""
    info = describe(address)
    if info.get("type") == "directory":
        raise Refused("a folder is at this address: end it with a slash")
    if info.get("size") is None:
        raise Refused("its server does not tell its size")
    return RemoteObject(address, int(info["size"]), stamp_of_info(info))


def fetch_unchanged(of: RemoteObject, start: int, end: int) -> bytes:
    """The bytes from `start` up to `end`, which must lie inside.

    Raises `Changed` if the object is another one now, else as `ask` does.
    """

    def request(store: Any) -> bytes:
        if is_web(of.address):
            data: bytes = on_loop(store, _web_part, of, start, end)
        elif scheme_of(of.address) == "s3":
            data = on_loop(store, _s3_part, of, start, end)
        else:
            data = store.cat_file(of.address, start=start, end=end, timeout=REQUEST_SECONDS)
            if stamp_of_info(dict(store.info(of.address))) != of.version:
                raise Changed
        if len(data) != end - start:
            raise Refused("cannot be read: its server gives fewer bytes than it promised", Meaning.CUT)
        return data

    try:
        return ask(of.address, request)
    except Refused as refused:
        if refused.meaning is Meaning.EMPTY:  # it became shorter
            raise Changed from refused
        raise


async def _web_part(store: Any, of: RemoteObject, start: int, end: int) -> bytes:
    session = await store.set_session()
    headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
    async with session.get(store.encode_url(of.address), headers=headers) as answer:
        answer.raise_for_status()
        told = {"ETag": answer.headers.get("ETag"), "LastModified": answer.headers.get("Last-Modified")}
        part = answer.headers.get("Content-Range") if answer.status == 206 else None
        if part is None and (start, end) == (0, of.size):  # a part that is the whole any server gives
            size = int(answer.headers.get("Content-Length", of.size))
            part = f"bytes 0-{size - 1}/{size}"
        _check(of, start, end, part, told)
        return await body_of(answer, end - start)


async def _s3_part(store: Any, of: RemoteObject, start: int, end: int) -> bytes:
    bucket, key, _ = store.split_path(of.address)
    answer = await store._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
    try:
        _check(of, start, end, answer.get("ContentRange"), answer)
        data: bytes = await answer["Body"].read()
    finally:
        answer["Body"].close()
    return data


def _check(of: RemoteObject, start: int, end: int, part: str | None, told: dict[str, Any]) -> None:
    """Whether an answer holds the part that was asked for, of this version."""
    found = _RANGE.fullmatch(part or "")
    if found is None:
        raise Refused("its server does not give parts of a file")
    first, last, size = map(int, found.groups())
    if stamp_of_info({**told, "size": size}) != of.version:
        raise Changed
    if (first, last) != (start, end - 1):
        raise Refused("its server gives other parts of a file than it is asked for")
