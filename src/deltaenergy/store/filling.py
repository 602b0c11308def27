"""Encode planned shards, and commit each: what every process that fills a store does, for one shard after the other."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, from_reference, hash_content
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_value
from deltaenergy.store.encoder import Encoder
from deltaenergy.store.folder import Place
from deltaenergy.store.manifest import ShardRecord, StoreRecord
from deltaenergy.store.plan import RECORD as PLAN_RECORD
from deltaenergy.store.plan import Plan, Planned, PlanReader, lock_name
from deltaenergy.store.shards import Entry, Shard, committed_shard, part_name, write_shard

READ_THREADS = 4
_HASHED_IN_A_ROW = 16
_POLL_SECONDS = 0.2


class PlanGone(Exception):
    """The plan is not there any more: another run has finished the store."""


class Filler:
    """Encodes planned shards of one store with one model.

    Args:
        place: the store.
        record: what the store is made with.
        plan: what its shards will hold.
        model: encodes the images.
        batch_size: images per pass of the image tower.
        given: the pictures that exist only in this process, by id.
    """

    def __init__(
        self,
        place: Place,
        record: StoreRecord,
        plan: Plan,
        model: Encoder,
        batch_size: int,
        given: Mapping[str, ImageItem] | None = None,
    ) -> None:
        self.place, self.record, self.plan = place, record, plan
        self._model, self._batch_size, self._given = model, batch_size, given or {}
        self._lines = PlanReader(place, plan)

    def fill(self, position: int, progress: Progress | None = None) -> Shard | None:
        """The shard at `position` of the plan: encoded now, or as another process left it; None while one is at it."""
        number = self.plan.shards[position]
        if (shard := self._committed(number)) is not None:
            return shard
        with said_if_impossible(self.place), self.place.lock(lock_name(number)) as held:
            if not held:
                return None
            # Another may have finished it between our look and our lock, and even the whole store, plan and all.
            if (shard := self._committed(number)) is not None:
                return shard
            if not self.place.has(PLAN_RECORD):
                raise PlanGone
            return self._encode(number, self._lines.images(position), progress)

    def _committed(self, number: int) -> Shard | None:
        return committed_shard(self.place, number) if self.place.has(part_name(number, "index")) else None

    def _encode(self, number: int, planned: Sequence[Planned], progress: Progress | None) -> Shard:
        items = {image.id: self._item(image) for image in planned if not image.withdrawn}
        contents = _contents(planned, items)
        new: dict[str, ImageItem] = {}
        for image in planned:
            content, _ = contents[image.id]
            if content is not None and image.brings:
                new.setdefault(content, items[image.id])
        arrays, rows, errors = self._features(new, progress)
        entries = []
        for image in planned:
            content, error = contents[image.id]
            brings = content is not None and new.get(content) is items.get(image.id)
            row = rows.get(content) if brings and content is not None else None
            reason = error if content is None else errors.get(content)
            entries.append(Entry(image.id, image.label, image.domain, content, image.stamp, row, reason))
        idle = all(image.before == hash_value(list(entry)) for image, entry in zip(planned, entries))
        return write_shard(self.place, number, entries, arrays, idle=idle)

    def _item(self, image: Planned) -> ImageItem:
        if image.source is not None:
            return from_reference(image.id, image.source, image.label, image.domain)
        if image.id not in self._given:
            raise ArtifactError(f"{self.place}: the picture {image.id!r} exists only in the process that planned it.")
        return self._given[image.id]

    def _features(
        self, new: Mapping[str, ImageItem], progress: Progress | None
    ) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
        """Arrays by kind, and by content either the row or the reason why there is none."""
        content_of = {item.id: content for content, item in new.items()}
        encoded = self._model.encode(
            list(new.values()), patches=self.record.patches, batch_size=self._batch_size, progress=progress
        )
        arrays = {"features": encoded.features.astype(self.record.dtype)}
        if self.record.patches:
            empty = np.zeros((0, 0, self.record.feature_dim), np.float32)
            found = encoded.patches if encoded.patches is not None else empty
            arrays["patches"] = found.astype(self.record.dtype)
        rows = {content_of[item.id]: row for row, item in enumerate(encoded.items)}
        errors = {content_of[unreadable.id]: unreadable.reason for unreadable in encoded.unreadable}
        return arrays, rows, errors


@dataclass(frozen=True)
class Task:
    """What is to be done: the planned shards of a store. `in_memory` are the pictures that have no file, by id."""

    place: Place
    record: StoreRecord
    plan: Plan
    batch_size: int
    in_memory: dict[str, ImageItem]


@dataclass(frozen=True)
class Filled:
    """A planned shard that is there; an idle one says nothing that the store does not say already."""

    record: ShardRecord
    idle: bool


class Fill(Protocol):
    """Somebody who encodes planned shards."""

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        """Fill the shards at these positions of the plan, and give each when it is there, in any order.

        `progress` takes a position and how many of its images are done.
        """


class InThisProcess:
    """Encodes shards one after the other, with a model that is loaded already."""

    def __init__(self, model: Encoder) -> None:
        self._model = model

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        """Fill the shards at these positions of the plan; those that others are at, last."""
        filler = Filler(task.place, task.record, task.plan, self._model, task.batch_size, task.in_memory)
        waiting, passed_over = deque(positions), 0
        while waiting:
            position = waiting.popleft()
            shard = filler.fill(position, functools.partial(_told, progress, position))
            if shard is not None:
                passed_over = 0
                yield Filled(shard.record, shard.idle)
                continue
            waiting.append(position)  # another process is at it: look again when the others are done
            passed_over += 1
            if passed_over >= len(waiting):
                time.sleep(_POLL_SECONDS)


def _told(progress: Callable[[int, int], None], position: int, done: int, _: int | None) -> None:
    progress(position, done)


def hash_all(items: Sequence[ImageItem]) -> list[tuple[str | None, str | None]]:
    """Of each picture the hash of its bytes, or why it cannot be had."""
    if not items:
        return []
    if all(item.is_remote for item in items):  # nothing is read
        return [hash_content(item) for item in items]
    parts = [items[start : start + _HASHED_IN_A_ROW] for start in range(0, len(items), _HASHED_IN_A_ROW)]
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="hash") as pool:
        return [found for part in pool.map(_hash_some, parts) for found in part]


def _hash_some(items: Sequence[ImageItem]) -> list[tuple[str | None, str | None]]:
    return [hash_content(item) for item in items]


@contextlib.contextmanager
def said_if_impossible(place: Place) -> Iterator[None]:
    """A full disk or a folder without permission is a user's concern, not a bug."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"{place} cannot be written: {error.strerror or error}. What it holds so far is whole: run again to go on."
        ) from error


def _contents(planned: Sequence[Planned], items: Mapping[str, ImageItem]) -> dict[str, tuple[str | None, str | None]]:
    """What the plan says of each picture's content, and what it left to be found out."""
    said = {image.id: (image.content, image.error) for image in planned}
    left = [image.id for image in planned if not image.withdrawn and said[image.id] == (None, None)]
    found = hash_all([items[identity] for identity in left])
    return {**said, **dict(zip(left, found))}
