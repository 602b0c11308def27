"""One image by reference, and the record of an image that could not be read.

What identifies an image without decoding it: a hash of its bytes, a cheap sign that they changed, and a line of
text by which another process, or another machine, can open it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from PIL import Image

from deltaenergy.data.decode import ImageSource, Openable, UnreadableImage, opened, reasons, strips
from deltaenergy.data.file import File, LocalFile, RemoteFile, Slice
from deltaenergy.data.formats.parquet import ParquetCell
from deltaenergy.errors import ArtifactError

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Lazy:
    """An image that is read by a function when it is needed, such as a row of a dataset."""

    read: Callable[[], Content]
    stamp: str | None = None

    def __call__(self) -> Content:
        return self.read()


@dataclass(frozen=True, slots=True, eq=False)
class StoredRow:
    """Where the features of an image are: in the row `number` of a feature store or of an array."""

    of: Any
    number: int


# A path becomes a LocalFile. None: only its name is known.
Content: TypeAlias = "File | Slice | ParquetCell | Lazy | Image.Image | bytes | Path | Callable[[], Any] | None"


@dataclass(frozen=True, slots=True)
class ImageItem:
    """An image by reference; it is opened elsewhere (`decoded`).

    Attributes:
        id: what it is called in results.
        source: where its bytes or pixels are; None if only its name is known.
        label: its class, where known.
        domain: its domain, where known.
        problem: why it cannot be read, if that is known already.
        row: where its features are, if it was encoded before.
    """

    id: str
    source: Content
    label: str | None = None
    domain: str | None = None
    problem: str | None = None
    row: StoredRow | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, Path):
            object.__setattr__(self, "source", LocalFile(self.source))
        # File names need not be valid text. These three must be: they are printed and written to tables.
        for name in ("id", "label", "domain"):
            text = getattr(self, name)
            if text is not None and not text.isascii():
                object.__setattr__(self, name, text.encode("utf-8", "backslashreplace").decode("utf-8"))

    @property
    def path(self) -> Path | None:
        """The local file that it is, if it is one."""
        return self.source.path if isinstance(self.source, LocalFile) else None

    @property
    def is_remote(self) -> bool:
        return getattr(self.source, "is_remote", False)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An image that was skipped, and why."""

    id: str
    reason: str


@contextlib.contextmanager
def decoded(image: ImageItem) -> Iterator[Image.Image]:
    """The image upright, in RGB, for a block; until it ends, its pixels count as decoded. Raises `UnreadableImage`."""
    if image.problem is not None:
        raise UnreadableImage(image.problem)
    with opened(cast("ImageSource", image.source)) as rgb:
        yield rgb


def load_rgb(image: ImageItem) -> Image.Image:
    """The image upright, in RGB. Raises `UnreadableImage`."""
    with decoded(image) as rgb:
        return rgb


def change_stamp(image: ImageItem) -> str:
    """What shows without reading the image whether it may have changed; where there is no such thing, its content."""
    stamp = image.problem or getattr(image.source, "stamp", None)
    if stamp is None:
        content, error = hash_content(image)
        stamp = content or error
    return str(stamp)


def hash_content(image: ImageItem) -> tuple[str | None, str | None]:
    """Hash of the image's bytes (or of the pixels of one that is open already), or why it cannot be read.

    An image at a URL would have to be fetched twice: its URL and stamp stand for its bytes.
    """
    if image.problem is not None:
        return None, image.problem
    if image.is_remote:
        source: Any = image.source
        file = source if isinstance(source, RemoteFile) else source.file
        return hash_bytes(f"{file.url} {source.stamp}".encode()), None
    try:
        with reasons():
            return _hash_of(image.source), None
    except UnreadableImage as error:
        return None, str(error)


def hash_bytes(data: bytes) -> str:
    """Hash of bytes, equal to that of a file that contains them."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _hash_of(content: Content) -> str:
    if isinstance(content, Image.Image):
        with opened(content) as image:  # as it is seen: equal numbers mean other colours with another palette
            digest = hashlib.blake2b(f"{image.mode} {image.size}".encode(), digest_size=16)
            for _, strip in strips(image):
                digest.update(strip.tobytes())
        return digest.hexdigest()
    if isinstance(content, bytes):
        return hash_bytes(content)
    if content is None:
        raise UnreadableImage("only its name is known")
    if callable(content):
        return _hash_of(content())
    with cast("Openable", content).open() as file:
        digest = hashlib.blake2b(digest_size=16)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def to_reference(image: ImageItem) -> str | None:
    """Where the image is, as text that `from_reference` reads; None if it exists only in this process."""
    if image.problem is not None:
        return json.dumps({"problem": image.problem})
    match image.source:
        case LocalFile() | RemoteFile() as file:
            return json.dumps(_file_fields(file))
        case Slice(file, offset, size):
            return json.dumps({**_file_fields(file), "offset": offset, "bytes": size})
        case ParquetCell(file, column, row):
            return json.dumps({**_file_fields(file), "column": column, "row": row})
    return None


def from_reference(id: str, reference: str, label: str | None = None, domain: str | None = None) -> ImageItem:
    try:
        fields = json.loads(reference)
        if "problem" in fields:
            return ImageItem(id, None, label, domain, str(fields["problem"]))
        file: File
        if "path" in fields:
            file = LocalFile(Path(fields.pop("path")), fields.pop("listed", None))
        else:
            file = RemoteFile(fields.pop("url"), fields.pop("size"), fields.pop("version"))
        kind = {frozenset(): None, frozenset({"offset", "bytes"}): Slice, frozenset({"column", "row"}): ParquetCell}[
            frozenset(fields)
        ]
        content = file if kind is None else kind(file, *fields.values())
        return ImageItem(id, content, label, domain)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{reference!r} does not say where an image is: {error!r}.") from error


def _file_fields(file: File) -> dict[str, Any]:
    if isinstance(file, RemoteFile):
        return {"url": file.url, "size": file.size, "version": file.version}
    path = os.path.abspath(file.path)  # noqa: PTH100 (links stay links)
    return {"path": path} if file.listed is None else {"path": path, "listed": file.listed}
