"""Fill a feature store: plan its new shards, encode them, and list them when all are there.

The plan is fixed before the start. Which images are still to be done follows from the shards that the store lists, so a
run that was killed finds its plan again, goes on with it, and ends with the same bytes as one that was not. Several
runs over the same images share the plan and its shards.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from deltaenergy.data.encoder import Describes, Encoder, require_encoder
from deltaenergy.data.filling import Filler, PlanGone, said_if_impossible
from deltaenergy.data.holding import Hold
from deltaenergy.data.inputs import load_images
from deltaenergy.data.items import ImageItem
from deltaenergy.data.manifest import DTYPES, RECORD, Manifest, ShardRecord, StoreRecord, read_manifest, write_manifest
from deltaenergy.data.places import Place, place_at
from deltaenergy.data.plan import FOLDER, Plan, committed, free_numbers, is_whole, read_plan, remove_plan, write_plan
from deltaenergy.data.repair import Inspection, inspect
from deltaenergy.data.shards import Shard, committed_shard, damaged_files, part_name, remove_leftovers, remove_shard
from deltaenergy.data.store import FeatureStore, StoredImage, check_same_model
from deltaenergy.data.to_do import ToDo
from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files.locks import NAME as LOCK
from deltaenergy.files.writing import is_temporary
from deltaenergy.progress import Progress

SHARD_SIZE = 1024
# A ViT-B/16 has 196 patches: 128 images of them are 50 MB in float32.
SHARD_SIZE_WITH_PATCHES = 128
# The manifest lists every shard in some 700 bytes: with more it would be slow to open.
MOST_SHARDS = 100_000
_POLL_SECONDS = 0.2
_ATTEMPTS = 5


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
    fill: Fill | None = None,
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
        fill: who encodes the shards, such as `deltaenergy.scale.Processes`; this process if left out.
    """
    place, encoder = place_at(out), require_encoder(model)
    items = load_images(images)
    if any(isinstance(item.source, StoredImage) for item in items):
        raise InputError("images is a feature store already: give the pictures that it should be made from.")
    for attempt in range(_ATTEMPTS):
        with Hold(place) as hold:
            manifest = _open_or_create(place, encoder, patches, dtype, shard_size, len(items))
            run = _Run(place, manifest, items, retry_unreadable, hold)
            try:
                plan = run.plan()
            except _JustFinished:
                if attempt == _ATTEMPTS - 1:
                    raise hold.busy() from None
                continue
            if plan is not None:
                task = Task(place, manifest.record, plan, batch_size, run.todo.in_memory())
                run.fill(task, fill or _InThisProcess(encoder), progress)
        break
    return FeatureStore.open(out)


class _JustFinished(Exception):
    """Another run finished the plan between our looking at the store and at the plan: look again."""


class _InThisProcess:
    """Encodes shards one after the other, with a model that is loaded already."""

    def __init__(self, model: Encoder) -> None:
        self._model = model

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
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


class _Run:
    """One run that fills a store: what is there, what is to be done, and how it ends."""

    def __init__(
        self, place: Place, manifest: Manifest, items: Sequence[ImageItem], retry_unreadable: bool, hold: Hold
    ) -> None:
        self.place, self.record, self.items, self.hold = place, manifest.record, items, hold
        self._retry_unreadable = retry_unreadable
        self._look(manifest)

    def _look(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.base: Inspection = inspect(self.place, manifest, self.items)
        self.todo = ToDo(self.items, self.base.sound, self._retry_unreadable)

    @property
    def _listed(self) -> list[ShardRecord]:
        return [shard.record for shard in self.base.sound]

    def plan(self) -> Plan | None:
        """The plan that is there already, if it is of the same images, or a new one; None if nothing is to be done."""
        found = self._plan_of_before()
        if found is not None and self._fits(found):
            self._share(found)
            return found
        if not self.hold.alone:
            if found is not None:
                raise self.hold.busy()
            if self.todo.pending or not self.manifest.record.complete:
                raise _JustFinished
            return None
        with said_if_impossible(self.place):
            if found is not None or self.place.names(FOLDER):
                self._adopt(found)
            return self._new_plan()

    def fill(self, task: Task, fill: Fill, progress: Progress | None) -> None:
        """Have the shards of the plan that are not there filled, and list all of them."""
        present = {shard.number: Filled(shard.record, shard.idle) for shard in committed(self.place, task.plan)}
        positions = [i for i, number in enumerate(task.plan.shards) if number not in present]
        so_far = _SoFar(task.plan, self.todo.images, len(self.items), progress)
        for position in set(range(len(task.plan.shards))).difference(positions):
            so_far(position, task.plan.size_of(position))
        try:
            for filled in fill(task, positions, so_far):
                present[filled.record.number] = filled
                so_far.finished(filled.record.number)
        except PlanGone:  # another run that shared it has finished the store
            self.place.remove_folder(FOLDER)
            return
        with said_if_impossible(self.place):
            self._finish(list(present.values()))

    def _plan_of_before(self) -> Plan | None:
        try:
            return read_plan(self.place)
        except ArtifactError:
            if self.hold.alone:
                return None  # its shards are encoded again
            raise

    def _fits(self, plan: Plan) -> bool:
        """Whether the plan is of the images that are to be done now, and its shards are sound."""
        size = self.manifest.record.shard_size
        if self.base.damaged or (plan.digest, plan.shard_size) != (self.todo.digest, size):
            return False
        if self.hold.alone:
            if not is_whole(self.place, plan):
                return False
            with said_if_impossible(self.place):
                self.place.tidy()
                self.place.tidy(FOLDER)
                _sound(self.place, plan)
        return True

    def _share(self, plan: Plan) -> None:
        self.hold.share()
        # Another run may have held the store alone just now. It has finished this plan, or made another.
        now = read_plan(self.place)
        if now is not None and now.digest != plan.digest:
            raise self.hold.busy()

    def _adopt(self, plan: Plan | None) -> None:
        """Give up a plan of other images, and keep what it has brought."""
        shards = _sound(self.place, plan) if plan is not None else []
        listed = {record.number for record in self._listed}
        more = [shard.record for shard in shards if not shard.idle and shard.number not in listed]
        if more:
            record = replace(self.record, complete=False)
            write_manifest(self.place, record, [*self._listed, *more])
        if plan is not None:
            kept = {*listed, *(record.number for record in more)}
            remove_leftovers(self.place, set(plan.shards) - kept)
        remove_plan(self.place)
        if more:
            self._look(read_manifest(self.place))

    def _new_plan(self) -> Plan | None:
        self.place.tidy()
        self.place.remove_folder(FOLDER)
        if not self.todo.pending:
            if self.base.damaged or not self.manifest.record.complete or self.manifest.shards is None:
                write_manifest(self.place, replace(self.record, complete=True), self._listed)
            self._remove_damaged()
            return None
        size = self.record.shard_size
        count = -(-len(self.todo.pending) // size)
        numbers = free_numbers((record.number for record in self._listed), count)
        plan = Plan(len(self.todo.pending), size, self.todo.digest, numbers)
        write_manifest(self.place, replace(self.record, complete=False), self._listed)
        self._remove_damaged()
        remove_leftovers(self.place, numbers)
        write_plan(self.place, plan, self.todo.planned())
        self._share(plan)
        return plan

    def _remove_damaged(self) -> None:
        for damaged in self.base.damaged:
            remove_shard(self.place, damaged.number)

    def _finish(self, filled: Sequence[Filled]) -> None:
        """List all shards. Several runs that shared the plan write the same."""
        new = [one.record for one in filled if not one.idle]
        write_manifest(self.place, replace(self.record, complete=True), [*self._listed, *new])
        for one in filled:
            if one.idle:
                remove_shard(self.place, one.record.number)
        remove_plan(self.place)


class _SoFar:
    """Counts images over shards that are encoded in any order."""

    def __init__(self, plan: Plan, to_do: int, total: int, progress: Progress | None) -> None:
        self._plan, self._total, self._progress = plan, total, progress
        self._before = total - to_do
        self._done: dict[int, int] = {}
        self._positions = {number: position for position, number in enumerate(plan.shards)}
        self._sum = 0

    def __call__(self, position: int, done: int) -> None:
        """So many images of the shard at `position` are done."""
        self._sum += done - self._done.get(position, 0)
        self._done[position] = done
        if self._progress is not None:
            self._progress(min(self._before + self._sum, self._total), self._total)

    def finished(self, number: int) -> None:
        """All of a shard is done."""
        position = self._positions[number]
        self(position, self._plan.size_of(position))


def _sound(place: Place, plan: Plan) -> list[Shard]:
    """The shards of a plan that are there with every byte; the others are removed, and encoded again."""
    sound = []
    present = set(place.names())
    for number in plan.shards:
        if part_name(number, "index") not in present:
            continue
        try:
            shard = committed_shard(place, number)
            damaged = bool(damaged_files(place, shard.record))
        except ArtifactError:
            damaged = True
        if not damaged:
            sound.append(shard)
            continue
        warnings.warn(f"{place}: shard {number:05d} is damaged; its images are encoded again.", stacklevel=5)
        remove_shard(place, number)
    return sound


def _open_or_create(
    place: Place, model: Encoder, patches: bool, dtype: str | None, shard_size: int | None, images: int
) -> Manifest:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"Unknown dtype {dtype!r}.{did_you_mean(dtype, DTYPES)}")
    if shard_size is not None and shard_size < 1:
        raise InputError(f"shard_size must be at least 1, got {shard_size}.")
    if not place.has(RECORD):
        others = [name for name in place.names() if name not in (LOCK, FOLDER) and not is_temporary(name)]
        if others:
            raise InputError(f"{place} is not empty and holds no feature store (but {others[0]!r}). Name a new folder.")
        size = shard_size or usual_shard_size(images, patches)
        record = StoreRecord(model.describe(), model.feature_dim, patches, dtype or "float32", size, complete=False)
        with said_if_impossible(place):
            write_manifest(place, record, [])
        return Manifest(record, [])
    manifest = read_manifest(place)
    record = manifest.record
    check_same_model(place, record.model, model)
    asked = {"patches": patches or None, "dtype": dtype, "shard_size": shard_size}
    for name, value in asked.items():
        if value is not None and value != getattr(record, name):
            raise InputError(
                f"{place} was made with {name} = {getattr(record, name)}, not {value}: "
                f"leave {name} out to go on with it, or name a new folder."
            )
    return manifest


def usual_shard_size(images: int, patches: bool) -> int:
    """Images per shard where nothing is said: doubled until there are no more than `MOST_SHARDS`."""
    size = SHARD_SIZE_WITH_PATCHES if patches else SHARD_SIZE
    while images > size * MOST_SHARDS:
        size *= 2
    return size
