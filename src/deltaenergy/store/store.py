"""The feature store: images encoded once, for every score, sweep and benchmark after that.

    store = build_store(model, "photos/", "photos.store")        # or: deltaenergy features photos/ --out photos.store
    store = FeatureStore.open("photos.store")
    classifier.similarities(store); detector.predict("photos.store")

`load_images` gives one item per image of a store, so that everything that takes images takes a store, or some of
its items. `shards.py` describes the files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from deltaenergy.core.display import HasRepr
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.store.encoder import Describes
from deltaenergy.store.folder import Place, place_at
from deltaenergy.store.manifest import RECORD, StoreRecord, read_manifest
from deltaenergy.store.plan import read_present
from deltaenergy.store.shards import REPAIR, Entry, Shard, damaged_files, map_array, read_shards

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class StoredImage:
    """An image of which a store holds the features: row `row`, or none because of `error`."""

    store: FeatureStore
    row: int | None
    error: str | None = None

    @property
    def reason(self) -> str:
        """Why there is no picture to open."""
        if self.row is not None:
            return f"{self.store.path} holds its features, not the picture"
        return self.error or "its shard is missing from the store"

    def __call__(self) -> NoReturn:
        """As an image source: the picture itself is not in the store."""
        raise UnreadableImage(self.reason)


class FeatureStore(HasRepr):
    """Features on disk, read when they are used.

    Attributes:
        path: the folder.
        model: what identifies the model that made it (`Model.describe()`), with its `fingerprint`.
        ids, labels, domains: of the N images that have features, in the order in which they came.
        unreadable: the images that have none, and why.
        complete: False while images that were asked for are still to be encoded.
        has_patches: whether patch features are there too.
    """

    def __init__(self, place: Place, record: StoreRecord, shards: Sequence[Shard]) -> None:
        self.path = place.path
        self._place = place
        self._record = record
        self.model = record.model
        self.fingerprint = str(record.model["fingerprint"])
        self.feature_dim = record.feature_dim
        self.has_patches = record.patches
        self.complete = record.complete
        self._shards = list(shards)
        self._maps: dict[tuple[int, str], npt.NDArray[Any]] = {}
        self._entries, places = latest_entries(self._shards)
        self._entry_places = places
        present = self._present = [i for i, place in enumerate(places) if place is not None]
        # For each image with features: its shard (position in `_shards`) and its row there.
        self._places = np.array([places[i] for i in present], np.int64).reshape(-1, 2)
        self.ids = [self._entries[i].id for i in present]
        self.labels = [self._entries[i].label for i in present]
        self.domains = [self._entries[i].domain for i in present]
        self.unreadable = [
            Unreadable(entry.id, StoredImage(self, None, entry.error).reason)
            for entry, place in zip(self._entries, places)
            if place is None
        ]

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "path": repr(str(self.path)),
            "images": len(self.ids),
            "features": self.feature_dim,
            "model": repr(str(self.model.get("name"))),
            "labelled": sum(label is not None for label in self.labels),
        }
        if self.has_patches:
            facts["patches"] = "yes"
        if self.unreadable:
            facts["unreadable"] = len(self.unreadable)
        if not self.complete:
            facts["complete"] = "no, run again to go on"
        return facts

    @classmethod
    def open(cls, path: str | Path, model: Describes | None = None) -> FeatureStore:
        """Open a store; given a `model`, also check that it made the features.

        Checked are the manifest, the indices byte by byte, and that every array is there with its size. `verify`
        checks the arrays' bytes too. What is not as it was written is an `ArtifactError`.
        """
        place = place_at(path)
        manifest = read_present(place)
        store = cls(place, manifest.record, read_shards(place, manifest))
        if model is not None:
            store.check_model(model)
        if store.complete:
            store._check_contents()
        else:
            warnings.warn(
                f"{place} is not finished: it holds {len(store)} images so far. "
                "Run `deltaenergy features` again with the same images to go on.",
                stacklevel=2,
            )
        return store

    def __len__(self) -> int:
        """How many images have features."""
        return len(self._present)

    @cached_property
    def features(self) -> npt.NDArray[np.float32]:
        """All unit features (N, D) as one array: a memory map where the store is one float32 shard, else a copy."""
        return self.take(np.arange(len(self)))

    def take(self, rows: Any) -> npt.NDArray[np.float32]:
        """Features (n, D) of some rows. Consecutive rows of one float32 shard are a view on the file, not a copy."""
        return self._gather("features", np.asarray(rows, np.int64))

    def take_patches(self, rows: Any) -> npt.NDArray[np.float32]:
        """Patch features (n, P, D) of some rows."""
        if not self.has_patches:
            raise no_patches(self.path)
        return self._gather("patches", np.asarray(rows, np.int64))

    def blocks(self, size: int = 1024) -> Iterator[npt.NDArray[np.float32]]:
        """All features in order, at most `size` rows at a time and never across a shard.

        Blocks of a float32 store are views on its files, unless some of its images share pictures or were replaced.
        """
        numbers, inside = self._places[:, 0], self._places[:, 1]
        # A run ends where the next row lies in another shard, or not right behind in the same.
        starts = np.flatnonzero((np.diff(numbers, prepend=-1) != 0) | (np.diff(inside, prepend=-1) != 1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(self)]):
            mapped, first = self._map(int(numbers[start]), "features"), int(inside[start])
            for row in range(first, first + end - start, size):
                block = mapped[row : min(row + size, first + end - start)]
                yield block if block.dtype == np.float32 else block.astype(np.float32)

    def items(self) -> list[ImageItem]:
        """One item per image, those without features included, for whatever takes images."""
        rows: list[int | None] = [None] * len(self._entries)
        for row, position in enumerate(self._present):
            rows[position] = row
        return [
            ImageItem(entry.id, StoredImage(self, row, entry.error), entry.label, entry.domain)
            for entry, row in zip(self._entries, rows)
        ]

    def check_model(self, model: Describes) -> None:
        """Raise `ArtifactError`, saying what differs, unless `model` made these features."""
        check_same_model(self._place, self.model, model)

    def verify(self) -> list[str]:
        """The names of damaged files: every byte is read and compared with its checksum."""
        damaged = [name for shard in self._shards for name in damaged_files(self._place, shard.record)]
        try:
            read_manifest(self._place)
        except ArtifactError:
            damaged.append(RECORD)
        return damaged

    def _check_contents(self) -> None:
        """In a finished store every picture that an image shares with another is there."""
        for entry, place in zip(self._entries, self._entry_places):
            if place is None and entry.error is None:
                raise ArtifactError(f"{self.path}: the features of {entry.id!r} are in none of its shards. {REPAIR}")

    def _gather(self, kind: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        places = self._places[rows]
        if not len(places):
            width = (0, self.feature_dim) if kind == "features" else (0, 0, self.feature_dim)
            return np.zeros(width, np.float32)
        numbers, inside = places[:, 0], places[:, 1]
        if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
            mapped = self._map(int(numbers[0]), kind)
            consecutive = bool((np.diff(inside) == 1).all())
            part = mapped[inside[0] : inside[-1] + 1] if consecutive else mapped[inside]
            return part if part.dtype == np.float32 else part.astype(np.float32)
        shape = self._map(int(numbers[0]), kind).shape[1:]
        result = np.empty((len(rows), *shape), np.float32)
        for number in np.unique(numbers):
            of_shard = numbers == number
            result[of_shard] = self._map(int(number), kind)[inside[of_shard]]
        return result

    def _map(self, position: int, kind: str) -> npt.NDArray[Any]:
        key = (position, kind)
        if not self._place.maps:  # it is in memory, and the place decides how many of these are
            return map_array(self._place, self._shards[position], kind, self._record)
        if key not in self._maps:
            # As a plain array: numpy.memmap objects are slow to slice.
            self._maps[key] = np.asarray(map_array(self._place, self._shards[position], kind, self._record))
        return self._maps[key]


def verify_store(path: str | Path) -> FeatureStore:
    """The store at `path` if every byte is as it was written, else an `ArtifactError` with the damaged files."""
    store = FeatureStore.open(path)
    damaged = store.verify()
    if damaged:
        raise ArtifactError(f"{store.path} is damaged: {', '.join(damaged)}. {REPAIR}")
    return store


def latest_entries(shards: Sequence[Shard]) -> tuple[list[Entry], list[tuple[int, int] | None]]:
    """Each image's latest entry, in order of first appearance, with the place of its features: (shard, row) or None.

    An image that came again (because its file changed) replaces its earlier entry, one that was withdrawn is left
    out. A picture that several images share is found by its content.
    """
    entries = [entry for shard in shards for entry in shard.entries]
    positions = [position for position, shard in enumerate(shards) for _ in shard.entries]
    if len({entry.id for entry in entries}) < len(entries):
        # A dictionary keeps the place of a key's first value, and its last value.
        latest = {entry.id: (entry, position) for entry, position in zip(entries, positions)}
        entries, positions = [entry for entry, _ in latest.values()], [position for _, position in latest.values()]
    by_content: dict[str | None, tuple[int, int]] = {}
    errors: dict[str | None, str] = {}
    for position, shard in enumerate(shards):
        for entry in shard.entries:
            if entry.row is not None:
                by_content[entry.content] = (position, entry.row)
            elif entry.error is not None and entry.content is not None:
                errors[entry.content] = entry.error
    places = [
        (position, entry.row) if entry.row is not None else by_content.get(entry.content)
        for entry, position in zip(entries, positions)
    ]
    # A copy of a picture that cannot be read cannot be read either.
    entries = [
        entry._replace(error=errors.get(entry.content)) if place is None and entry.error is None else entry
        for entry, place in zip(entries, places)
    ]
    kept = [i for i, entry in enumerate(entries) if entry.content is not None or entry.error is not None]
    return [entries[i] for i in kept], [places[i] for i in kept]


def no_patches(path: Path | str | Place) -> InputError:
    """The error for a store that was made without patch features."""
    return InputError(f"{path} has no patch features. Make a store that has them, with `patches=True`.")


def check_same_model(path: Path | Place, stored: dict[str, Any], model: Describes) -> None:
    """Raise `ArtifactError`, saying what differs, unless `stored` describes `model`."""
    found = model.describe()
    if found["fingerprint"] == stored["fingerprint"]:
        return
    keys = [key for key in sorted({*stored, *found}) if stored.get(key) != found.get(key)]
    differs = "\n".join(f"  {key}: store {stored.get(key)!r}, given {found.get(key)!r}" for key in keys)
    remedy = "Use the model that made the store, or make a store with this one in another folder."
    if found.get("precomputed"):
        remedy = "If they are the same features, say so: PrecomputedModel(…, fingerprint=store.fingerprint)."
    raise ArtifactError(
        f"{path} holds the features of another model; they cannot be compared with this one's.\n{differs}\n{remedy}"
    )
