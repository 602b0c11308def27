"""The plan of a run: which images each new shard will have, fixed before the first is encoded.

    .deltaenergy-plan/plan.json           the shards, and the manifest that the plan was made for
    .deltaenergy-plan/rows-<hash>.json.z  the images of a shard
    .deltaenergy-plan/00012-1.json        the record of a shard that is finished
    .deltaenergy-plan/00012-1.lock        held by the process that encodes the shard

The plan follows from the manifest and the images, so every run over the same images makes the same one: it finds the
plan that is there, and joins. A plan for another manifest than the present one is over. Two runs never write the same
file name for different images, because a plan that is given up takes its version with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Annotated, Any, NamedTuple

from deltaenergy.data.items import ImageItem, change_stamp, hash_bytes, to_reference
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError
from deltaenergy.files import schema
from deltaenergy.files.artifact import CHECKSUM, check_bytes, json_with_checksum
from deltaenergy.files.reading import parse_json
from deltaenergy.store.folder import StoreFolder
from deltaenergy.store.shard import Manifest, ShardRecord, each_of, read_index, read_manifest, shard_name

FOLDER = ".deltaenergy-plan"
PLAN = f"{FOLDER}/plan.json"
FORMAT = "deltaenergy plan 3"
_OURS = re.compile(r"plan\.json|rows-[0-9a-f]{32}\.json\.z|\d{5,}-\d+\.(?:json|lock)")


class PlannedImage(NamedTuple):
    """An image of a planned shard.

    `source` says where it is (`to_reference`), None if only this process has it. `row` is its row in a shard that is
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

    @classmethod
    def of(cls, item: ImageItem) -> PlannedImage:
        """An image as it is now."""
        return cls(item.id, item.label, item.domain, change_stamp(item), to_reference(item))


@dataclass(frozen=True)
class PlannedShard:
    """A shard to be written, the number of images to encode for it, and a hash of the file that lists them."""

    number: Annotated[int, schema.whole(0)]
    version: Annotated[int, schema.whole(1)]
    images: Annotated[int, schema.whole(1)]
    rows: Annotated[str, schema.text(matching="[0-9a-f]{32}")]

    def file(self, ending: str) -> str:
        """Its record or lock in the folder of the plan."""
        return f"{FOLDER}/{self.number:05d}-{self.version}.{ending}"

    @property
    def rows_file(self) -> str:
        """The file that lists its images: two runs never write different lists under one name."""
        return f"{FOLDER}/rows-{self.rows}.json.z"


@dataclass(frozen=True)
class Plan:
    """The shards of a run; `base` is a hash of the manifest that it adds to, and `by` says whose run it is."""

    base: Annotated[str, schema.text(matching="[0-9a-f]{64}")]
    by: Annotated[str, schema.text()]
    shards: Annotated[list[PlannedShard], schema.list_of(schema.record(schema.checks_of(PlannedShard)), least=1)]

    def is_for(self, manifest: bytes) -> bool:
        """Whether it adds to a manifest with these bytes; else it is over."""
        return self.base == hashlib.sha256(manifest).hexdigest()


class Changes:
    """Goes through the images once and compares them with what the store has.

    Attributes:
        total: images seen so far.
        images: those of them that are to be encoded or changed.
        by_shard: the changed images of the store, by the position of their shard.
        in_memory: the images that only this process has, by id.
    """

    def __init__(self, stream: ImageStream, folder: StoreFolder, records: Sequence[ShardRecord], retry: bool) -> None:
        self._stream, self._retry = stream, retry
        self.total = self.images = 0
        self.by_shard: dict[int, list[PlannedImage]] = {}
        self.in_memory: dict[str, ImageItem] = {}
        # Of each image the position of its shard, its row there, and hashes that stand for its stamp, label and domain.
        self._known: dict[str, tuple[int, int, int, int]] = {}
        self._failed: set[str] = set()
        for shard, index in enumerate(each_of(folder, lambda record: read_index(folder, record), records)):
            columns = (index[name].to_pylist() for name in ("id", "label", "domain", "stamp", "error"))
            for row, (name, label, domain, stamp, error) in enumerate(zip(*columns)):
                self._known[name] = shard, row, hash(stamp), hash((label, domain))
                if error is not None:
                    self._failed.add(name)

    def new_images(self) -> Iterator[PlannedImage]:
        """The images that the store does not have, in order; afterwards `by_shard` is known as well."""
        missing, folders = set(self._failed), set[str]()
        for item in self._stream:
            self.total += 1
            if self._failed:
                missing.discard(item.id)
                _add_folders(item.id, folders)
            planned, failed = PlannedImage.of(item), item.id in self._failed
            if item.id in self._known:
                _, _, stamp, label = self._known[item.id]
                same_stamp, same_label = stamp == hash(planned.stamp), label == hash((item.label, item.domain))
                if same_stamp and same_label and not (failed and self._retry):
                    continue
                planned = planned._replace(keeps=same_stamp and not failed)
                self._change(planned)
            self.images += 1
            if planned.source is None and not planned.keeps:
                self.in_memory[item.id] = item
            if item.id not in self._known:
                yield planned
        for name in missing & folders:  # it could not be listed before, and has images now
            self._change(PlannedImage(name, None, None, None, None))
        for images in self.by_shard.values():
            images.sort(key=lambda image: image.row or 0)

    def _change(self, image: PlannedImage) -> None:
        shard, row, *_ = self._known[image.id]
        self.by_shard.setdefault(shard, []).append(image._replace(row=row))


def draw_up(
    manifest: Manifest,
    data: bytes,
    new_images: Iterator[PlannedImage],
    changes: Changes,
    put: Callable[[str, bytes], object],
) -> Plan:
    """Cut the images into shards, and hand the files that list them to `put`, with their names, as they come."""
    number = max((record.number for record in manifest.shards), default=-1) + 1
    shards: list[PlannedShard] = []

    def add(number: int, images: list[PlannedImage]) -> None:
        rows = pack_rows(images)
        shards.append(PlannedShard(number, manifest.version + 1, len(images), hash_bytes(rows)))
        put(shards[-1].rows_file, rows)

    while images := list(islice(new_images, manifest.shard_size)):
        add(number, images)
        number += 1
    for position, images in sorted(changes.by_shard.items()):
        add(manifest.shards[position].number, images)
    by = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    return Plan(hashlib.sha256(data).hexdigest(), by, shards)


def put_plan(folder: StoreFolder, plan: Plan) -> bool:
    """Write `plan.json`, with which the plan is there; False if there is one already."""
    return folder.put(PLAN, json_with_checksum({"format": FORMAT, **asdict(plan)}), if_absent=True)


def read_plan(folder: StoreFolder) -> Plan | None:
    """The plan that is there, if there is one."""
    try:
        values = _read_checked(folder, PLAN, {"format": schema.text(among=(FORMAT,)), **schema.checks_of(Plan)})
    except FileNotFoundError:
        return None
    return Plan(values["base"], values["by"], [PlannedShard(**shard) for shard in values["shards"]])


def read_rows(folder: StoreFolder, shard: PlannedShard) -> list[PlannedImage]:
    """The images of a planned shard."""
    name = shard.rows_file
    try:
        data = folder.read(name)
        if hash_bytes(data) != shard.rows:
            raise OSError("it is damaged")
    except OSError as error:
        raise ArtifactError(f"{folder.full_name(name)} cannot be read: {error}. Run the same command again.") from error
    return unpack_rows(data)


def put_record(folder: StoreFolder, shard: PlannedShard, record: ShardRecord) -> None:
    """Say that a planned shard is finished."""
    folder.put(shard.file("json"), json_with_checksum({**asdict(record), "rows": shard.rows}), if_absent=True)


def finished(folder: StoreFolder, plan: Plan) -> dict[int, ShardRecord]:
    """The records of the finished shards, by position. One that is damaged, or of other images, counts as none."""
    names, checks = folder.sizes(FOLDER), {**schema.checks_of(ShardRecord), "rows": schema.text()}

    def read(position: int) -> ShardRecord | None:
        shard = plan.shards[position]
        try:
            values = _read_checked(folder, shard.file("json"), checks)
        except (FileNotFoundError, ArtifactError):
            return None
        return ShardRecord(**values) if values.pop("rows") == shard.rows else None

    there = [i for i, shard in enumerate(plan.shards) if shard.file("json").rpartition("/")[2] in names]
    return {i: record for i, record in zip(there, each_of(folder, read, there)) if record is not None}


def merged(manifest: Manifest, plan: Plan, records: Iterable[ShardRecord], *, complete: bool) -> Manifest:
    """The manifest with the finished shards of a plan: each where the one was that it replaces, or at the end."""
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
    """Remove a plan that is over, `plan.json` first, the shards that it left unfinished, and what dead workers left."""
    if plan is not None:
        planned = {shard_name(shard.number, shard.version) for shard in plan.shards}
        for name in (planned - {record.name for record in manifest.shards}) & folder.sizes().keys():
            folder.delete(name)
    folder.delete(PLAN)
    for name in folder.sizes(FOLDER):
        if _OURS.fullmatch(name):
            folder.delete(f"{FOLDER}/{name}")
    folder.tidy(FOLDER)
    folder.tidy()


def pack_rows(images: Sequence[PlannedImage]) -> bytes:
    """A list of images as compressed JSON."""
    return zlib.compress(json.dumps(images).encode())


def unpack_rows(data: bytes) -> list[PlannedImage]:
    """The list in a file that `pack_rows` made."""
    return [PlannedImage(*image) for image in json.loads(zlib.decompress(data))]


def _read_checked(folder: StoreFolder, name: str, checks: dict[str, schema.Check]) -> dict[str, Any]:
    """The entries of a JSON file with a checksum."""
    data, path = folder.read(name), folder.full_name(name)
    values: dict[str, Any] = parse_json(data, path)
    check_bytes(data, path)
    schema.record({**checks, CHECKSUM: schema.text()})(values, schema.Where(path))
    return {name: values[name] for name in checks}


def _add_folders(name: str, folders: set[str]) -> None:
    """Add the folders that an image is in."""
    while name := name.rpartition("/")[0]:
        if name in folders:
            return
        folders.add(name)
