"""One image by reference, and the record of an image that could not be read.

What identifies an image without decoding it: a hash of its bytes, a cheap sign that they changed, and a line of
text by which another process, or another machine, can open it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
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


def square_jpeg(image: ImageItem, side: int, quality: int = 80) -> bytes | None:
    """The image's central square, at most `side` pixels wide, as a JPEG file; None if there is no image to show.

    That is so for features without images, and for a file that is gone since it was scored. A feature store has no
    images, but calls them by their paths: where these still exist, they are shown.
    """
    for one in (image, ImageItem(image.id, Path(image.id))):
        with contextlib.suppress(UnreadableImage):
            rgb = load_rgb(one)
            break
    else:
        return None
    square = min(rgb.size)
    left, top, size = (rgb.width - square) // 2, (rgb.height - square) // 2, min(side, square)
    box = (left, top, left + square, top + square)
    small = rgb.resize((size, size), Image.Resampling.LANCZOS, box, reducing_gap=3.0)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


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
    source = image.source
    if image.problem is not None:
        return json.dumps({"problem": image.problem})
    if isinstance(source, Slice | ParquetCell):
        return json.dumps({**source._asdict(), "file": _file_fields(source.file)})
    return json.dumps(_file_fields(source)) if isinstance(source, LocalFile | RemoteFile) else None


def from_reference(id: str, reference: str, label: str | None = None, domain: str | None = None) -> ImageItem:
    content: Content
    try:
        fields = json.loads(reference)
        if "problem" in fields:
            return ImageItem(id, None, label, domain, str(fields["problem"]))
        if "file" in fields:
            kind: Any = Slice if "offset" in fields else ParquetCell
            content = kind(**{**fields, "file": _file_of(fields["file"])})
        else:
            content = _file_of(fields)
        return ImageItem(id, content, label, domain)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{reference!r} does not say where an image is: {error!r}.") from error


def _file_fields(file: File) -> dict[str, Any]:
    if isinstance(file, RemoteFile):
        return {"url": file.url, "size": file.size, "version": file.version}
    path = os.path.abspath(file.path)  # noqa: PTH100 (links stay links)
    return {"path": path} if file.listed is None else {"path": path, "listed": file.listed}


def _file_of(fields: dict[str, Any]) -> File:
    if "path" in fields:
        return LocalFile(Path(fields.pop("path")), **fields)
    return RemoteFile(fields["url"], fields["size"], fields["version"])
