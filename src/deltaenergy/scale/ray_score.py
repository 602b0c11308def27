"""`score` on Ray: one task a part of the images, each part's verdicts a file; the parts are read in order at the end.

A part is a shard of a feature store, or a window of images. Its file lies in a folder of ours beside the output, named
for the output and for what was asked; a run that ended early finds there what the next one need not do again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy import __version__
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress, stage
from deltaenergy.data.items import ImageItem, Unreadable, change_stamp
from deltaenergy.detector.opening import DetectorSource
from deltaenergy.detector.score import list_images
from deltaenergy.detector.verdict import Counts, verdict_columns
from deltaenergy.detector.verdict_files import write_table
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError
from deltaenergy.files import hash_strings, hash_value, replacing
from deltaenergy.files.locks import FolderLock
from deltaenergy.models.encoding import STORED_BATCH
from deltaenergy.models.on import On
from deltaenergy.scale.ray_cluster import Failed, check_device, connected
from deltaenergy.scale.verdict_columns import with_errors
from deltaenergy.store.folder import place_at
from deltaenergy.store.manifest import Manifest
from deltaenergy.store.plan import read_present
from deltaenergy.store.store import FeatureStore, StoredImage
from deltaenergy.store.store_pass import StorePass, pass_over

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.detector.detector import Detector

# Images of a window: so many batches of the image tower, whatever the number of actors, so that each run finds the
# parts of the one before.
WINDOW_BATCHES = 16


@dataclass(frozen=True)
class ScorePart:
    """Some consecutive images: a shard of a store, a stretch of a store's images, or a list of pictures."""

    name: str
    images: int
    shard: StorePass | None = None
    stretch: tuple[str, int, int] | None = None
    items: tuple[ImageItem, ...] = ()


@dataclass(frozen=True)
class Request:
    """What decides a verdict, and where the parts lie."""

    detector: str
    version: str
    folder: str
    device: str
    batch_size: int
    top_k: int
    working_folder: str = field(default_factory=os.getcwd)


class PartScorer:
    """An actor: loads the detector once, and writes the verdicts of one part after the other."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._detector: Detector | None = None
        self._stored: dict[str, list[ImageItem]] = {}

    def prepare(self) -> str | Failed:
        """Load the detector, as each task would."""
        try:
            self._load()
        except DeltaEnergyError as error:
            return Failed.of(error)
        return __version__

    def work(self, part: ScorePart) -> ScorePart | Failed:
        """Score a part, unless its file is there."""
        path = Path(self._request.folder) / part.name
        try:
            if not path.is_file():
                self._write(path, part)
        except (OSError, DeltaEnergyError) as error:
            return Failed.of(error)
        return replace(part, shard=None, stretch=None, items=())

    def close(self) -> None:
        """Nothing is held."""

    def _load(self) -> Detector:
        if self._detector is None:
            import torch

            from deltaenergy.detector.detector import Detector
            from deltaenergy.detector.saved import version_of

            request = self._request
            # Relative paths of images mean what they mean to the process that listed them.
            with _said(f"the folder {request.working_folder}"):
                os.chdir(request.working_folder)
            if request.device == "cpu":
                torch.set_num_threads(1)  # as many processes as cores compute side by side
            with _said(f"the detector {request.detector}"):
                detector = Detector.load(request.detector, device=request.device).prepare()
            if version_of(detector) != request.version:
                raise ArtifactError(f"{request.detector} is another detector for a worker than where the run started.")
            self._detector = detector
        return self._detector

    def _write(self, path: Path, part: ScorePart) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        detector, request = self._load(), self._request
        stream = detector.stream(
            self._images(part), top_k=request.top_k, batch_size=request.batch_size, progress=_silent
        )
        table = pa.concat_tables(with_errors(verdicts) for verdicts in stream.batches())
        if not path.parent.is_dir():  # removed meanwhile: another run has finished
            raise ArtifactError(f"The folder of parts {path.parent} is gone.")
        with replacing(path) as temporary, temporary.open("wb") as file:
            pq.write_table(table, file)

    def _images(self, part: ScorePart) -> Any:
        if part.shard is not None:
            return part.shard
        if part.stretch is None:
            return list(part.items)
        folder, start, stop = part.stretch
        if folder not in self._stored:
            self._stored[folder] = FeatureStore.open(folder).items()
        return self._stored[folder][start:stop]


@dataclass(frozen=True)
class RayScored:
    """What `write_on_ray` did."""

    detector: Detector
    counts: Counts
    unreadable: list[Unreadable]


def write_on_ray(
    folder: str,
    images: Any,
    out: Path,
    *,
    address: str = "local",
    workers: int | None = None,
    top_k: int = 1,
    on: str | On = "auto",
) -> RayScored:
    """Score images with the detector in `folder` on Ray, and write the table `out` when all parts are there."""
    on = On.of(on)
    check_device(on.device)
    listed = list_images(images)
    # This process only reads it; the device is the workers'.
    loaded = DetectorSource.of(folder, replace(on, device="cpu"), "score").detector()
    columns = verdict_columns(min(top_k, len(loaded.classifier.classes)))
    unreadable: list[Unreadable] = []
    rejected = 0

    def rows() -> Iterator[list[dict[str, Any]]]:
        nonlocal rejected
        for table, failed in parts:
            unreadable.extend(failed)
            some = table.to_pylist()
            rejected += sum(row["is_ood"] for row in some)
            yield some

    with stage("Scoring on Ray") as progress:
        scoring = score_on_ray(
            loaded,
            folder,
            listed,
            out,
            address=address,
            workers=workers,
            device=on.device,
            batch_size=on.batch_size,
            top_k=top_k,
            progress=progress,
        )
        try:
            with scoring as parts:
                count = write_table(out, rows(), columns)
        except KeyboardInterrupt as stop:
            stop.add_note("The parts that are done are kept: run the same command again to resume.")
            raise
    return RayScored(loaded, Counts(count, rejected, len(unreadable)), unreadable)


def score_on_ray(
    detector: Detector,
    folder: str,
    images: str | Path | Iterable[ImageItem],
    out: Path,
    *,
    address: str = "local",
    workers: int | None = None,
    device: str = "auto",
    batch_size: int = 32,
    top_k: int = 1,
    progress: Progress | None = None,
) -> contextlib.AbstractContextManager[Iterator[tuple[pa.Table, list[Unreadable]]]]:
    """Score images, or a feature store by its path, on Ray actors; gives the verdicts part by part, in order.

    Args:
        detector: the detector in `folder`, which every machine must see, as well as the images and the output.
        folder: where `detector` was loaded from.
        images: what `load_images` or `image_stream` gave, or the path of a store.
        out: the file that the verdicts are for; the parts lie beside it until the block ends well.
        address: `local`, `auto`, or HOST:PORT.
        workers: how many actors; as many as there are CPUs, or GPUs where the device is one.
        device: `auto`, `cpu` or `cuda`.
        batch_size: pictures per pass of the image tower.
        top_k: so many of the most similar classes are told.
        progress: told how many images are done.
    """
    check_device(device)
    from deltaenergy.detector.saved import version_of

    version = version_of(detector)
    parts = _parts(detector, images, batch_size)
    asked = hash_value([__version__, version, detector.require_calibration().slack, batch_size, top_k])
    target = Path(os.path.realpath(out))
    place = target.parent / f".deltaenergy-{target.name}-{asked}.parts"
    request = Request(folder, version, str(place), device, batch_size, top_k)
    return _scored(request, parts, address, workers, progress)


@contextlib.contextmanager
def _scored(
    request: Request, parts: list[ScorePart], address: str, workers: int | None, progress: Progress | None
) -> Iterator[Iterator[tuple[pa.Table, list[Unreadable]]]]:
    place = Path(request.folder)
    with FolderLock(place):
        _fill(request, parts, address, workers, progress)
        yield (_read(place / part.name) for part in parts)
        shutil.rmtree(place, ignore_errors=True)


def _fill(
    request: Request, parts: list[ScorePart], address: str, workers: int | None, progress: Progress | None
) -> None:
    """See to it that every part has its file."""
    place = Path(request.folder)
    missing = [part for part in parts if not (place / part.name).is_file()]
    total = sum(part.images for part in parts)
    finished = total - sum(part.images for part in missing)
    if not missing:
        return

    if progress is not None:
        progress(finished, total)
    with connected(address, workers) as cluster:
        device, count = cluster.places(request.device, workers)
        here = replace(request, device=device)
        for part in cluster.run(PartScorer, here, missing, device=device, workers=count):
            finished += part.images
            if progress is not None:
                progress(finished, total)


def _parts(detector: Detector, images: str | Path | Iterable[ImageItem], batch_size: int) -> list[ScorePart]:
    """The images in parts, whose names tell what is in them, as far as can be told without reading it."""
    needs = detector.score.needs | detector.classifier.needs_to_predict
    if isinstance(images, str | Path):
        patches = Need.PATCHES in needs
        size = batch_size if patches else max(batch_size, STORED_BATCH)
        stored = pass_over(images, detector.classifier.model, patches=patches, size=size)
        if stored is not None:
            return _shards(stored)
        return _stretches(FeatureStore.open(images, detector.classifier.model), size)
    return _windows(images, WINDOW_BATCHES * batch_size)


def _shards(stored: StorePass) -> list[ScorePart]:
    found = []
    for position, record in enumerate(stored.manifest.shards):
        checksums = [part.checksum for _, part in sorted(record.files.items())]
        one = replace(stored, manifest=Manifest(stored.manifest.record, [record]))
        found.append(ScorePart(_name(position, checksums), record.images, shard=one))
    return found


def _stretches(store: FeatureStore, size: int) -> list[ScorePart]:
    """The images of a store some of which share pictures or were replaced: their features are all over its shards."""
    place, count = place_at(store.path), len(store.items())
    known = [part.checksum for record in read_present(place).shards for part in record.files.values()]
    stretches = [(start, min(start + size, count)) for start in range(0, count, size)]
    return [
        ScorePart(_name(position, [*known, str(size)]), stop - start, stretch=(place.address, start, stop))
        for position, (start, stop) in enumerate(stretches)
    ]


def _windows(items: Iterable[ImageItem], size: int) -> list[ScorePart]:
    found: list[ScorePart] = []
    left = iter(items)
    while window := tuple(islice(left, size)):
        if any(isinstance(item.source, StoredImage) for item in window):
            raise InputError("`ray` takes images, or a single feature store: score each store by itself.")
        known = [text for item in window for text in (item.id, change_stamp(item))]
        found.append(ScorePart(_name(len(found), known), len(window), items=window))
    return found


def _name(position: int, known: Sequence[str]) -> str:
    """The file of a part: another where its images have changed."""
    return f"{position:06d}-{hash_strings(known)}.parquet"


def _read(path: Path) -> tuple[pa.Table, list[Unreadable]]:
    """The verdicts of a part, and the images that have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
        missing = table.filter(pa.compute.is_valid(table["error"]))
        unreadable = [Unreadable(row["path"], row["error"]) for row in missing.select(["path", "error"]).to_pylist()]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. Remove it, and run the same command again.") from error
    return table.filter(pa.compute.is_null(table["error"])).drop_columns(["error"]), unreadable


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """What a worker cannot read is perhaps not on its machine."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"A worker cannot read {what}: {error.strerror or error}. Every machine of the cluster must see it."
        ) from error


def _silent(done: int, total: int | None) -> None:
    """Nobody looks at an actor."""
