"""`store.json`: what made a feature store, and every part of it with its size and checksum.

A shard counts when the manifest lists it. Each value is checked when the manifest is read: its type and its range. The
manifest's last entry is a checksum of the rest, so that no change to it goes unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from deltaenergy.data.remote.url import is_url, may_be_folder
from deltaenergy.errors import ArtifactError
from deltaenergy.files import schema
from deltaenergy.files.artifact import CHECKSUM, check_seal, sealed
from deltaenergy.files.atomic import json_bytes
from deltaenergy.files.reading import parse_json
from deltaenergy.files.schema import Where
from deltaenergy.store.folder import Place, place_at

FORMAT = "deltaenergy feature store 2"
DTYPES = {"float32": 4, "float16": 2}
RECORD = "store.json"
# Ten thousand shards take about eight megabytes.
_MOST_BYTES = 1 << 28

_PART = schema.record({"bytes": schema.whole(1), "checksum": schema.text(matching="[0-9a-f]{32}")})
_SHARD = schema.record(
    {
        "number": schema.whole(0),
        "images": schema.whole(0),
        "rows": schema.whole(0),
        "unreadable": schema.whole(0),
        "ids": schema.text(matching="[0-9a-f]{16}"),
        "files": schema.record({"features": _PART, "patches": _PART, "index": _PART}, may_lack=["patches"]),
    }
)
_MANIFEST = schema.record(
    {
        "format": schema.text(),
        "model": schema.record({"name": schema.path_text(), "fingerprint": schema.text()}, others=True),
        "feature_dim": schema.whole(1),
        "patches": schema.truth(),
        "dtype": schema.text(among=DTYPES),
        "shard_size": schema.whole(1),
        "complete": schema.truth(),
        "shards": schema.list_of(_SHARD),
        CHECKSUM: schema.text(),
    }
)


@dataclass(frozen=True)
class StoreRecord:
    """What made the store, and whether the last run that filled it finished."""

    model: dict[str, Any]
    feature_dim: int
    patches: bool
    dtype: str
    shard_size: int
    complete: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """The arrays of each shard."""
        return ("features", "patches") if self.patches else ("features",)


@dataclass(frozen=True)
class FileRecord:
    """One file of a shard: its size and the hash of its bytes."""

    bytes: int
    checksum: str


@dataclass(frozen=True)
class ShardRecord:
    """One shard: how many images it tells of, how many have features here, how many could not be read, a hash of the
    images' ids in order, and its files by kind (`features`, `patches`, `index`).
    """

    number: int
    images: int
    rows: int
    unreadable: int
    ids: str
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Manifest:
    """The content of `store.json`."""

    record: StoreRecord
    shards: list[ShardRecord]


def is_store(path: object) -> bool:
    """Whether `path` names a folder that holds a feature store."""
    if isinstance(path, str) and is_url(path) and not may_be_folder(path):
        return False
    return isinstance(path, str | Path) and place_at(path).has(RECORD)


def read_manifest(place: Place) -> Manifest:
    """What `store.json` says, or an `ArtifactError` that names the wrong entry."""
    if not place.exists():
        raise ArtifactError(
            f"{str(place)!r} is not a folder. A feature store is a folder written by `deltaenergy features`."
        )
    path = place.where(RECORD)
    data = read_checked(place, RECORD, _MOST_BYTES)
    values = parse_json(data, path)
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        raise ArtifactError(
            f"{path} is not of the format that this version reads ({FORMAT}): run `deltaenergy features` with the same "
            "images and a new folder."
        )
    _MANIFEST(values, Where(path))
    check_seal(values, path)
    # The seal is of the values. Written otherwise, if only by a byte less at the end, they are not what we wrote.
    if data != json_bytes(values):
        raise ArtifactError(f"{path} was changed after it was written. Make the store anew in another folder.")
    record = StoreRecord(**{field.name: values[field.name] for field in fields(StoreRecord)})
    return Manifest(record, [_shard(value) for value in values["shards"]])


def write_manifest(place: Place, record: StoreRecord, shards: Sequence[ShardRecord]) -> None:
    """Write `store.json`, all or nothing."""
    ordered = sorted(shards, key=lambda shard: shard.number)
    values = {"format": FORMAT, **asdict(record), "shards": [asdict(shard) for shard in ordered]}
    place.replace(RECORD, json_bytes(sealed(values)))


def read_checked(place: Place, name: str, limit: int) -> bytes:
    """A record's bytes, at most `limit`; whatever is in the way is an `ArtifactError`."""
    if (reason := place.why_not(name)) is not None:
        raise ArtifactError(f"{place.where(name)} cannot be read: {reason}.")
    try:
        if (size := place.size(name)) > limit:
            raise ArtifactError(
                f"{place.where(name)} is too large: {size:,} bytes, where at most {limit:,} are expected."
            )
        return place.read(name)
    except OSError as error:
        raise ArtifactError(f"{place.where(name)} cannot be read: {error.strerror or error}.") from error


def _shard(values: dict[str, Any]) -> ShardRecord:
    files = {kind: FileRecord(**part) for kind, part in values["files"].items()}
    return ShardRecord(**{**values, "files": files})
