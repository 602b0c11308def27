"""The plan of a run that fills a store: which images each new shard will hold, fixed before the first is encoded.

    .deltaenergy-plan/plan.json         how many images, a digest of them, and the numbers of the shards
    .deltaenergy-plan/00000.parquet     the images of the first shards, a row group each
    .deltaenergy-plan/00012.lock        held by the process that encodes the shard

Any number of processes take shards from it, on any machine that sees the images; each reads the lines of its own
shards only. The plan is written under the store's lock, `plan.json` last, and removed when all shards are there.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from deltaenergy.data.items import hash_bytes
from deltaenergy.errors import ArtifactError
from deltaenergy.files import schema
from deltaenergy.files.artifact import CHECKSUM, check_seal, sealed
from deltaenergy.files.atomic import json_bytes
from deltaenergy.files.reading import parse_json
from deltaenergy.files.schema import Where
from deltaenergy.store.folder import Place
from deltaenergy.store.manifest import Manifest, read_checked, read_manifest
from deltaenergy.store.shards import Shard, committed_shard, part_name

FOLDER = ".deltaenergy-plan"
RECORD = f"{FOLDER}/plan.json"
FORMAT = "deltaenergy plan 1"
# Who reads one shard's lines reads the whole file; with one file for each, there would be as many as shards.
SHARDS_PER_FILE = 8
_MOST_BYTES = 1 << 26
_OURS = re.compile(r"plan\.json|\d{5,}\.(?:parquet|lock)")
_CHECK = schema.record(
    {
        "format": schema.text(among=(FORMAT,)),
        "images": schema.whole(0),
        "shard_size": schema.whole(1),
        "digest": schema.text(matching="[0-9a-f]{32}"),
        "shards": schema.list_of(schema.whole(0)),
        "files": schema.list_of(schema.text(matching="[0-9a-f]{32}")),
        CHECKSUM: schema.text(),
    }
)


class Planned(NamedTuple):
    """One image of a planned shard.

    `stamp`, `content` and `error` are as in the index; without content and error the picture is still to be hashed.
    `brings`: its features are new, and belong into this shard. `before` is a hash of what the store says of the image
    already, if it could not be read. `source` is where it is (`references.py`), None for a picture in memory.
    """

    id: str
    label: str | None
    domain: str | None
    stamp: str
    content: str | None
    error: str | None
    brings: bool
    withdrawn: bool
    before: str | None
    source: str | None


@dataclass(frozen=True)
class Plan:
    """How many images, in shards of which size and numbers; plans of the same images have the same digest."""

    images: int
    shard_size: int
    digest: str
    shards: list[int]
    files: list[str] = field(default_factory=list)  # hashes of the files that list the images

    def size_of(self, position: int) -> int:
        """How many images the shard at `position` tells of."""
        return min(self.shard_size, self.images - position * self.shard_size)


class Digest:
    """A hash of what is known of each image before it is read, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, image: tuple[str | None, ...]) -> None:
        """One more image."""
        self._hash.update(repr(image).encode("utf-8", "backslashreplace"))

    @property
    def text(self) -> str:
        """The hash of those so far."""
        return self._hash.hexdigest()


def write_plan(place: Place, plan: Plan, images: Iterator[Planned]) -> None:
    """Write what each shard will hold; with its last file the plan is there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"brings": pa.bool_(), "withdrawn": pa.bool_()}
    columns = pa.schema([(name, kinds.get(name, pa.string())) for name in Planned._fields])
    files = []
    for first in range(0, len(plan.shards), SHARDS_PER_FILE):
        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, columns) as writer:
            for position in range(first, min(first + SHARDS_PER_FILE, len(plan.shards))):
                rows = list(itertools.islice(images, plan.size_of(position)))
                arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows), columns.types)]
                writer.write_table(pa.table(arrays, schema=columns), row_group_size=len(rows))
        place.replace(_file_name(first), buffer.getvalue())
        files.append(hash_bytes(buffer.getvalue()))
    for _ in images:  # there should be no more; whoever gives them says what is wrong
        pass
    place.replace(RECORD, json_bytes(sealed({"format": FORMAT, **asdict(replace(plan, files=files))})))


def read_plan(place: Place) -> Plan | None:
    """The plan of a run that has not finished, or None if there is none."""
    if not place.has(RECORD):
        return None
    path = place.where(RECORD)
    values = parse_json(read_checked(place, RECORD, _MOST_BYTES), path)
    _CHECK(values, Where(path))
    check_seal(values, path)
    return Plan(**{field.name: values[field.name] for field in fields(Plan)})


def is_whole(place: Place, plan: Plan) -> bool:
    """Whether the files that list its images are as they were written."""
    names = [_file_name(first) for first in range(0, len(plan.shards), SHARDS_PER_FILE)]
    try:
        return [place.checksum(name) for name in names] == plan.files
    except OSError:
        return False


class PlanReader:
    """Reads the lines of planned shards. The file of the last one is kept: the next is mostly in it, too."""

    def __init__(self, place: Place, plan: Plan) -> None:
        self._place, self._plan = place, plan
        self._open: tuple[str, Any] | None = None

    def images(self, position: int) -> list[Planned]:
        """What the shard at `position` of the plan will hold."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = _file_name(position)
        try:
            if self._open is None or self._open[0] != name:
                self._open = (name, pq.ParquetFile(pa.BufferReader(self._place.read(name))))
            table = self._open[1].read_row_group(position % SHARDS_PER_FILE, use_threads=False)
            columns = [table.column(name).to_pylist() for name in Planned._fields]
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise ArtifactError(f"{self._place.where(name)} cannot be read: {error}. {_AGAIN}") from error
        rows = list(map(Planned._make, zip(*columns)))
        if len(rows) != self._plan.size_of(position):
            raise ArtifactError(f"{self._place.where(name)} does not fit {RECORD}. {_AGAIN}")
        return rows


def committed(place: Place, plan: Plan) -> Iterator[Shard]:
    """The shards of the plan that are there."""
    present = set(place.names())
    for number in plan.shards:
        if part_name(number, "index") in present:
            yield committed_shard(place, number)


def read_present(place: Place) -> Manifest:
    """The manifest; of a store that is being filled, with the planned shards that are there already."""
    manifest = read_manifest(place)
    if manifest.record.complete or (plan := read_plan(place)) is None:
        return manifest
    listed = {record.number for record in manifest.shards}
    more = [shard.record for shard in committed(place, plan) if not shard.idle and shard.number not in listed]
    return replace(manifest, shards=sorted([*manifest.shards, *more], key=lambda record: record.number))


def remove_plan(place: Place) -> None:
    """Remove the plan, its record first, and whatever else of ours lies with it."""
    place.remove(RECORD)
    names = place.names(FOLDER)
    for name in names:
        if _OURS.fullmatch(name):
            place.remove(f"{FOLDER}/{name}")
    if names:
        place.tidy(FOLDER)
    place.remove_folder(FOLDER)


def lock_name(number: int) -> str:
    """The lock of a shard that is being encoded."""
    return f"{FOLDER}/{number:05d}.lock"


def free_numbers(taken: Iterable[int], count: int) -> list[int]:
    """The first numbers for new shards. A damaged shard's number is free: repaired, it is the same file again."""
    used, number = set(taken), 0
    found: list[int] = []
    while len(found) < count:
        if number not in used:
            found.append(number)
        number += 1
    return found


def _file_name(position: int) -> str:
    return f"{FOLDER}/{position // SHARDS_PER_FILE:05d}.parquet"


_AGAIN = "Run `deltaenergy features` again with the same images: it plans anew."
