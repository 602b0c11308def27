"""Fill a feature store: each picture is encoded once, in shards that are there whole or not at all.

The images still to be done are taken in order, `shard_size` at a time; each such window becomes one shard. Which
images are still to be done follows from the shards alone, so a run that was killed goes on with the same windows,
and ends with the same bytes, as one that was not.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from deltaenergy.data.content import content_or_error, stamp_of
from deltaenergy.data.decode import Refusal
from deltaenergy.data.encoder import Describes, Encoder, require_encoder
from deltaenergy.data.inputs import load_images
from deltaenergy.data.items import ImageItem
from deltaenergy.data.manifest import DTYPES, Manifest, StoreRecord, is_store, read_manifest, write_manifest
from deltaenergy.data.regular import user_path
from deltaenergy.data.repair import inspect
from deltaenergy.data.shards import Entry, Shard, remove_files, write_shard
from deltaenergy.data.store import FeatureStore, StoredImage, check_same_model, latest_entries
from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files import FolderLock
from deltaenergy.files.locks import NAME as LOCK
from deltaenergy.files.writing import is_temporary, remove_litter
from deltaenergy.progress import Progress

SHARD_SIZE = 1024
# A ViT-B/16 has 196 patches: 128 images of them are 50 MB in float32.
SHARD_SIZE_WITH_PATCHES = 128
_READ_THREADS = 4


def build_store(
    model: Describes,
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
    folder, encoder = user_path(out), require_encoder(model)
    items = load_images(images)
    if any(isinstance(item.source, StoredImage) for item in items):
        raise InputError("images is a feature store already: give the pictures that it should be made from.")
    with _locked(folder):
        manifest = _open_or_create(folder, encoder, patches, dtype, shard_size)
        record = manifest.record
        found = inspect(folder, manifest, items)
        todo = _still_to_do(items, found.sound, retry_unreadable)
        with _said_if_impossible(folder):
            remove_litter(folder)
            if todo or found.damaged:
                write_manifest(folder, replace(record, complete=False), [shard.record for shard in found.sound])
            for damaged in found.damaged:
                remove_files(folder, damaged)
        writer = _Writer(encoder, folder, record, found.sound, batch_size)
        done = len(items) - sum(not pending.withdrawn for pending in todo)
        for start in range(0, len(todo), record.shard_size):
            window = todo[start : start + record.shard_size]
            writer.add(window, _shifted(progress, done, len(items)))
            done += sum(not pending.withdrawn for pending in window)
            if progress is not None:
                progress(done, len(items))
        if todo or found.damaged or not record.complete or manifest.shards is None:
            with _said_if_impossible(folder):
                write_manifest(folder, replace(record, complete=True), [shard.record for shard in writer.shards])
    return FeatureStore.open(folder)


@dataclass(frozen=True, slots=True)
class _Pending:
    """An image to be done, with its stamp; or an entry that is to be withdrawn."""

    item: ImageItem
    stamp: str
    withdrawn: bool = False


class _Writer:
    """Turns windows of images into shards."""

    def __init__(self, model: Encoder, folder: Path, record: StoreRecord, shards: list[Shard], batch_size: int) -> None:
        self.model, self.folder, self.record, self.batch_size = model, folder, record, batch_size
        self.shards = list(shards)
        self.known = {entry.content for shard in shards for entry in shard.entries if entry.row is not None}
        self.latest = {entry.id: entry for shard in shards for entry in shard.entries}
        taken = {shard.number for shard in shards}
        # A damaged shard's number is free, and its images come first: the repaired shard is the same file again.
        self.numbers = (number for number in itertools.count() if number not in taken)

    def add(self, window: Sequence[_Pending], progress: Progress | None) -> None:
        """Encode the pictures of `window` that are new, and write its shard, unless it would say nothing new."""
        with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="hash") as pool:
            contents = list(pool.map(_content_or_error, window))
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
                self.shards.append(write_shard(self.folder, next(self.numbers), entries, arrays))
                # Only now does the shard count.
                write_manifest(self.folder, replace(self.record, complete=False), [s.record for s in self.shards])
            self.known |= rows.keys()

    def _encode(
        self, new: dict[str, ImageItem], progress: Progress | None
    ) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
        """Arrays by kind, and by content either the row or the reason why there is none."""
        content_of = {item.id: content for content, item in new.items()}
        encoded = self.model.encode(
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


def _open_or_create(folder: Path, model: Encoder, patches: bool, dtype: str | None, shard_size: int | None) -> Manifest:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"Unknown dtype {dtype!r}.{did_you_mean(dtype, DTYPES)}")
    if shard_size is not None and shard_size < 1:
        raise InputError(f"shard_size must be at least 1, got {shard_size}.")
    if not is_store(folder):
        others = [path.name for path in folder.iterdir() if path.name != LOCK and not is_temporary(path.name)]
        if others:
            raise InputError(
                f"{folder} is not empty and holds no feature store (but {others[0]!r}). Name a new folder."
            )
        size = shard_size or (SHARD_SIZE_WITH_PATCHES if patches else SHARD_SIZE)
        record = StoreRecord(model.describe(), model.feature_dim, patches, dtype or "float32", size, complete=False)
        with _said_if_impossible(folder):
            write_manifest(folder, record, [])
        return Manifest(record, [])
    manifest = read_manifest(folder)
    record = manifest.record
    check_same_model(folder, record.model, model)
    asked = {"patches": patches or None, "dtype": dtype, "shard_size": shard_size}
    for name, value in asked.items():
        if value is not None and value != getattr(record, name):
            raise InputError(
                f"{folder} was made with {name} = {getattr(record, name)}, not {value}: "
                f"leave {name} out to go on with it, or name a new folder."
            )
    return manifest


def _still_to_do(items: Sequence[ImageItem], shards: Sequence[Shard], retry_unreadable: bool) -> list[_Pending]:
    entries, places = latest_entries(shards)
    known = {entry.id: (entry, place) for entry, place in zip(entries, places)}
    todo = []
    for item in items:
        stamp = stamp_of(item)
        entry, place = known.get(item.id, (None, None))
        same = entry is not None and (entry.stamp, entry.label, entry.domain) == (stamp, item.label, item.domain)
        finished = place is not None or (entry is not None and entry.error is not None and not retry_unreadable)
        if not (same and finished):
            todo.append(_Pending(item, stamp))
    return todo + _withdrawals(items, entries)


def _withdrawals(items: Sequence[ImageItem], entries: Sequence[Entry]) -> list[_Pending]:
    """Entries for folders that could not be listed earlier, and of which there are images now."""
    closed = [entry for entry in entries if entry.error is not None and entry.content is None]
    if not closed:
        return []
    given = {item.id for item in items}
    listed = {str(parent) for item in items for parent in PurePosixPath(item.id).parents}
    return [
        _Pending(ImageItem(entry.id, Refusal("withdrawn")), "withdrawn", withdrawn=True)
        for entry in closed
        if entry.id in listed and entry.id not in given
    ]


def _content_or_error(pending: _Pending) -> tuple[str | None, str | None]:
    return (None, None) if pending.withdrawn else content_or_error(pending.item)


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """`progress` for a part that begins after `before` of `total`."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


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
    """Only one process fills a store at a time. What comes before the first file is written is said plainly, too."""
    with contextlib.ExitStack() as held:
        try:
            with _said_if_impossible(folder):
                held.enter_context(FolderLock(folder))
        except ValueError as error:  # a NUL in its name, or what is no valid text
            if isinstance(error, InputError):
                raise
            raise InputError(f"No folder can be called {str(folder)!r}: {error}.") from error
        yield
