"""Fill a feature store: plan its new shards, encode them, and list them when all are there.

The plan is fixed before the start. Which images are still to be done follows from the shards that the store lists, so a
run that was killed finds its plan again, goes on with it, and ends with the same bytes as one that was not. Several
runs over the same images share the plan and its shards.
"""

from __future__ import annotations

from pathlib import Path

from deltaenergy.core.progress import Progress
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.files.atomic import is_temporary
from deltaenergy.files.locks import NAME as LOCK
from deltaenergy.store.encoder import Describes, Encoder, require_encoder
from deltaenergy.store.filling import Fill, Filled, InThisProcess, Task, said_if_impossible
from deltaenergy.store.folder import Place, place_at
from deltaenergy.store.holding import Hold
from deltaenergy.store.manifest import DTYPES, RECORD, Manifest, StoreRecord, read_manifest, write_manifest
from deltaenergy.store.plan import FOLDER
from deltaenergy.store.run import JustFinished, Run
from deltaenergy.store.store import check_same_model
from deltaenergy.store.to_do import LIMITS, PlanLimits, stored_already

__all__ = ["Fill", "Filled", "Task", "fill_store"]

SHARD_SIZE = 1024
# A ViT-B/16 has 196 patches: 128 images of them are 50 MB in float32.
SHARD_SIZE_WITH_PATCHES = 128
# The manifest lists every shard in some 700 bytes: with more it would be slow to open.
MOST_SHARDS = 100_000
_ATTEMPTS = 5


def fill_store(
    model: Describes,
    stream: ImageStream,
    out: str | Path,
    *,
    patches: bool = False,
    dtype: str | None = None,
    shard_size: int | None = None,
    retry_unreadable: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
    fill: Fill | None = None,
    limits: PlanLimits = LIMITS,
) -> None:
    """Encode a stream's images into the store at `out`, as `build_store` says, in memory that does not grow with them.

    `limits` say how much is held in memory while the run is planned.
    """
    place, encoder = place_at(out), require_encoder(model)
    if stream.stored:
        raise stored_already()
    for attempt in range(_ATTEMPTS):
        with Hold(place) as hold:
            manifest = _open_or_create(place, encoder, patches, dtype, shard_size, stream)
            run = Run(place, manifest, stream, retry_unreadable, hold, limits)
            try:
                plan = run.plan()
                if plan is not None:
                    task = Task(place, manifest.record, plan, batch_size, run.todo.in_memory)
                    run.fill(task, fill or InThisProcess(encoder), progress)
                return
            except JustFinished:
                if attempt == _ATTEMPTS - 1:
                    raise hold.busy() from None


def _open_or_create(
    place: Place, model: Encoder, patches: bool, dtype: str | None, shard_size: int | None, stream: ImageStream
) -> Manifest:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"Unknown dtype {dtype!r}.{did_you_mean(dtype, DTYPES)}")
    if shard_size is not None and shard_size < 1:
        raise InputError(f"shard_size must be at least 1, got {shard_size}.")
    if not place.has(RECORD):
        others = [name for name in place.names() if name not in (LOCK, FOLDER) and not is_temporary(name)]
        if others:
            raise InputError(f"{place} is not empty and holds no feature store (but {others[0]!r}). Name a new folder.")
        size = shard_size or usual_shard_size(stream.survey(), patches)
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
