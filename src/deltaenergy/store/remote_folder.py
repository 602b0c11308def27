"""A feature store in cloud storage: `s3://bucket/photos.store`.

An object is there whole or not at all, which is what a store asks of its files. There are no locks; two processes that
write the same name are separated by conditions (If-None-Match, If-Match).
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

import numpy as np

from deltaenergy.data.remote.client import RemoteObject, delete, get, get_range, head, list_objects, put
from deltaenergy.data.remote.errors import Missing, Refused
from deltaenergy.data.remote.url import SCHEMES, checked_url, is_web, scheme_of
from deltaenergy.errors import InputError, UnreachableError

if TYPE_CHECKING:
    import pyarrow as pa

# No file of a store is larger; a request must have an end.
_MOST_BYTES = 1 << 40
# With less than this left out, one request for all of it is cheaper than two.
_LEAST_LEFT_OUT = 1 << 16


class RemoteFolder:
    """A folder in cloud storage, with the operations of `LocalFolder`."""

    is_remote = True

    def __init__(self, url: str) -> None:
        self.path = self.address = checked_url(url, "The path given").rstrip("/")
        if is_web(self.path):
            raise InputError(f"{self.path} is on a web server, which has no feature stores. Use s3://, gs:// or az://.")

    def __str__(self) -> str:
        return self.path

    def full_name(self, name: str) -> str:
        return f"{self.path}/{name}"

    def exists(self, name: str) -> bool:
        """A refusal to answer is an error: the file may well be there."""
        try:
            head(self.full_name(name))
        except Missing:
            return False
        except Refused as refused:
            credentials = SCHEMES[scheme_of(refused.url)].credentials
            raise UnreachableError(
                f"{refused}. Check your rights to read it. Credentials are read from the environment: {credentials}."
            ) from refused
        return True

    def sizes(self, under: str = "") -> dict[str, int]:
        """One request per thousand objects, those in folders included."""
        folder = f"{self.path}/{under}".rstrip("/")
        found: dict[str, int] = {}
        with contextlib.suppress(Missing):
            for item in list_objects(folder):
                name, slash, _ = item.url.removeprefix(f"{folder}/").partition("/")
                found[name + slash] = 0 if slash else item.size or 0
        return found

    def read(self, name: str) -> bytes:
        try:
            return get(self.full_name(name), _MOST_BYTES)
        except Missing as missing:
            raise FileNotFoundError(errno.ENOENT, "nothing is at this URL", missing.url) from None

    def map(self, name: str, size: int, without: tuple[int, int] | None = None) -> pa.Buffer:
        """The bytes themselves; those in the range `without` are not fetched, and zero."""
        import pyarrow as pa

        start, stop = without or (0, 0)
        if stop - start >= _LEAST_LEFT_OUT:
            whole = RemoteObject(self.full_name(name), size)
            data = np.zeros(size, np.uint8)  # memory that is not written is not used
            for first, last in ((0, start), (stop, size)):
                data[first:last] = np.frombuffer(get_range(whole, first, last), np.uint8)
            return pa.py_buffer(data)
        return pa.py_buffer(self.read(name))

    def put(self, name: str, data: bytes | pa.Buffer, *, if_absent: bool = False) -> bool:
        content = data if isinstance(data, bytes) else data.to_pybytes()
        return put(self.full_name(name), content, if_absent=if_absent) is not None

    def replace(self, name: str, data: bytes, before: bytes) -> bool:
        """Conditional on the version that has the bytes `before`."""
        version = head(self.full_name(name)).version
        return self.read(name) == before and put(self.full_name(name), data, if_match=version) is not None

    def delete(self, name: str) -> None:
        delete(self.full_name(name))

    def tidy(self, under: str = "") -> None:
        """Nothing is ever half-written."""

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)
