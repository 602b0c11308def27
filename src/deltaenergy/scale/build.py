"""Make and repair feature stores: in this process, in several, or on a Ray cluster.

build_store(model, "photos/", "photos.store")
build_store(model, "photos/", "photos.store", workers=4)
build_store(model, "s3://bucket/photos/", "s3://bucket/photos.store", ray="auto")
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from deltaenergy.core.progress import Progress
from deltaenergy.errors import InputError
from deltaenergy.source import require_images
from deltaenergy.store.encode import EncodesImages
from deltaenergy.store.folder import open_folder
from deltaenergy.store.repair import repair
from deltaenergy.store.shard import read_manifest
from deltaenergy.store.store import Describes, Store
from deltaenergy.store.writer import Join, ShardProgress, StoreSettings, Work, fill_store, join_here


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
    workers: int | None = None,
    ray: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Store:
    """Encode `images` into the store at `out`, which is created, or resumed and added to.

    Images that the store has are not encoded again; a file whose bytes changed is. Images with equal bytes are encoded
    once within a shard, and not at all if the store had them before. Several runs with the same images share the work,
    wherever they run.

    Args:
        model: the model; a store of a different model is an error.
        images: whatever counts as images. An image is known by its id, and replaces an earlier one of that id.
        out: the store's folder, or its URL in cloud storage.
        patches: store patch features as well (P times as large).
        dtype: `float32` (default) or `float16`.
        shard_size: images per shard; a kill costs at most the shard in progress. By default it follows from the number
            of images of the first run, and is at most 1,024, or 128 with patches.
        retry_unreadable: try images again that could not be read before.
        batch_size: images per pass of the image encoder. A store keeps the one of its first run.
        workers: number of processes; with `ray`, of actors. By default this process does the work, on all cores.
        ray: a Ray cluster: `local` starts Ray on this machine, `auto` uses the running one, or HOST:PORT.
        device: where workers run the model, as `load_model` takes it.
        progress: called with (done, total) images.
    """
    encoder = _encoder(model)
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}.")
    join: Join = functools.partial(_join_here, encoder)
    if ray is not None:
        from deltaenergy.scale.ray import Cluster, join_on_ray

        join = functools.partial(join_on_ray, cluster=Cluster(ray, workers, device))
    elif workers is not None:
        from deltaenergy.scale.workers import join_with_workers

        join = functools.partial(join_with_workers, count=workers, device=device)
    settings = StoreSettings(patches, dtype, shard_size, batch_size)
    stream = require_images(images, "build_store")
    return fill_store(encoder, stream, out, settings, retry_unreadable=retry_unreadable, progress=progress, join=join)


def repair_store(
    path: str | Path,
    images: Any,
    *,
    model: Describes | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[str]:
    """Read every byte of the store at `path`, and encode its damaged shards again from `images`.

    All images of a damaged shard must be among them; otherwise this is an `ArtifactError`, and nothing is changed.
    Returns the names of the files that were damaged. Without `model`, the one that the store records is loaded.
    """
    if model is None:
        from deltaenergy.models.loading.load import load_recorded

        model = load_recorded(read_manifest(open_folder(path))[0].model, device)
    return repair(_encoder(model), require_images(images, "repair_store"), path, progress=progress)


def _encoder(model: Describes) -> EncodesImages:
    if not isinstance(model, EncodesImages):
        raise InputError(
            f"A feature store encodes images, but {model.describe()['name']!r} has precomputed features only. Load the "
            "model itself with load_model."
        )
    return model


def _join_here(model: EncodesImages, work: Work, progress: Progress | None) -> None:
    first, step = place_in_array()
    join_here(work, model, first=first, step=step, report=ShardProgress(work, progress))


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
