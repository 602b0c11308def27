"""Fill a feature store: each picture is encoded once, in shards that are there whole or not at all.

The images still to be done are taken in order, `shard_size` at a time; each such window becomes one shard. Which
images are still to be done follows from the shards alone, so a run that was killed goes on with the same windows,
and ends with the same bytes, as one that was not.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from deltaenergy.data.decode import ImageSource, UnreadableImage
from deltaenergy.data.inputs import load_images
from deltaenergy.data.items import ImageItem
from deltaenergy.data.shards import (
    DTYPES,
    Entry,
    Shard,
    StoreRecord,
    damage,
    hash_file,
    is_store,
    read_record,
    read_shard,
    remove_shard,
    shard_numbers,
    write_record,
    write_shard,
)
from deltaenergy.data.store import FeatureStore, StoredImage, check_same_model, latest_entries
from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files.writing import is_temporary, remove_litter

if TYPE_CHECKING:
    from deltaenergy.models.base import Model
    from deltaenergy.progress import Progress

SHARD_SIZE = 1024
# A ViT-B/16 has 196 patches: 128 images of them are 50 MB in float32.
SHARD_SIZE_WITH_PATCHES = 128
_READ_THREADS = 4
_LOCK = ".lock"


def build_store(
    model: Model,
    images: Any,
    out: str | Path,
    *,
    patches: bool = False,
    dtype: str | None = None,
    shard_size: int | None = None,
    retry_unreadable: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> FeatureStore:
    """Encode `images` into the store at `out`, which is made if it is not there and else gone on with.

    Images that the store has already are not encoded again; a file whose bytes changed is. Pictures with equal bytes
    are encoded once and have a row each. Damaged shards are found by their checksums and encoded anew.

    Args:
        model: the model; a store that another one made is an error.
        images: whatever `load_images` takes. An image is known by its id, and replaces an earlier one of that id.
        out: the store's folder.
        patches: store patch features too (P times as large).
        dtype: `float32` (default) or `float16`.
        shard_size: images per shard; work since the last whole shard is lost when the run is killed.
        retry_unreadable: try those again that could not be read before.
        batch_size: images per pass of the image tower.
        progress: called with (done, total) images.
    """
    folder = Path(out).expanduser()
    items = load_images(images)
    if any(isinstance(item.source, StoredImage) for item in items):
        raise InputError("images is a feature store already: give the pictures that it should be made from.")
    with _locked(folder):
        record = _open_or_create(folder, model, patches, dtype, shard_size)
        shards = _sound_shards(folder, {item.id for item in items})
        todo = _still_to_do(items, shards, retry_unreadable)
        if todo:
            _write_record(folder, replace(record, complete=False))
            writer = _Writer(model, folder, record, shards, batch_size)
            done = len(items) - len(todo)
            for start in range(0, len(todo), record.shard_size):
                window = todo[start : start + record.shard_size]
                writer.add(window, _shifted(progress, done, len(items)))
                done += len(window)
                if progress is not None:
                    progress(done, len(items))
        if todo or not record.complete:
            _write_record(folder, replace(record, complete=True))
    return FeatureStore.open(folder)


@dataclass(frozen=True, slots=True)
class _Pending:
    """An image to be done, with its stamp."""

    item: ImageItem
    stamp: str


class _Writer:
    """Turns windows of images into shards."""

    def __init__(self, model: Model, folder: Path, record: StoreRecord, shards: list[Shard], batch_size: int) -> None:
        self.model, self.folder, self.record, self.batch_size = model, folder, record, batch_size
        self.known = {entry.content for shard in shards for entry in shard.entries if entry.row is not None}
        self.latest = {entry.id: entry for shard in shards for entry in shard.entries}
        taken = {shard.number for shard in shards}
        # A damaged shard's number is free, and its images come first: the repaired shard is the same file again.
        self.numbers = (number for number in itertools.count() if number not in taken)

    def add(self, window: Sequence[_Pending], progress: Progress | None) -> None:
        """Encode the pictures of `window` that are new, and write its shard, unless it would say nothing new."""
        with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="hash") as pool:
            contents = list(pool.map(_content_or_error, (pending.item for pending in window)))
        new: dict[str, ImageItem] = {}
        for pending, (content, _) in zip(window, contents):
            if content is not None and content not in self.known:
                new.setdefault(content, pending.item)
        arrays, rows, errors = self._encode(new, progress)
        entries = []
        for pending, (content, error) in zip(window, contents):
            item = pending.item
            brings = content is not None and new.get(content) is item
            row = rows.get(content) if brings and content is not None else None
            reason = error if content is None else errors.get(content)
            entries.append(Entry(item.id, item.label, item.domain, content, pending.stamp, row, reason))
        if any(self.latest.get(entry.id) != entry for entry in entries):
            with _said_if_impossible(self.folder):
                write_shard(self.folder, next(self.numbers), entries, arrays)
            self.known |= rows.keys()

    def _encode(
        self, new: dict[str, ImageItem], progress: Progress | None
    ) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
        """Arrays by kind, and by content either the row or the reason why there is none."""
        # Not at the top: models import this room to read stores.
        from deltaenergy.models.base import require_towers

        content_of = {item.id: content for content, item in new.items()}
        encoded = require_towers(self.model, "a feature store").encode(
            list(new.values()), patches=self.record.patches, batch_size=self.batch_size, progress=progress
        )
        arrays = {"features": encoded.features.astype(self.record.dtype)}
        if self.record.patches:
            empty = np.zeros((0, 0, self.model.feature_dim), np.float32)
            found = encoded.patches if encoded.patches is not None else empty
            arrays["patches"] = found.astype(self.record.dtype)
        rows = {content_of[item.id]: row for row, item in enumerate(encoded.items)}
        errors = {content_of[unreadable.id]: unreadable.reason for unreadable in encoded.unreadable}
        return arrays, rows, errors


def _open_or_create(
    folder: Path, model: Model, patches: bool, dtype: str | None, shard_size: int | None
) -> StoreRecord:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"Unknown dtype {dtype!r}.{did_you_mean(dtype, DTYPES)}")
    if shard_size is not None and shard_size < 1:
        raise InputError(f"shard_size must be at least 1, got {shard_size}.")
    if not is_store(folder):
        others = [path.name for path in folder.iterdir() if path.name != _LOCK and not is_temporary(path.name)]
        if others:
            raise InputError(
                f"{folder} is not empty and holds no feature store (but {others[0]!r}). Name a new folder."
            )
        size = shard_size or (SHARD_SIZE_WITH_PATCHES if patches else SHARD_SIZE)
        record = StoreRecord(model.describe(), model.feature_dim, patches, dtype or "float32", size, complete=False)
        _write_record(folder, record)
        return record
    record = read_record(folder)
    check_same_model(folder, record.model, model)
    asked = {"patches": patches or None, "dtype": dtype, "shard_size": shard_size}
    for name, value in asked.items():
        if value is not None and value != getattr(record, name):
            raise InputError(
                f"{folder} was made with {name} = {getattr(record, name)}, not {value}: "
                f"leave {name} out to go on with it, or name a new folder."
            )
    return record


def _sound_shards(folder: Path, given: set[str]) -> list[Shard]:
    """The shards whose bytes are as they were written; the others are removed with a warning.

    A damaged shard with images that are not `given` now is an error: they could not be encoded again.
    """
    remove_litter(folder)
    shards, damaged = [], []
    for number in shard_numbers(folder):
        try:
            shard = read_shard(folder, number)
        except ArtifactError:
            damaged.append((number, f"the index of shard {number:05d}"))
            continue
        name = damage(folder, shard)
        if name is None:
            shards.append(shard)
            continue
        lost = [entry.id for entry in shard.entries if entry.id not in given]
        if lost:
            raise ArtifactError(
                f"{folder}: {name} is damaged, and {len(lost)} of its images are not among those given now, the first "
                f"is {lost[0]}. Give them too, so that they can be encoded again, or make a new store."
            )
        damaged.append((number, name))
    for number, name in damaged:
        warnings.warn(f"{folder}: {name} is damaged; its images are encoded again.", stacklevel=3)
        remove_shard(folder, number)
    return shards


def _still_to_do(items: Sequence[ImageItem], shards: Sequence[Shard], retry_unreadable: bool) -> list[_Pending]:
    entries, places = latest_entries(shards)
    known = {entry.id: (entry, place) for entry, place in zip(entries, places)}
    todo = []
    for item in items:
        stamp = _stamp(item)
        entry, place = known.get(item.id, (None, None))
        same = entry is not None and (entry.stamp, entry.label, entry.domain) == (stamp, item.label, item.domain)
        finished = place is not None or (entry is not None and entry.error is not None and not retry_unreadable)
        if not (same and finished):
            todo.append(_Pending(item, stamp))
    return todo


def _stamp(item: ImageItem) -> str:
    """What tells without reading the picture whether it may have changed; where there is no such thing, its content.

    A source that is a function may carry its own as the attribute `stamp`.
    """
    if isinstance(item.source, Path):
        try:
            status = item.source.stat()
        except OSError:
            return "missing"
        return f"{status.st_size} bytes, {status.st_mtime_ns} ns"
    stamp = getattr(item.source, "stamp", None)
    if stamp is None:
        content, error = _content_or_error(item)
        stamp = content or error
    return str(stamp)


def _content_or_error(item: ImageItem) -> tuple[str | None, str | None]:
    """Hash of the picture's bytes (or of the pixels of one that is open already), or why it cannot be had."""
    try:
        return _content(item.source), None
    except UnreadableImage as error:
        return None, str(error)
    except OSError as error:
        return None, f"cannot be read: {(error.strerror or str(error)).lower()}"


def _content(source: ImageSource) -> str:
    if isinstance(source, Path):
        return hash_file(source)
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(source, Image.Image):
        digest.update(f"{source.mode} {source.size}".encode())
        digest.update(source.tobytes())
    elif callable(source):
        return _content(source())
    else:
        digest.update(source)
    return digest.hexdigest()


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """`progress` for a part that begins after `before` of `total`."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def _write_record(folder: Path, record: StoreRecord) -> None:
    with _said_if_impossible(folder):
        write_record(folder, record)


@contextlib.contextmanager
def _said_if_impossible(folder: Path) -> Iterator[None]:
    """A full disk or a folder without permission is a user's concern, not a bug."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"{folder} cannot be written: {error.strerror or error}. What it holds so far is whole: run again to go on."
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process fills a store at a time. The lock ends with the process, however that ends."""
    with _said_if_impossible(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("w")
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this platform
            pass
        except OSError:
            message = f"{folder} is being filled by another process. Wait for it, or name another folder."
            raise InputError(message) from None
        yield
