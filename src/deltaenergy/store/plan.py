"""The plan of a run: which images each new shard will have, fixed before the first is encoded.

    .deltaenergy-plan/plan.json           the shards, and the manifest that the plan was made for
    .deltaenergy-plan/rows-<hash>.arrow   the images of eight shards, a batch of rows each
    .deltaenergy-plan/00012-1.json        the record of a shard that is finished
    .deltaenergy-plan/00012-1.lock        held by the process that encodes the shard

The plan follows from the manifest and the images, so every run over the same images makes the same one: it finds the
plan that is there, and joins. A plan for another manifest than the present one is over. Two runs never write the same
file name for different images, because a plan that is given up takes its version with it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from deltaenergy.data.content import hash_bytes, stamp_of
from deltaenergy.data.items import ImageItem
from deltaenergy.data.references import in_memory, refer
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError
from deltaenergy.files import schema
from deltaenergy.files.artifact import CHECKSUM, check_bytes, json_with_checksum
from deltaenergy.files.reading import parse_json
from deltaenergy.files.schema import Where
from deltaenergy.store.folder import StoreFolder
from deltaenergy.store.shard import (
    SHARD_ENTRIES,
    Manifest,
    ShardRecord,
    each_of,
    read_index,
    read_manifest,
    shard_name,
)

FOLDER = ".deltaenergy-plan"
PLAN = f"{FOLDER}/plan.json"
FORMAT = "deltaenergy plan 2"
# Whoever reads one shard's rows reads the whole file; with one file for each, there would be as many as shards.
SHARDS_PER_FILE = 8
_OURS = re.compile(r"plan\.json|rows-[0-9a-f]{32}\.arrow|\d{5,}-\d+\.(?:json|lock)")
_AGAIN = "Run the same command again: it plans again."
_PLAN_ENTRIES = schema.record(
    {
        "format": schema.text(among=(FORMAT,)),
        "base": schema.text(matching="[0-9a-f]{64}"),
        "by": schema.text(),
        "shards": schema.list_of(schema.list_of(schema.whole(0), length=3)),
        "files": schema.list_of(schema.text(matching="[0-9a-f]{32}")),
        CHECKSUM: schema.text(),
    }
)
_RECORD_ENTRIES = schema.record({**SHARD_ENTRIES, "planned": schema.text(), CHECKSUM: schema.text()})


class PlannedImage(NamedTuple):
    """An image of a planned shard.

    `source` says where it is (`references.py`), None if only this process has it. `row` is its row in a shard that is
    written again, None in a new one. There, `keeps` says that only its label or domain has changed, and an image
    without a `stamp` is taken out.
    """

    id: str
    label: str | None
    domain: str | None
    stamp: str | None
    source: str | None
    row: int | None = None
    keeps: bool = False


class PlannedShard(NamedTuple):
    """A shard to be written, with the number of images to encode for it."""

    number: int
    version: int
    images: int

    @property
    def record_name(self) -> str:
        """The file that says that it is finished."""
        return f"{FOLDER}/{self.number:05d}-{self.version}.json"

    @property
    def lock_name(self) -> str:
        """The lock of the process that encodes it."""
        return f"{FOLDER}/{self.number:05d}-{self.version}.lock"


@dataclass(frozen=True)
class Plan:
    """The shards of a run; `base` is a hash of the manifest that it adds to, `files` those of its lists of images."""

    base: str
    shards: list[PlannedShard]
    files: list[str]
    by: str = ""

    @property
    def row_files(self) -> set[str]:
        """The files that list its images."""
        return {_rows_name(listed) for listed in self.files}

    def rows_of(self, position: int) -> str:
        """What identifies the images of the shard at `position`."""
        return f"{self.files[position // SHARDS_PER_FILE]}:{position % SHARDS_PER_FILE}"

    def is_for(self, manifest: bytes) -> bool:
        """Whether it adds to a manifest with these bytes; else it is over."""
        return self.base == _base(manifest)

    def is_same(self, other: Plan) -> bool:
        """Whether another run may join this one."""
        return (self.base, self.shards, self.files) == (other.base, other.shards, other.files)


class Changes:
    """Goes through the images once and compares them with what the store has.

    Attributes:
        total: images seen so far.
        images: those of them that are to be encoded or changed.
        by_shard: the changed images of the store, by the position of their shard.
        in_memory: the images that only this process has, by id.
    """

    def __init__(self, stream: ImageStream, folder: StoreFolder, manifest: Manifest | None, retry: bool) -> None:
        self._stream, self._retry = stream, retry
        self._known = _Known(folder, () if manifest is None else manifest.shards)
        self.total = self.images = 0
        self.by_shard: dict[int, list[PlannedImage]] = {}
        self.in_memory: dict[str, ImageItem] = {}

    def new_images(self) -> Iterator[PlannedImage]:
        """The images that the store does not have, in order; afterwards `by_shard` is known as well."""
        known = self._known
        failed = dict(known.failed)
        folders: set[str] = set()
        for item in self._stream:
            self.total += 1
            if failed:
                failed.pop(item.id, None)
                _add_folders(item.id, folders)
            stamp, row = stamp_of(item), known.rows.get(item.id)
            if row is None:
                yield self._planned(item, stamp)
            elif not known.is_same(row, item, stamp) or (self._retry and item.id in known.failed):
                shard, inside = known.place(row)
                keeps = known.has_stamp(row, stamp) and item.id not in known.failed
                self.by_shard.setdefault(shard, []).append(self._planned(item, stamp, inside, keeps))
        for name, row in failed.items():
            if name in folders:  # it could not be listed before, and has images now
                shard, inside = known.place(row)
                self.by_shard.setdefault(shard, []).append(PlannedImage(name, None, None, None, None, inside))
        for images in self.by_shard.values():
            images.sort(key=lambda image: image.row or 0)

    def _planned(self, item: ImageItem, stamp: str, row: int | None = None, keeps: bool = False) -> PlannedImage:
        self.images += 1
        if in_memory(item.source) and not keeps:
            self.in_memory[item.id] = item
        return PlannedImage(item.id, item.label, item.domain, stamp, refer(item.source), row, keeps)


class _Known:
    """What a store has of each image, in few bytes: hashes stand for labels, domains and stamps."""

    def __init__(self, folder: StoreFolder, records: Sequence[ShardRecord]) -> None:
        self._ends = np.cumsum([0, *(record.images for record in records)])
        self.rows: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self._same = np.zeros(self._ends[-1], np.int64)
        self._stamps = np.zeros(self._ends[-1], np.int64)
        for start, index in zip(self._ends, each_of(folder, lambda record: read_index(folder, record), records)):
            columns = (index[name].to_pylist() for name in ("id", "label", "domain", "stamp", "error"))
            for row, (name, label, domain, stamp, error) in enumerate(zip(*columns), start=int(start)):
                self.rows[name] = row
                self._same[row], self._stamps[row] = hash((label, domain, stamp)), hash(stamp)
                if error is not None:
                    self.failed[name] = row

    def is_same(self, row: int, item: ImageItem, stamp: str) -> bool:
        return bool(self._same[row] == hash((item.label, item.domain, stamp)))

    def has_stamp(self, row: int, stamp: str) -> bool:
        return bool(self._stamps[row] == hash(stamp))

    def place(self, row: int) -> tuple[int, int]:
        """The position of the shard, and the row in it."""
        shard = int(np.searchsorted(self._ends, row, side="right")) - 1
        return shard, row - int(self._ends[shard])


def draw_up(
    manifest: Manifest,
    data: bytes,
    new_images: Iterator[PlannedImage],
    changes: Changes,
    put: Callable[[str, bytes], object],
) -> Plan:
    """Cut the images into shards, and hand the files that list them to `put`, with their names, as they come."""
    version = manifest.version + 1
    number = max((record.number for record in manifest.shards), default=-1) + 1
    shards: list[PlannedShard] = []
    files: list[str] = []
    lists: list[list[PlannedImage]] = []

    def flush() -> None:
        listed = pack_rows(lists)
        files.append(hash_bytes(listed))
        put(_rows_name(files[-1]), listed)
        lists.clear()

    def add(number: int, images: list[PlannedImage]) -> None:
        shards.append(PlannedShard(number, version, len(images)))
        lists.append(images)
        if len(lists) == SHARDS_PER_FILE:
            flush()

    while images := list(islice(new_images, manifest.shard_size)):
        add(number, images)
        number += 1
    for position, images in sorted(changes.by_shard.items()):
        add(manifest.shards[position].number, images)
    if lists:
        flush()
    by = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    return Plan(_base(data), shards, files, by)


def put_plan(folder: StoreFolder, plan: Plan) -> bool:
    """Write `plan.json`, with which the plan is there; False if there is one already."""
    values = {"format": FORMAT, **asdict(plan), "shards": [list(shard) for shard in plan.shards]}
    return folder.put(PLAN, json_with_checksum(values), if_absent=True)


def read_plan(folder: StoreFolder) -> Plan | None:
    """The plan that is there, if there is one."""
    path = folder.full_name(PLAN)
    try:
        data = folder.read(PLAN)
    except FileNotFoundError:
        return None
    values = parse_json(data, path)
    check_bytes(data, path)
    _PLAN_ENTRIES(values, Where(path))
    return Plan(values["base"], [PlannedShard(*shard) for shard in values["shards"]], values["files"], values["by"])


class PlannedRows:
    """Reads the images of planned shards. The file of the last one is kept: the next is often in it as well."""

    def __init__(self, folder: StoreFolder, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._kept: tuple[str, bytes] | None = None

    def __getitem__(self, position: int) -> list[PlannedImage]:
        listed = self._plan.files[position // SHARDS_PER_FILE]
        if self._kept is None or self._kept[0] != listed:
            name = _rows_name(listed)
            try:
                data = self._folder.read(name)
            except OSError as error:
                raise ArtifactError(f"{self._folder.full_name(name)} cannot be read: {error}. {_AGAIN}") from error
            if hash_bytes(data) != listed:
                raise ArtifactError(f"{self._folder.full_name(name)} is damaged. {_AGAIN}")
            self._kept = listed, data
        return unpack_rows(self._kept[1], position % SHARDS_PER_FILE)


def put_record(folder: StoreFolder, plan: Plan, position: int, record: ShardRecord) -> None:
    """Say that a planned shard is finished."""
    values = {**asdict(record), "planned": plan.rows_of(position)}
    folder.put(plan.shards[position].record_name, json_with_checksum(values), if_absent=True)


def read_record(folder: StoreFolder, plan: Plan, position: int) -> ShardRecord | None:
    """The record of a planned shard, if it is finished; one that is damaged, or of other images, is none."""
    name = plan.shards[position].record_name
    try:
        data = folder.read(name)
        values = parse_json(data, name)
        check_bytes(data, name)
        _RECORD_ENTRIES(values, Where(name))
    except (FileNotFoundError, ArtifactError):
        return None
    if values.pop("planned") != plan.rows_of(position):
        return None
    values.pop(CHECKSUM)
    return ShardRecord(**values)


def finished(folder: StoreFolder, plan: Plan) -> dict[int, ShardRecord]:
    """The records of the planned shards that are finished, by position."""
    names = folder.sizes(FOLDER)
    positions = [i for i, shard in enumerate(plan.shards) if shard.record_name.rpartition("/")[2] in names]
    records = each_of(folder, lambda position: read_record(folder, plan, position), positions)
    return {position: record for position, record in zip(positions, records) if record is not None}


def merged(manifest: Manifest, plan: Plan, records: Iterable[ShardRecord], *, complete: bool) -> Manifest:
    """The manifest with the finished shards of a plan: in the place of those that they replace, or at the end."""
    new = {record.number: record for record in records}
    shards = [new.pop(record.number, record) for record in manifest.shards]
    shards += [new[shard.number] for shard in plan.shards if shard.number in new]
    version = max([manifest.version, *(record.version for record in shards)])
    return replace(manifest, complete=complete, version=version, shards=tuple(shards))


def present(folder: StoreFolder) -> tuple[Manifest, bool]:
    """The manifest, with what a run in progress has finished, and whether there is no such run."""
    manifest, data = read_manifest(folder)
    plan = read_plan(folder)
    if plan is None or not plan.is_for(data):
        return manifest, manifest.complete
    return merged(manifest, plan, finished(folder, plan).values(), complete=False), False


def in_use(folder: StoreFolder) -> bool:
    """Whether a process encodes a shard of the plan, as far as locks show that."""
    for name in folder.sizes(FOLDER):
        if name.endswith(".lock"):
            with folder.lock(f"{FOLDER}/{name}") as held:
                if not held:
                    return True
    return False


def remove_plan(folder: StoreFolder, plan: Plan | None, manifest: Manifest) -> None:
    """Remove a plan that is over, `plan.json` first, and the shards that it left unfinished."""
    if plan is not None:
        listed = {record.name for record in manifest.shards}
        unfinished = {shard_name(shard.number, shard.version) for shard in plan.shards} - listed
        for name in unfinished & folder.sizes().keys():
            folder.delete(name)
    folder.delete(PLAN)
    for name in folder.sizes(FOLDER):
        if _OURS.fullmatch(name):
            folder.delete(f"{FOLDER}/{name}")
    folder.tidy(FOLDER)


def pack_rows(lists: list[list[PlannedImage]]) -> bytes:
    """Lists of images as an Arrow file, a batch of rows each."""
    import pyarrow as pa

    kinds = {"row": pa.int32(), "keeps": pa.bool_()}
    columns = pa.schema([(name, kinds.get(name, pa.string())) for name in PlannedImage._fields])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, columns, options=options) as writer:
        for images in lists:
            arrays = [pa.array(values, kind) for values, kind in zip(zip(*images), columns.types)]
            writer.write_batch(pa.record_batch(arrays, schema=columns))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_rows(data: bytes, position: int) -> list[PlannedImage]:
    """One of the lists in a file that `pack_rows` made."""
    import pyarrow as pa

    batch = pa.ipc.open_file(data).get_batch(position)
    return list(map(PlannedImage._make, zip(*(column.to_pylist() for column in batch.columns))))


def _rows_name(listed: str) -> str:
    return f"{FOLDER}/rows-{listed}.arrow"


def _base(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()


def _add_folders(name: str, folders: set[str]) -> None:
    """Add the folders that an image is in."""
    while name := name.rpartition("/")[0]:
        if name in folders:
            return
        folders.add(name)
