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

from deltaenergy.data.content import hash_bytes
from deltaenergy.data.remote.client import Refused, ask, describe, fetch
from deltaenergy.data.remote.errors import Meaning
from deltaenergy.data.remote.url import KINDS, checked, is_web
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
        self.path = checked(address, "The path given").rstrip("/")
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
        return self._info("") is not None

    def has(self, name: str) -> bool:
        """Whether the object is there now."""
        return self._info(name) is not None

    def why_not(self, name: str) -> str | None:
        """Why it cannot be read; the sizes of all are asked for at once."""
        if name in self._listed():
            return None
        try:
            describe(self.where(name))
        except Refused as refused:
            return str(refused)
        return None

    def size(self, name: str) -> int:
        """Its size."""
        known = self._listed().get(name)
        return int(describe(self.where(name))["size"]) if known is None else known

    def read(self, name: str) -> bytes:
        """Its bytes, in one request."""
        return fetch(self.where(name), 0, _MOST_BYTES)

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
        return [str(info["name"]).rstrip("/").rpartition("/")[2] for info in self._list(folder)]

    def replace(self, name: str, data: bytes) -> None:
        """Put it: from then on everybody sees the new bytes."""
        self._put(name, data, "overwrite")

    def publish(self, name: str, data: bytes) -> bytes:
        """Put it only if nothing is there; else what is there counts."""
        try:
            self._put(name, data, "create")
        except Refused as refused:
            if refused.meaning is not Meaning.EXISTS:
                raise
            return self.read(name)
        return data

    def remove(self, name: str) -> None:
        """Delete the object."""
        self._forget(name)
        try:
            ask(self.where(name), lambda store: store.rm_file(self.where(name)))
        except Refused as refused:
            if refused.meaning is not Meaning.MISSING:
                raise

    def remove_folder(self, name: str) -> None:
        """An empty folder does not exist."""

    def tidy(self, folder: str = "") -> None:
        """Nothing is ever half-written."""

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """There are no locks."""
        return contextlib.nullcontext(True)

    def _put(self, name: str, data: bytes, mode: str) -> None:
        self._forget(name)
        ask(self.where(name), lambda store: store.pipe_file(self.where(name), data, mode=mode))

    def _forget(self, name: str) -> None:
        with self._lock:
            self._arrays.pop(name, None)
            if self._sizes is not None:
                self._sizes.pop(name, None)

    def _info(self, name: str) -> dict[str, Any] | None:
        address = f"{self.path}/{name}".rstrip("/")
        try:
            return describe(address)
        except Refused as refused:
            if refused.meaning in {Meaning.DENIED, Meaning.UNKNOWN_CALLER}:  # it may well be there
                credentials = KINDS[address.partition(":")[0]].credentials
                hint = f" Credentials come from the environment: {credentials}." if credentials else ""
                raise UnreachableError(f"{address}: {refused}. Check your rights to read it.{hint}") from None
            return None

    def _listed(self) -> dict[str, int]:
        """The sizes of the objects right here, as they were when first asked for: one request for a thousand."""
        if self._sizes is None:
            found = {str(i["name"]).rpartition("/")[2]: i["size"] for i in self._list("") if i["type"] == "file"}
            with self._lock:
                self._sizes = found
        return self._sizes

    def _list(self, folder: str) -> list[dict[str, Any]]:
        address = f"{self.path}/{folder}".rstrip("/")
        try:
            found: list[dict[str, Any]] = ask(address, lambda store: store.ls(address, detail=True))
        except Refused as refused:
            if refused.meaning is Meaning.MISSING:
                return []
            raise
        # A folder may be listed with itself: an object whose name ends in a slash.
        itself = address.partition("://")[2]
        return [info for info in found if str(info["name"]).rstrip("/") != itself]
