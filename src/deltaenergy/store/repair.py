"""Encode the damaged shards of a feature store again, each under its own name.

A shard is given up only if every image that it had is among those given now: nothing is dropped unseen. A repaired
shard has the bytes that it had, unless it was written again for a changed image before, or its images have changed:
then its rows are right, and its record is replaced as well.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_strings
from deltaenergy.store.encode import EncodesImages, ShardEncoder
from deltaenergy.store.folder import StoreFolder, open_folder
from deltaenergy.store.plan import PlannedImage
from deltaenergy.store.shard import MANIFEST, Manifest, find_damage, pack_shard, read_index, read_manifest
from deltaenergy.store.store import Store
from deltaenergy.store.writer import explain_write_errors


def repair(
    model: EncodesImages, stream: ImageStream, path: str | Path, *, progress: Progress | None = None
) -> list[str]:
    """Read every byte of the store at `path`, and encode its damaged shards again from the images of a stream.

    Returns the names of the files that were damaged.
    """
    folder = open_folder(path)
    manifest, data = read_manifest(folder)
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
            index, arrays = ShardEncoder(model, Store(folder, manifest), in_memory, held).encode(planned)
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
    elsewhere: set[str] = set()
    nameless: list[int] = []
    for position, record in enumerate(manifest.shards):
        try:
            ids = read_index(folder, record)["id"].to_pylist()
        except ArtifactError:
            nameless.append(position)
            continue
        elsewhere.update(ids)
        if position in damaged:
            names[position] = ids
    wanted = {name for ids in names.values() for name in ids}
    given = {item.id: item for item in stream if item.id in wanted or (nameless and item.id not in elsewhere)}
    unknown = iter([name for name in given if name not in elsewhere])
    for position in nameless:
        record = manifest.shards[position]
        names[position] = list(islice(unknown, record.images))
        if hash_strings(names[position]) != record.ids:
            raise ArtifactError(
                f"The index of {folder.full_name(record.name)} is damaged, and the {record.images} images that it "
                "names are not those given. Give exactly the images that the store was made from, in the same order, "
                "or make a new store."
            )
    for position, ids in names.items():
        if lost := [name for name in ids if name not in given]:
            raise ArtifactError(
                f"{folder.full_name(manifest.shards[position].name)} is damaged, and {len(lost)} of its images are not "
                f"among those given, such as {lost[0]}. Give them as well, or make a new store."
            )
    return {position: [given[name] for name in ids] for position, ids in names.items()}
