"""Make and repair feature stores: in this process, in several, or on a Ray cluster.

build_store(model, "photos/", "photos.store")
build_store(model, "photos/", "photos.store", workers=4)
build_store(model, "s3://bucket/photos/", "s3://bucket/photos.store", ray="auto")
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import hash_strings
from deltaenergy.source import require_images
from deltaenergy.store.encode import EncodesImages, ShardEncoder
from deltaenergy.store.folder import StoreFolder, open_folder
from deltaenergy.store.plan import PlannedImage
from deltaenergy.store.shard import MANIFEST, Manifest, find_damage, pack_shard, read_index, read_manifest
from deltaenergy.store.store import Describes, Store
from deltaenergy.store.writer import Join, StoreSettings, explain_write_errors, fill_store


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
    join: Join | None = None
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

    All images of a damaged shard must be among them; otherwise this is an `ArtifactError`, and nothing is changed. A
    repaired shard has the bytes that it had, unless it was written again for a changed image before, or its images have
    changed: then its rows are right, and its record is replaced as well.

    Returns the names of the files that were damaged. Without `model`, the one that the store records is loaded.
    """
    folder = open_folder(path)
    manifest, data = read_manifest(folder)
    if model is None:
        from deltaenergy.models.loading.load import load_recorded

        model = load_recorded(manifest.model, device)
    encoder, stream = _encoder(model), require_images(images, "repair_store")
    Store(folder, manifest).check_model(model)
    found = find_damage(folder, manifest.shards, features=True)
    damaged = [position for position, record in enumerate(manifest.shards) if record.name in found]
    images = _images_of(folder, manifest, damaged, stream) if damaged else {}
    with explain_write_errors(folder):
        folder.tidy()
        for done, position in enumerate(damaged, start=1):
            before, items = manifest.shards[position], images[position]
            planned = [PlannedImage.of(item) for item in items]
            # The shards before it are sound by now, and it takes nothing from later ones.
            held, in_memory = min(before.held, position), {item.id: item for item in items}
            index, arrays = ShardEncoder(encoder, Store(folder, manifest), in_memory, held).encode(planned)
            record, file = pack_shard(before.number, before.version, before.held, index, arrays)
            folder.put(record.name, file)
            if record != before:
                shards = (*manifest.shards[:position], record, *manifest.shards[position + 1 :])
                manifest = replace(manifest, shards=shards)
                if not folder.replace(MANIFEST, manifest.to_bytes(), data):
                    raise ArtifactError(f"Another run has changed {folder} meanwhile. Repair it again.")
                data = manifest.to_bytes()
            if progress is not None:
                progress(done, len(damaged))
    return list(found)


def _images_of(
    folder: StoreFolder, manifest: Manifest, damaged: list[int], stream: ImageStream
) -> dict[int, list[ImageItem]]:
    """The images of each damaged shard, in order.

    With a damaged index their names are gone as well, but for a hash of them: they must be the first of those given
    that no other shard has, in the same order.
    """
    names: dict[int, list[str]] = {}
    for position, record in enumerate(manifest.shards):
        with contextlib.suppress(ArtifactError):
            names[position] = read_index(folder, record)["id"].to_pylist()
    known = {name for ids in names.values() for name in ids}
    wanted = {name for position in damaged for name in names.get(position, ())}
    some_are_lost = len(names) < len(manifest.shards)
    given = {item.id: item for item in stream if item.id in wanted or (some_are_lost and item.id not in known)}
    unknown = (name for name in given if name not in known)
    for position in damaged:
        record = manifest.shards[position]
        ids = names.setdefault(position, list(islice(unknown, record.images)))
        lost = [name for name in ids if name not in given]
        if lost or hash_strings(ids) != record.ids:
            reason = f"the {record.images} images that its index named are not those given"
            if lost:
                reason = f"{len(lost)} of its images are not among those given, such as {lost[0]}"
            raise ArtifactError(
                f"{folder.full_name(record.name)} is damaged, and {reason}. Give exactly the images that the store was "
                "made from, in the same order, or make a new store."
            )
    return {position: [given[name] for name in names[position]] for position in damaged}


def _encoder(model: Describes) -> EncodesImages:
    if not isinstance(model, EncodesImages):
        raise InputError(
            f"A feature store encodes images, but {model.describe()['name']!r} has precomputed features only. Load the "
            "model itself with load_model."
        )
    return model
