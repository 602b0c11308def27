"""Fill a feature store: plan its new shards, join in encoding them, and list them when all are there.

Every process that works on a store does the same, however it was started: `join` takes the next planned shard that no
one works on, until none is left. A shard is finished with its record, which is written after its file. When all are,
the manifest is replaced, if it is still the one that was planned for. So a run that was killed finds its plan again,
and the store ends with the same bytes as one that was not.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError, did_you_mean
from deltaenergy.files.atomic import is_temporary
from deltaenergy.store.encode import EncodesImages, ShardEncoder
from deltaenergy.store.folder import StoreFolder, open_folder
from deltaenergy.store.plan import (
    FOLDER,
    PLAN,
    Changes,
    Plan,
    draw_up,
    finished,
    in_use,
    merged,
    put_plan,
    put_record,
    read_plan,
    read_rows,
    remove_plan,
)
from deltaenergy.store.shard import (
    DTYPES,
    MANIFEST,
    Manifest,
    ShardRecord,
    damaged,
    find_damage,
    pack_shard,
    read_manifest,
    same_images,
)
from deltaenergy.store.store import Store

# Images per shard, by their number: at least 128 shards keep many workers busy, if shards are not too small for that.
LEAST_SHARD, MOST_SHARD, SHARDS = 64, 1024, 128
# As many as `on` accepts for a batch; shards and batches are held in memory.
MOST_AT_ONCE = 2**31 - 1
# A ViT-B/16 has 196 patches: 128 images of them take 50 MB in float32.
MOST_SHARD_WITH_PATCHES = 128
_SHARD_FILE = re.compile(r"(\d{5,})-(\d+)\.arrow")
_POLL_SECONDS = 0.2
# For workers whose own shards were finished already, so they do not know how long one takes.
_LEAST_WAIT_SECONDS = 2.0

# Called with a shard's position in the plan, how many of its images are done, and whether it is finished.
Report = Callable[[int, int, bool], None]


@dataclass(frozen=True)
class StoreSettings:
    """How a store is made. None: as it was made before, or by default."""

    patches: bool = False
    dtype: str | None = None
    shard_size: int | None = None
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InputError(f"Unknown dtype {self.dtype!r}.{did_you_mean(self.dtype, DTYPES)}")
        for name, value in (("shard_size", self.shard_size), ("batch_size", self.batch_size)):
            if value is not None and not 1 <= value <= MOST_AT_ONCE:
                raise InputError(f"{name} must be from 1 to {MOST_AT_ONCE:,}, got {value}.")


@dataclass(frozen=True)
class Work:
    """A store with a plan. `data` are the bytes of its manifest; `total` images were given, `images` are to be done.

    `in_memory` are the images that only this process has, by id.
    """

    folder: StoreFolder
    manifest: Manifest
    data: bytes
    plan: Plan
    in_memory: Mapping[str, ImageItem] = field(default_factory=dict)
    total: int = 0
    images: int = 0

    @classmethod
    def at(cls, path: str) -> Work | None:
        """The work that another process has planned, if it is not finished."""
        folder = open_folder(path)
        manifest, data = read_manifest(folder)
        plan = read_plan(folder)
        return cls(folder, manifest, data, plan) if plan is not None and plan.is_for(data) else None

    def counting(self, progress: Progress | None) -> Report:
        """A report by which `progress` is told how many of all images are done, in whatever order shards are."""
        by_shard: dict[int, int] = {}
        done = self.total - self.images

        def report(shard: int, images: int, finished: bool) -> None:
            nonlocal done
            done += images - by_shard.get(shard, 0)
            by_shard[shard] = images
            if progress is not None:
                progress(min(done, self.total), self.total)

        return report


# Sees to it that all planned shards are finished.
Join = Callable[[Work, Progress | None], None]


def fill_store(
    model: EncodesImages,
    stream: ImageStream,
    out: str | Path,
    settings: StoreSettings,
    *,
    retry_unreadable: bool = False,
    progress: Progress | None = None,
    join: Join | None = None,
) -> Store:
    """Encode the images of a stream into the store at `out`, in memory that does not grow with them.

    `join` has the planned shards encoded; by default this process does, with the other tasks of its Slurm array.
    """
    try:
        if b"\0" in os.fsencode(out):
            raise ValueError("it contains a NUL")
    except ValueError as error:
        raise InputError(f"No folder can be called {str(out)!r}: {error}.") from None
    folder = open_folder(out)
    with explain_write_errors(folder):
        work = prepare(folder, model, stream, settings, retry_unreadable)
        if work is not None:
            if join is None:
                first, step = place_in_array()
                join_here(work, model, first=first, step=step, report=work.counting(progress))
            else:
                join(work, progress)
            finish(work)
    return Store.open(out)


def place_in_array() -> tuple[int | None, int]:
    """The number of this task among those of a Slurm array, or among the processes of `srun`: (number, how many)."""
    for number, first, count in (
        ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
        ("SLURM_PROCID", "", "SLURM_NTASKS"),
    ):
        values = [os.environ.get(name, "0") for name in (number, first, count)]
        if all(value.isdigit() for value in values) and int(values[2]) > 1:
            return (int(values[0]) - int(values[1])) % int(values[2]), int(values[2])
    return None, 1


def prepare(
    folder: StoreFolder, model: EncodesImages, stream: ImageStream, settings: StoreSettings, retry_unreadable: bool
) -> Work | None:
    """The plan that is there, if it is of the same images, or a new one; None if nothing is to be done."""
    known = _open(folder, model, settings)
    if known is not None and (found := find_damage(folder, known[0].shards)):
        raise damaged(folder, found)
    changes = Changes(stream, folder, known[0].shards if known else (), retry_unreadable)
    new_images = changes.new_images()
    if known is None:
        # With this many, it does not matter how many more there are.
        first = list(islice(new_images, MOST_SHARD * SHARDS))
        new_images = chain(first, new_images)
        known = _create(folder, model, settings, len(first))
    manifest, data = known
    plan = _clean(folder, manifest, data)
    theirs = {shard.rows_file for shard in plan.shards} if plan else None

    def put(name: str, rows: bytes) -> None:
        if theirs is None or (name in theirs and (not folder.exists(name) or folder.read(name) != rows)):
            folder.put(name, rows)

    drawn = draw_up(manifest, data, new_images, changes, put)
    work = Work(folder, manifest, data, drawn, changes.in_memory, changes.total, changes.images)
    if plan is not None and (drawn.base, drawn.shards) == (plan.base, plan.shards):
        _drop_damaged(folder, plan)
        return work
    if plan is not None:
        _give_up(folder, manifest, data, plan)
    elif not drawn.shards:
        if not manifest.complete:
            folder.replace(MANIFEST, replace(manifest, complete=True).to_bytes(), data)
        remove_plan(folder, None, manifest)
        return None
    elif put_plan(folder, drawn):
        if folder.read(MANIFEST) == data:
            return work
        folder.delete(PLAN)
    # Another run has changed the store meanwhile: compare the images with what is there now.
    return prepare(folder, model, stream, settings, retry_unreadable)


class Joiner:
    """Encodes planned shards of a store with one model."""

    def __init__(self, work: Work, model: EncodesImages) -> None:
        self._work = work
        self._positions = {record.number: position for position, record in enumerate(work.manifest.shards)}
        held = len(work.manifest.shards)
        self._encoder = ShardEncoder(model, Store(work.folder, work.manifest), work.in_memory, held)

    def take(self, position: int, report: Report) -> bool:
        """See to it that a planned shard is finished; False if another process works on it."""
        folder, shard = self._work.folder, self._work.plan.shards[position]
        record_name = shard.file("json")
        if not folder.exists(record_name):
            with explain_write_errors(folder), folder.lock(shard.file("lock")) as held:
                if not held:
                    return False
                # Before this one had the lock, another may have finished the shard, or the store, or given up the plan.
                if (folder.is_remote or not folder.exists(record_name)) and folder.exists(PLAN):
                    record = self._encode(position, lambda done, _: report(position, done, False))
                    put_record(folder, shard, record)
        report(position, shard.images, True)
        return True

    def _encode(self, position: int, progress: Progress) -> ShardRecord:
        folder, manifest, shard = self._work.folder, self._work.manifest, self._work.plan.shards[position]
        held, again = len(manifest.shards), self._positions.get(shard.number)
        images = read_rows(folder, shard)
        index, arrays = self._encoder.encode(images, again=again, progress=progress)
        record, data = pack_shard(shard.number, shard.version, held, index, arrays)
        before = None if again is None else manifest.shards[again]
        if before and (record.index_hash, record.features_hash) == (before.index_hash, before.features_hash):
            return before
        # Without locks, the shard that was written first counts: another processor may round its features differently.
        if not folder.put(record.name, data, if_absent=folder.is_remote):
            if (same := same_images(folder, record)) is not None:
                return same
            folder.put(record.name, data)
        return record


def join_here(
    work: Work, model: EncodesImages, *, first: int | None = None, step: int = 1, report: Report = lambda *_: None
) -> None:
    """Encode the planned shards that no other process works on, and wait for the others.

    Worker `first` of `step` takes shards first, first + step, …, and then helps with the rest in its own order.
    Cloud storage has no locks that would show what others work on: there two processes may encode the same shard. The
    second finds it finished.
    """
    joiner, shards = Joiner(work, model), range(len(work.plan.shards))
    own = shards[:0] if work.folder.is_remote else shards
    if first is not None:
        own = shards[first::step]
    rest, order = sorted(set(shards).difference(own)), random.Random(first)
    order.shuffle(rest)
    longest = _LEAST_WAIT_SECONDS
    for position in own:
        began = time.monotonic()
        if not joiner.take(position, report):
            rest.append(position)
        longest = max(longest, time.monotonic() - began)
    if work.folder.is_remote and first is not None:
        _help_without_locks(work, joiner, step, longest, order)
    while rest:
        busy = [position for position in rest if not joiner.take(position, report)]
        if busy == rest:
            time.sleep(_POLL_SECONDS)
        rest = busy


def _help_without_locks(work: Work, joiner: Joiner, workers: int, seconds: float, order: random.Random) -> None:
    """Encode shards of workers that are slow or gone, seldom the same as another helper.

    The fewer shards there are that their workers have not come to yet, the fewer of the others help at a time. These
    wait for as long as one of their shards took. If nothing was finished meanwhile, shards that were thought to be in
    progress are probably abandoned: they count as well, and the next time more workers help.
    """
    share, left, all_idle = 1 / workers, _unfinished(work), False
    while left:
        idle = sorted(left if all_idle else {position for position in left if position - workers in left})
        if idle and order.random() < share * len(idle):
            joiner.take(order.choice(idle), lambda *_: None)
            left = _unfinished(work)
            continue
        before, until = left, time.monotonic() + seconds
        while left and time.monotonic() < until:
            time.sleep(max(_POLL_SECONDS, seconds / 20))
            left = _unfinished(work)
        if left == before:
            share, all_idle = 2 * share, True


def _unfinished(work: Work) -> set[int]:
    """The positions of the planned shards that have no record yet; none if another run has ended the plan."""
    there = {f"{FOLDER}/{name}" for name in work.folder.sizes(FOLDER)}
    if PLAN not in there:
        return set()
    return {position for position, shard in enumerate(work.plan.shards) if shard.file("json") not in there}


def finish(work: Work) -> None:
    """List the planned shards, all of which are finished, and remove the plan. All runs that joined do the same."""
    folder, plan = work.folder, work.plan
    records = finished(folder, plan)
    if len(records) == len(plan.shards):
        manifest = merged(work.manifest, plan, records.values(), complete=True)
        data = manifest.to_bytes()
        if folder.replace(MANIFEST, data, work.data) or folder.read(MANIFEST) == data:
            remove_plan(folder, plan, manifest)
            return
    # Another run has finished the plan, or given it up.
    there = {(record.number, record.version) for record in read_manifest(folder)[0].shards}
    before = {(record.number, record.version) for record in work.manifest.shards}
    same = {number for number, _ in there & before}  # written again, a shard may have turned out the same
    if any((shard.number, shard.version) not in there and shard.number not in same for shard in plan.shards):
        raise ArtifactError(f"Another run has changed the plan of {folder}. Run the same command again.")


@contextlib.contextmanager
def explain_write_errors(folder: StoreFolder) -> Iterator[None]:
    """A full disk or a missing permission is an error for the user, not a bug."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DeltaEnergyError):
            raise
        raise ArtifactError(
            f"{folder} cannot be written: {error.strerror or error}. What it has so far is whole: run again to resume."
        ) from error


def usual_shard_size(images: int, patches: bool) -> int:
    """Images per shard: the largest power of two for which there are 128 shards, within bounds."""
    size = 1 << max((images // SHARDS).bit_length() - 1, 0)
    return min(max(size, LEAST_SHARD), MOST_SHARD_WITH_PATCHES if patches else MOST_SHARD)


def _open(folder: StoreFolder, model: EncodesImages, settings: StoreSettings) -> tuple[Manifest, bytes] | None:
    """The manifest of the store and its bytes, if there is a store, and it was made as is asked now."""
    if not folder.exists(MANIFEST):
        return None
    manifest, data = read_manifest(folder)
    Store(folder, manifest).check_model(model)
    asked = {"patches": settings.patches or None, "dtype": settings.dtype, "shard_size": settings.shard_size}
    for name, value in asked.items():
        if value is not None and value != getattr(manifest, name):
            raise InputError(
                f"{folder} was made with {name} = {getattr(manifest, name)}, not {value}: omit {name} to add to it, "
                "or name a new folder."
            )
    return manifest, data


def _create(folder: StoreFolder, model: EncodesImages, settings: StoreSettings, images: int) -> tuple[Manifest, bytes]:
    """An empty store; if another run makes it at the same time, that one's."""
    others = [name.rstrip("/") for name in folder.sizes() if not is_temporary(name.rstrip("/"))]
    if others and MANIFEST not in others:
        raise InputError(f"{folder} is not empty, and not a feature store ({others[0]!r}). Name a new folder.")
    manifest = Manifest(
        model=model.describe(),
        feature_dim=model.feature_dim,
        patches=settings.patches,
        dtype=settings.dtype or "float32",
        shard_size=settings.shard_size or usual_shard_size(images, settings.patches),
        batch_size=settings.batch_size,
        complete=False,
        version=0,
        shards=(),
    )
    data = manifest.to_bytes()
    there = None if folder.put(MANIFEST, data, if_absent=True) else _open(folder, model, settings)
    return there or (manifest, data)


def _clean(folder: StoreFolder, manifest: Manifest, data: bytes) -> Plan | None:
    """The plan that is there; one that is over goes, and so do shards that were written again in an earlier run."""
    folder.tidy()
    folder.tidy(FOLDER)
    try:
        plan = read_plan(folder)
    except ArtifactError:  # it is made again; what it has brought is found by its records
        folder.delete(PLAN)
        plan = None
    if plan is not None and not plan.is_for(data):
        remove_plan(folder, plan, manifest)
        plan = None
    versions = {record.number: record.version for record in manifest.shards}
    for name in folder.sizes():
        if (match := _SHARD_FILE.fullmatch(name)) and int(match[2]) < versions.get(int(match[1]), 0):
            folder.delete(name)
    return plan


def _drop_damaged(folder: StoreFolder, plan: Plan) -> None:
    """Have finished shards of the plan encoded again if their files are not what their records say."""
    records = finished(folder, plan)
    found = find_damage(folder, list(records.values()))
    for position, shard in enumerate(plan.shards):
        if position not in records or records[position].name in found:
            folder.delete(shard.file("json"))


def _give_up(folder: StoreFolder, manifest: Manifest, data: bytes, plan: Plan) -> None:
    """End a plan of other images, unless a run is at work on it; what it has finished stays."""
    if in_use(folder):
        raise InputError(f"Another run ({plan.by}) adds other images to {folder}. Wait for it.")
    _drop_damaged(folder, plan)
    kept = merged(manifest, plan, finished(folder, plan).values(), complete=False)
    kept = replace(kept, version=plan.shards[0].version)
    if folder.replace(MANIFEST, kept.to_bytes(), data):
        remove_plan(folder, plan, kept)
