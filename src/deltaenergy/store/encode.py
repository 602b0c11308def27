"""Encode the images of a shard. Each is read once: its bytes are hashed, and then decoded.

Images with equal bytes are encoded once within a shard, and not at all if the store has them already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from deltaenergy.core.ahead import map_ahead
from deltaenergy.core.progress import Progress
from deltaenergy.data.decode import Openable, UnreadableImage, reading_threads, reasons
from deltaenergy.data.file import LocalFile
from deltaenergy.data.items import Content, ImageItem, from_reference, hash_bytes, hash_content
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError
from deltaenergy.store.plan import PlannedImage
from deltaenergy.store.shard import INDEX, read_arrays, read_index
from deltaenergy.store.store import Describes, Store

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from deltaenergy.store.shard import Arrays

READ_THREADS = 4
# A larger file is not held in memory, but read a second time when it is decoded.
_MOST_HELD = 64 << 20


@runtime_checkable
class EncodesImages(Describes, Protocol):
    """Something that turns images into features, such as a model."""

    feature_dim: int

    def encode(self, images: ImageStream, *, patches: bool, batch_size: int, progress: Progress | None) -> Any:
        """The features of all images that can be read, as `EncodedImages`."""


class ShardEncoder:
    """Encodes shards that are to be added to a store.

    Args:
        model: the model that made the store.
        store: what it has before that.
        in_memory: the images that only this process has, by id.
        held: the number of its first shards from which features of equal images are taken.
    """

    def __init__(self, model: EncodesImages, store: Store, in_memory: Mapping[str, ImageItem], held: int) -> None:
        self._model, self._store, self._in_memory, self._held_shards = model, store, in_memory, held

    def encode(
        self, images: Sequence[PlannedImage], *, again: int | None = None, progress: Progress | None = None
    ) -> tuple[pa.Table, Arrays]:
        """Index and arrays of a shard with these images, or of the shard at position `again` with these changes."""
        import pyarrow as pa

        changed = [image for image in images if image.stamp is not None and not image.keeps]
        contents, errors, arrays = self._encode(changed, progress)
        ids, labels, domains, stamps = zip(*(image[:4] for image in changed)) if changed else [()] * 4
        columns = (ids, labels, domains, contents, stamps, errors)
        index = pa.table([pa.array(column, pa.string()) for column in columns], names=INDEX)
        return (index, arrays) if again is None else self._change(again, images, index, arrays)

    def _encode(
        self, images: Sequence[PlannedImage], progress: Progress | None
    ) -> tuple[list[str | None], list[str | None], Arrays]:
        """Content, error and features of each image."""
        manifest = self._store.manifest
        contents: list[str | None] = [None] * len(images)
        errors: list[str | None] = [None] * len(images)
        stored: dict[int, int] = {}
        first: dict[str, int] = {}
        items = [self._item(image) for image in images]

        def to_encode() -> Iterator[ImageItem]:
            threads = reading_threads(items, READ_THREADS)
            pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
            for position, read in enumerate(map_ahead(pool, _read, items, 2 * threads)):
                contents[position], errors[position] = read.content, read.error
                if read.content is None or read.source is None:
                    continue
                row = self._row_of(read.content)
                if row is not None:
                    stored[position] = row
                elif first.setdefault(read.content, position) == position:
                    yield ImageItem(images[position].id, read.source)

        stream = ImageStream(to_encode, len(images), unique=True)
        encoded = self._model.encode(
            stream, patches=manifest.patches, batch_size=manifest.batch_size, progress=progress
        )
        position_of = {image.id: position for position, image in enumerate(images)}
        for image in encoded.unreadable:
            errors[position_of[image.id]] = image.reason
        new = [position_of[item.id] for item in encoded.items]
        arrays = {}
        for kind in ("features", "patches") if manifest.patches else ("features",):
            parts = [(new, getattr(encoded, kind))] if new else []
            if stored:
                parts.append((list(stored), getattr(self._store, kind)(list(stored.values()))))
            # Where no image can be read, it is not known how many patches an image has.
            unknown = (manifest.feature_dim,) if kind == "features" else (1, manifest.feature_dim)
            shape = parts[0][1].shape[1:] if parts else unknown
            arrays[kind] = np.zeros((len(images), *shape), manifest.dtype)
            for rows, values in parts:
                arrays[kind][rows] = values
        for position, content in enumerate(contents):
            if content is not None and position not in stored and first[content] != position:
                errors[position] = errors[first[content]]
                for array in arrays.values():
                    array[position] = array[first[content]]
        return contents, errors, arrays

    def _change(
        self, position: int, images: Sequence[PlannedImage], index: pa.Table, arrays: Arrays
    ) -> tuple[pa.Table, Arrays]:
        """A shard of the store with some of its rows replaced, relabelled or taken out."""
        import pyarrow as pa

        old, old_arrays = read_arrays(self._store.folder, self._store.manifest.shards[position])
        # Old rows and new ones, and which of them the shard will have, None for what is taken out.
        rows, result = old.to_pylist() + index.to_pylist(), list[int | None](range(len(old)))
        new = iter(range(len(old), len(rows)))
        for image in images:
            assert image.row is not None
            if image.keeps:
                rows[image.row] |= {"label": image.label, "domain": image.domain}
            else:
                result[image.row] = None if image.stamp is None else next(new)
        kept = [row for row in result if row is not None]
        for kind, array in old_arrays.items():
            shape = max(array.shape[1:], arrays[kind].shape[1:])
            both = np.zeros((len(rows), *shape), array.dtype)
            for where, numbers in ((slice(len(old)), array), (slice(len(old), None), arrays[kind])):
                if numbers.shape[1:] == shape:
                    both[where] = numbers
            arrays[kind] = both[kept]
        return pa.Table.from_pylist([rows[row] for row in kept], old.schema), arrays

    def _item(self, image: PlannedImage) -> ImageItem:
        if image.source is not None:
            return from_reference(image.id, image.source)
        if image.id not in self._in_memory:
            raise ArtifactError(f"{self._store.path}: only the process that planned it has the image {image.id!r}.")
        return self._in_memory[image.id]

    @cached_property
    def _held(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The contents of the readable images that the store has, sorted, and their rows: 40 bytes for each."""
        contents, rows, start = [np.zeros(0, "S32")], [np.zeros(0, np.int64)], 0
        for record in self._store.manifest.shards[: self._held_shards]:
            index = read_index(self._store.folder, record)
            readable = index["error"].is_null()
            contents.append(np.array(index["content"].filter(readable).to_pylist(), "S32"))
            rows.append(start + np.flatnonzero(readable.to_numpy()))
            start += record.images
        unsorted = np.concatenate(contents)
        order = np.argsort(unsorted, kind="stable")
        return unsorted[order], np.concatenate(rows)[order]

    def _row_of(self, content: str) -> int | None:
        """The row of the first image with this content that the store has."""
        contents, rows = self._held
        position = int(np.searchsorted(contents, content.encode()))
        there = position < len(contents) and contents[position] == content.encode()
        return int(rows[position]) if there else None


class _ReadImage(NamedTuple):
    """The hash of an image's bytes and what to decode, or why it cannot be read."""

    content: str | None = None
    source: Content = None
    error: str | None = None


def _read(image: ImageItem) -> _ReadImage:
    source: Any = image.source
    try:
        with reasons():
            while callable(source) and image.problem is None:
                source = source()
            if image.problem is not None or source is None or isinstance(source, Image.Image):
                content, error = hash_content(ImageItem(image.id, source, problem=image.problem))
                return _ReadImage(content, source, error)
            if isinstance(source, bytes):
                return _ReadImage(hash_bytes(source), _Once(source))
            openable: Openable = LocalFile(source) if isinstance(source, Path) else source
            with openable.open() as file:
                data = file.read(_MOST_HELD + 1)
                if len(data) <= _MOST_HELD:
                    return _ReadImage(hash_bytes(data), _Once(data))
                digest = hashlib.blake2b(data, digest_size=16)
                while data := file.read(_MOST_HELD):
                    digest.update(data)
                return _ReadImage(digest.hexdigest(), source)
    except UnreadableImage as error:
        return _ReadImage(error=str(error))


class _Once:
    """An image's bytes, which are forgotten when it is decoded: items are kept until their shard is finished."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self) -> bytes:
        data, self._data = self._data, b""
        return data
