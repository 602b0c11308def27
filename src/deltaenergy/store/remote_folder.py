"""A feature store on an object store: `s3://bucket/photos.store`.

An object is there whole or not at all, which is what a store asks of its files. There are no locks: a shard's files are
put only where none are (If-None-Match), and whoever is second takes what the first one put. Arrays are read whole, and
the last few are kept.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.items import hash_bytes
from deltaenergy.data.remote.client import RemoteObject, delete, get, head, list_objects, put
from deltaenergy.data.remote.errors import Missing, Refused
from deltaenergy.data.remote.url import SCHEMES, checked_url, is_web, scheme_of
from deltaenergy.errors import InputError, UnreachableError
from deltaenergy.store.folder import Place

if TYPE_CHECKING:
    import numpy.typing as npt

# No file of a store is larger; a request must have an end.
_MOST_BYTES = 1 << 40


class RemotePlace(Place):
    """A folder of an object store. Of arrays that were read, `kept_bytes` are kept."""

    maps = False

    def __init__(self, address: str, kept_bytes: int = 1 << 28) -> None:
        self._kept_bytes = kept_bytes
        self.path = checked_url(address, "The path given").rstrip("/")
        if is_web(self.path):
            raise InputError(
                f"{self.path} is on a web server, which holds no feature store. Give s3://, gs:// or az://."
            )
        self._sizes: dict[str, int] | None = None
        self._arrays: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The address is the same everywhere."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether anything lies there."""
        return next(list_objects(str(self.path)), None) is not None

    def has(self, name: str) -> bool:
        """Whether the object is there now. A store that refuses to say so is an error: it may well be there."""
        return self._described(name) is not None

    def why_not(self, name: str) -> str | None:
        """Why it cannot be read; the sizes of all are asked for at once."""
        return None if name in self._listed() or self._described(name) is not None else "nothing is at this URL"

    def size(self, name: str) -> int:
        """Its size."""
        known = self._listed().get(name)
        return (head(self.where(name)).size or 0) if known is None else known

    def read(self, name: str) -> bytes:
        """Its bytes, in one request."""
        return get(self.where(name), _MOST_BYTES)

    def checksum(self, name: str) -> str:
        """The hash of its bytes."""
        return hash_bytes(self.read(name))

    def array(self, name: str) -> npt.NDArray[Any]:
        """The array itself, which nobody may change: it may be given again."""
        with self._lock:
            if name in self._arrays:
                self._arrays.move_to_end(name)
                return self._arrays[name]
        array: npt.NDArray[Any] = np.load(io.BytesIO(self.read(name)), allow_pickle=False)
        array.flags.writeable = False
        with self._lock:
            self._arrays[name] = array
            while len(self._arrays) > 1 and sum(kept.nbytes for kept in self._arrays.values()) > self._kept_bytes:
                self._arrays.popitem(last=False)
        return array

    def names(self, folder: str = "") -> list[str]:
        """What lies there; nothing if there is no such folder."""
        return list(dict.fromkeys(parts[0] for parts, _ in self._below(folder)))

    def replace(self, name: str, data: bytes) -> None:
        """Put it: from then on everybody sees the new bytes."""
        self._forget(name)
        put(self.where(name), data)

    def publish(self, name: str, data: bytes) -> bytes:
        """Put it only if nothing is there; else what is there counts."""
        self._forget(name)
        return data if put(self.where(name), data, if_absent=True) is not None else self.read(name)

    def remove(self, name: str) -> None:
        """Delete the object."""
        self._forget(name)
        delete(self.where(name))

    def remove_folder(self, name: str) -> None:
        """An empty folder does not exist."""

    def tidy(self, folder: str = "") -> None:
        """Nothing is ever half-written."""

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """There are no locks."""
        return contextlib.nullcontext(True)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._arrays.pop(name, None)
            if self._sizes is not None:
                self._sizes.pop(name, None)

    def _described(self, name: str) -> RemoteObject | None:
        try:
            return head(self.where(name))
        except Missing:
            return None
        except Refused as refused:
            credentials = SCHEMES[scheme_of(refused.url)].credentials
            raise UnreachableError(
                f"{refused}. Check your rights to read it. Credentials are read from the environment: {credentials}."
            ) from refused

    def _listed(self) -> dict[str, int]:
        """The sizes of the objects right here, as they were when first asked for: one request for a thousand."""
        if self._sizes is None:
            found = {parts[0]: size for parts, size in self._below("") if len(parts) == 1}
            with self._lock:
                self._sizes = found
        return self._sizes

    def _below(self, folder: str) -> list[tuple[list[str], int]]:
        """The names of all objects in a folder, in their parts, and their sizes."""
        url = f"{self.path}/{folder}".rstrip("/")
        return [(one.url[len(url) + 1 :].split("/"), one.size or 0) for one in list_objects(url) if one.url != url]
