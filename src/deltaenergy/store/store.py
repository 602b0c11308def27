"""The feature store: images encoded once, for every score, sweep and benchmark after that.

    store = build_store(model, "photos/", "photos.store")        # or: deltaenergy features photos/ --out photos.store
    store = Store.open("photos.store")
    store.index                                                  # an Arrow table: row i is image i
    store.features(rows)                                         # their unit features

A store is a list of shards (`shard.py`). A row's number is its position in that list.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from deltaenergy.core.needs import Lack, Need
from deltaenergy.core.text import HasRepr
from deltaenergy.data.items import ImageItem, StoredRow, Unreadable
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.store.folder import StoreFolder, open_folder
from deltaenergy.store.plan import present
from deltaenergy.store.shard import (
    INDEX,
    MANIFEST,
    REPAIR,
    Manifest,
    ShardRecord,
    damaged,
    each_of,
    find_damage,
    read_arrays,
    read_index,
    read_manifest,
    with_arrays,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from deltaenergy.store.shard import Arrays

# Files that are mapped at a time, of which a process may have 65,530; those of cloud storage are held in memory.
_MOST_MAPPED, _MOST_FETCHED = 1024, 4


class Describes(Protocol):
    """Something with an identity, such as a model."""

    def describe(self) -> dict[str, Any]:
        """What identifies it; only the entry `fingerprint` decides whether two are equal."""


class Shard(NamedTuple):
    """The images of a shard that have features, with their `rows` in the store, and those that have none."""

    rows: npt.NDArray[np.int64]
    index: pa.Table
    features: npt.NDArray[np.float32]
    patches: npt.NDArray[np.float32] | None
    unreadable: list[Unreadable]


class Store(HasRepr):
    """Features on a disk or in cloud storage, read when they are used.

    Attributes:
        path: the folder.
        model: what identifies the model that made it (`Model.describe()`), with its `fingerprint`.
        complete: False while images are still to be encoded.
        has_patches: whether it has patch features.
    """

    def __init__(self, folder: StoreFolder, manifest: Manifest, complete: bool = True) -> None:
        self.path = folder.path
        self.folder, self.manifest, self.complete = folder, manifest, complete
        self.model = manifest.model
        self.fingerprint = str(manifest.model["fingerprint"])
        self.feature_dim, self.has_patches = manifest.feature_dim, manifest.patches
        self._ends = np.cumsum([0, *(record.images for record in manifest.shards)])
        self._mapped: dict[int, tuple[pa.Table, Arrays]] = {}

    @classmethod
    def open(cls, path: str | Path, model: Describes | None = None) -> Store:
        """Open a store; given a `model`, also check that it made the features.

        Checked are the manifest, the size of every file, and every byte of the index. `verify` reads the features too.
        What is not as it was written is an `ArtifactError`.
        """
        folder = open_folder(path)
        store = cls(folder, *present(folder))
        if model is not None:
            store.check_model(model)
        if found := find_damage(folder, store.manifest.shards):
            raise damaged(folder, found)
        if not store.complete:
            warnings.warn(
                f"{folder} is incomplete ({len(store):,} images so far). Run the same `deltaenergy features` command "
                "again to finish it.",
                stacklevel=2,
            )
        return store

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "path": repr(str(self.path)),
            "images": len(self),
            "features": self.feature_dim,
            "model": repr(str(self.model.get("name"))),
            "patches": "yes" if self.has_patches else None,
            "unreadable": sum(record.unreadable for record in self.manifest.shards) or None,
            "complete": None if self.complete else "no, run again to finish it",
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    def __len__(self) -> int:
        """The number of images, including those that could not be read."""
        return int(self._ends[-1])

    @cached_property
    def index(self) -> pa.Table:
        """A row per image: id, label, domain, content, stamp, and error if it could not be read."""
        import pyarrow as pa

        tables = [pa.schema([(name, pa.string()) for name in INDEX]).empty_table()]
        for start in range(0, len(self.manifest.shards), _MOST_MAPPED):
            records = self.manifest.shards[start : start + _MOST_MAPPED]
            tables.append(pa.concat_tables(each_of(self.folder, self._index_of, records)).combine_chunks())
        return pa.concat_tables(tables)

    @property
    def files(self) -> list[str]:
        """The Arrow file of each shard, for other programs. A shard that was replaced may still be next to them."""
        return [self.folder.full_name(record.name) for record in self.manifest.shards]

    @property
    def ids(self) -> list[str]:
        """The id of each row's image."""
        return list(self.index["id"].to_pylist())

    @property
    def labels(self) -> list[str | None]:
        """The label of each row's image."""
        return list(self.index["label"].to_pylist())

    @cached_property
    def readable(self) -> npt.NDArray[np.int64]:
        """The rows whose images have features."""
        return np.flatnonzero(self.index["error"].is_null().to_numpy())

    @property
    def unreadable(self) -> list[Unreadable]:
        """The images that could not be read, and why."""
        records = [record for record in self.manifest.shards if record.unreadable]
        return [image for index in each_of(self.folder, self._index_of, records) for image in _unreadable(index)]

    def features(self, rows: Any = None) -> npt.NDArray[np.float32]:
        """Unit features (n, D) of some rows, by number or as a mask, or of all.

        Consecutive rows of one float32 shard are a view on the file, not a copy. A row whose image could not be read
        is an `InputError`: `features(store.readable)` leaves those out.
        """
        return self._gather("features", rows)

    def patches(self, rows: Any = None) -> npt.NDArray[np.float32]:
        """Unit patch features (n, P, D) of some rows, or of all."""
        if not self.has_patches:
            raise no_patches(self.path)
        return self._gather("patches", rows)

    def shards(self, *, patches: bool = False, keep_mapped: bool = True) -> Iterator[Shard]:
        """One shard after the other; images without features come apart.

        Files stay mapped for the next time, unless `keep_mapped` is False: then memory does not grow with the store.
        """
        if patches and not self.has_patches:
            raise no_patches(self.path)
        return (self.shard(i, patches=patches, keep_mapped=keep_mapped) for i in range(len(self.manifest.shards)))

    def shard(self, position: int, *, patches: bool = False, keep_mapped: bool = False) -> Shard:
        """The shard at this position."""
        record, unreadable = self.manifest.shards[position], list[Unreadable]()
        index, arrays = self._mapped_shard(position) if keep_mapped else read_arrays(self.folder, record)
        rows = np.arange(self._ends[position], self._ends[position + 1])
        if record.unreadable:
            readable, unreadable = index["error"].is_null(), _unreadable(index)
            kept = readable.to_numpy()
            rows, index = rows[kept], index.filter(readable)
            arrays = {kind: array[kept] for kind, array in arrays.items()}
        found = np.asarray(arrays["patches"], np.float32) if patches else None
        return Shard(rows, index, np.asarray(arrays["features"], np.float32), found, unreadable)

    def items(self) -> list[ImageItem]:
        """An item per row, for functions that take images."""
        return self.select(range(len(self)))

    def select(self, rows: Any) -> list[ImageItem]:
        """Some rows, by number or as a mask, for functions that take images."""
        numbers = self._rows(rows)
        return self.items_at(numbers, self.index.take(numbers))

    def shard_items(self, position: int) -> list[ImageItem]:
        """The images of a shard that have features."""
        index = self._index_of(self.manifest.shards[position])
        rows = np.arange(self._ends[position], self._ends[position + 1])
        return [item for item in self.items_at(rows, index) if item.problem is None]

    def readable_items(self) -> Iterator[ImageItem]:
        """The images that have features; those of a shard at a time are held."""
        for position in range(len(self.manifest.shards)):
            yield from self.shard_items(position)

    @property
    def identity(self) -> object:
        """Equal for two objects of the same store."""
        return os.path.realpath(self.path)

    @property
    def lacks(self) -> dict[Need, Lack]:
        """What is not in it."""
        path = self.path
        pixels = Lack(f"{path} is a feature store", f"give it the images, not a feature store such as {path}.")
        patches = Lack(f"{path} has none", str(no_patches(path)))
        return {Need.PIXELS: pixels, Need.STATES: pixels} | ({} if self.has_patches else {Need.PATCHES: patches})

    def items_at(self, rows: npt.NDArray[np.int64], index: pa.Table) -> list[ImageItem]:
        """The images of some rows, whose index this is."""
        columns = (index[name].to_pylist() for name in ("id", "label", "domain", "error"))
        return [
            ImageItem(name, None, label, domain, error, StoredRow(self, row))
            for row, name, label, domain, error in zip(rows.tolist(), *columns)
        ]

    def verify(self) -> list[str]:
        """What is damaged, a line for each file: every byte is read and compared with its hash."""
        found = find_damage(self.folder, self.manifest.shards, features=True)
        try:
            read_manifest(self.folder)
        except ArtifactError as error:
            found[MANIFEST] = str(error)
        return [f"{name}: {reason}" for name, reason in found.items()]

    def to_parquet(self, folder: str | Path) -> None:
        """Write the index and features as Parquet, a file per shard, for programs that do not read Arrow files.

        Features are float32; an image that could not be read has null.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        out = open_folder(folder)
        if out.sizes():
            raise InputError(f"{folder} is not empty. Name a new folder.")
        for position, record in enumerate(self.manifest.shards):
            index, arrays = read_arrays(self.folder, record)
            sink = pa.BufferOutputStream()
            pq.write_table(with_arrays(index, {kind: array.astype(np.float32) for kind, array in arrays.items()}), sink)
            out.put(f"{position:05d}.parquet", sink.getvalue())

    def check_model(self, model: Describes) -> None:
        """Raise `ArtifactError`, saying what differs, unless `model` made these features."""
        given, stored = model.describe(), self.model
        if given["fingerprint"] == self.fingerprint:
            return
        keys = [key for key in sorted({*stored, *given}) if stored.get(key) != given.get(key)]
        differs = "\n".join(f"  {key}: store {stored.get(key)!r}, given {given.get(key)!r}" for key in keys)
        remedy = "Use the model that made the store, or make a store with this one in another folder."
        if given.get("precomputed"):
            remedy = "Same features? Pass their fingerprint: PrecomputedModel(…, fingerprint=store.fingerprint)."
        raise ArtifactError(f"{self.path} contains features of a different model.\n{differs}\n{remedy}")

    def _index_of(self, record: ShardRecord) -> pa.Table:
        return read_index(self.folder, record)

    def _rows(self, rows: Any) -> npt.NDArray[np.int64]:
        wanted = np.atleast_1d(rows)
        if wanted.dtype == bool and wanted.shape == (len(self),):
            return np.flatnonzero(wanted)
        if wanted.size and (wanted.dtype.kind not in "iu" or wanted.min() < 0 or wanted.max() >= len(self)):
            raise InputError(f"rows must be numbers from 0 to {len(self) - 1}, or a mask with an entry for each.")
        return wanted.astype(np.int64)

    def _gather(self, kind: str, rows: Any) -> npt.NDArray[np.float32]:
        wanted = self._rows(range(len(self)) if rows is None else rows)
        shards = np.searchsorted(self._ends, wanted, side="right") - 1
        inside = wanted - self._ends[shards]
        order = np.argsort(shards, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(shards[order])) + 1) if len(order) else []
        if len(parts) == 1 and bool((np.diff(inside) == 1).all()):
            return np.asarray(self._array(int(shards[0]), kind, inside)[inside[0] : inside[-1] + 1], np.float32)
        result = np.zeros((0, self.feature_dim), np.float32)
        for part in parts:
            array = self._array(int(shards[part[0]]), kind, inside[part])
            if not len(result):
                result = np.empty((len(wanted), *array.shape[1:]), np.float32)
            result[part] = array[inside[part]]
        return result

    def _mapped_shard(self, position: int) -> tuple[pa.Table, Arrays]:
        if position not in self._mapped:
            if len(self._mapped) >= (_MOST_FETCHED if self.folder.is_remote else _MOST_MAPPED):
                self._mapped.clear()
            self._mapped[position] = read_arrays(self.folder, self.manifest.shards[position])
        return self._mapped[position]

    def _array(self, position: int, kind: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """A shard's array, if each of these rows of it has features."""
        index, arrays = self._mapped_shard(position)
        if self.manifest.shards[position].unreadable:
            failed = rows[index["error"].is_valid().to_numpy()[rows]]
            if len(failed):
                image = index.slice(failed[0], 1).to_pylist()[0]
                raise InputError(
                    f"{image['id']} (row {self._ends[position] + failed[0]}) has no features: {image['error']}. Leave "
                    "out such rows, as store.readable does."
                )
        return arrays[kind]


class StoredItems(Sequence[ImageItem]):
    """The images of a store that have features, in order. They are looked up on demand: none is held.

    Attributes:
        store: the store.
        label_names: the labels that occur, in order of first appearance.
        label_codes: for each image the position of its label there, −1 where it has none.
        unreadable: how many images of the store have no features.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.unreadable = sum(record.unreadable for record in store.manifest.shards)
        self._ends = np.cumsum([0, *(record.images - record.unreadable for record in store.manifest.shards)])
        self._last: tuple[int, list[ImageItem]] = -1, []
        codes: dict[str | None, int] = {None: -1}
        found = [
            np.array([codes.setdefault(label, len(codes) - 1) for label in labels], np.int32)
            for labels in self._column("label")
        ]
        self.label_codes: npt.NDArray[np.int32] = np.concatenate([np.zeros(0, np.int32), *found])
        self.label_names = [label for label in codes if label is not None]

    def id_hashes(self) -> Iterator[npt.NDArray[np.int64]]:
        """The hash of each image's id, to see whether another set has an image of that name."""
        return (np.array(list(map(hash, ids)), np.int64) for ids in self._column("id"))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> ImageItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[ImageItem]: ...
    def __getitem__(self, index: int | slice) -> ImageItem | list[ImageItem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # also counts from the end, and raises if it is out of range
        shard = int(np.searchsorted(self._ends, row, side="right")) - 1
        if self._last[0] != shard:
            self._last = shard, self.store.shard_items(shard)
        return self._last[1][row - int(self._ends[shard])]

    def __iter__(self) -> Iterator[ImageItem]:
        return self.store.readable_items()

    def _column(self, name: str) -> Iterator[list[str | None]]:
        """The values of an index column for these images, by shard."""
        for record in self.store.manifest.shards:
            index = read_index(self.store.folder, record)
            yield index[name].filter(index["error"].is_null()).to_pylist()


def verify_store(path: str | Path) -> Store:
    """The store at `path`, if every byte is as it was written; else an `ArtifactError` that names what is damaged."""
    store = Store.open(path)
    if problems := store.verify():
        raise ArtifactError(f"{store.path} is damaged: {'; '.join(problems)}. {REPAIR}")
    return store


def _unreadable(index: pa.Table) -> list[Unreadable]:
    failed = index.filter(index["error"].is_valid())
    return [Unreadable(*image) for image in zip(failed["id"].to_pylist(), failed["error"].to_pylist())]


def no_patches(path: Path | str) -> InputError:
    return InputError(f"{path} has no patch features. Make a store that has them, with `patches=True`.")
