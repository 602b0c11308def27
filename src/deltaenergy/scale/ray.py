"""Feature stores and verdicts on a Ray cluster. Ray Data hands out the work; each actor loads its model once.

    build_store(model, "photos/", "photos.store", ray="auto")          # deltaenergy features … --ray auto
    score_on_ray(detector, "photos.store", "verdicts.csv")             # deltaenergy score … --ray auto

What is done stays done whatever happens to Ray, so every failure here ends with the advice to run the same again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy import __version__
from deltaenergy.core.progress import Progress, stage
from deltaenergy.data.items import Unreadable, from_reference
from deltaenergy.data.remote.url import is_url
from deltaenergy.data.streams import ImageStream
from deltaenergy.detector.opening import DetectorSource
from deltaenergy.detector.verdict import Counts, verdict_columns
from deltaenergy.detector.verdict_files import write_table
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import hash_value
from deltaenergy.files.lock import lock_folder
from deltaenergy.models.on import On
from deltaenergy.scale.cluster import answering, connected
from deltaenergy.scale.engines import with_errors
from deltaenergy.scale.workers import open_work, worker_settings
from deltaenergy.source import Source, as_source, check_has, has_pixels, image_stream
from deltaenergy.store.folder import StoreFolder, open_folder
from deltaenergy.store.plan import PlannedImage, pack_rows, unpack_rows
from deltaenergy.store.shard import Manifest, ShardRecord
from deltaenergy.store.store import Store
from deltaenergy.store.writer import Joiner, ShardProgress, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.detector.detector import Detector

# Images of a part: this many batches, whatever the number of actors, so each run finds the parts of the one before.
WINDOW_BATCHES = 16
_BUSY_SECONDS = 0.5


def join_on_ray(
    work: Work, progress: Progress | None, *, address: str, workers: int | None = None, device: str = "auto"
) -> None:
    """Have the planned shards encoded on a cluster, whose machines must see the images, the model and the store."""
    settings, so_far = worker_settings(work), ShardProgress(work, progress)
    with connected(address, workers) as cluster:
        device, actors = cluster.room(device, workers)
        settings |= {"device": device}
        shards = [cluster.put({"shard": position}) for position in range(len(work.plan.shards))]
        for row in cluster.map(shards, ShardTask, settings, device=device, actors=actors):
            so_far(row["shard"], work.plan.shards[row["shard"]].images, True)


class ShardTask:
    """An actor: sees to it that one planned shard after the other is finished."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._joiner: Joiner | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        with answering(row) as answer:
            if self._joiner is None:
                _use_one_core(self._settings["device"])
                opened = open_work(self._settings)
                if opened is None:  # another run has finished the store
                    return answer
                self._joiner = Joiner(*opened)
            while not self._joiner.take(int(row["shard"]), lambda *_: None):
                time.sleep(_BUSY_SECONDS)  # another run works on it
        return answer


@dataclass(frozen=True)
class RayScored:
    """What `write_on_ray` did."""

    detector: Detector
    counts: Counts
    unreadable: list[Unreadable]


def write_on_ray(
    folder: str,
    images: str | Sequence[str],
    out: Path,
    *,
    address: str = "local",
    workers: int | None = None,
    top_k: int = 1,
    on: str | On = "auto",
) -> RayScored:
    """Score images with the detector in `folder` on Ray, and write the table `out` when all parts are there."""
    on = On.of(on)
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
            images,
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
                written = write_table(out, rows(), columns)
        except KeyboardInterrupt as stop:
            stop.add_note("The parts that are done are kept: run the same command again to resume.")
            raise
    return RayScored(loaded, Counts(written, rejected, len(unreadable)), unreadable)


@contextlib.contextmanager
def score_on_ray(
    detector: Detector,
    images: str | Path | Sequence[str],
    out: str | Path,
    *,
    address: str = "local",
    workers: int | None = None,
    device: str = "auto",
    batch_size: int = 32,
    top_k: int = 1,
    progress: Progress | None = None,
) -> Iterator[Iterator[tuple[pa.Table, list[Unreadable]]]]:
    """Score images or a feature store on a Ray cluster; gives the verdicts part by part, in order.

    A part is a shard of the store, or sixteen batches of images. This process writes the verdicts of each part, as they
    come, to a hidden folder next to `out`; a run that ended early finds there what need not be done again. The folder
    is removed when the block ends well. The detector is sent to the actors; the images, or the store, and the model
    must be within their reach. By default there is one actor per CPU, or per GPU where the device is one.
    """
    from deltaenergy.detector.saved import version_of

    asked = [__version__, version_of(detector), detector.require_threshold().slack, batch_size, top_k]
    place, name = os.path.split(str(out) if is_url(str(out)) else os.path.realpath(out))
    given = [images] if isinstance(images, (str, Path)) else images
    local = not all(is_url(str(path)) for path in given)
    with tempfile.TemporaryDirectory() as saved:
        detector.save(saved)
        files = {path.name: path.read_bytes() for path in Path(saved).iterdir()}
    task = ScoreTask(files, device, batch_size, top_k, str(Path.cwd()) if local else None)
    source = as_source(images)
    check_has(source, detector.score.needs | detector.classifier.needs_to_predict, "This detector")
    parts: Iterator[ScorePart]
    if isinstance(source, Store):
        source.check_model(detector.classifier.model)
        task = replace(task, store=source.folder.address, manifest=replace(source.manifest, shards=()))
        parts = map(part_of_shard, count(), source.manifest.shards)
    elif has_pixels(source):
        parts = parts_of_images(image_stream(source), WINDOW_BATCHES * batch_size)
    else:
        raise InputError("`ray` takes images, or one feature store: score each store by itself.")
    with _parts_folder(f"{place}/.deltaenergy-{name}-{hash_value(asked)}.parts") as folder:
        names = score_parts(folder, task, parts, address, workers, progress)
        yield (_read_part(folder, name) for name in names)


@dataclass(frozen=True)
class ScorePart:
    """Some consecutive images: `content` is the record of a shard, or their list. The name says what they are."""

    name: str
    images: int
    content: bytes


def part_of_shard(position: int, record: ShardRecord) -> ScorePart:
    name = f"{position:06d}-{hash_value([record.index_hash, record.features_hash])}.parquet"
    return ScorePart(name, record.images, json.dumps(asdict(record)).encode())


def parts_of_images(stream: ImageStream, size: int) -> Iterator[ScorePart]:
    """The images, `size` at a time, listed as the parts are needed."""
    images = iter(stream)
    for position in count():
        rows = [PlannedImage.of(item) for item in islice(images, size)]
        if not rows:
            return
        if missing := next((row.id for row in rows if row.source is None), None):
            raise InputError(f"The image {missing!r} is not a file, so other processes cannot read it.")
        name = f"{position:06d}-{hash_value(rows)}.parquet"
        yield ScorePart(name, len(rows), pack_rows(rows))


@dataclass(frozen=True)
class ScoreTask:
    """What an actor must know to score parts; of a store its address and manifest, without the shards."""

    detector: dict[str, bytes]
    device: str
    batch_size: int
    top_k: int
    working_folder: str | None
    store: str | None = None
    manifest: Manifest | None = None

    def load(self) -> Detector:
        from deltaenergy.detector.detector import Detector

        _use_one_core(self.device)
        if self.working_folder is not None:
            try:
                os.chdir(self.working_folder)  # where relative paths of images start
            except OSError as error:
                raise InputError(
                    f"A worker cannot open the folder {self.working_folder}: {error.strerror}. Every machine of the "
                    "cluster must see the images."
                ) from error
        with tempfile.TemporaryDirectory() as folder:
            for name, data in self.detector.items():
                (Path(folder) / name).write_bytes(data)
            return Detector.load(folder, device=self.device).prepare()

    def images(self, content: bytes) -> Source:
        if self.store is None or self.manifest is None:
            rows = unpack_rows(content)
            return as_source([from_reference(row.id, row.source or "", row.label, row.domain) for row in rows])
        manifest = replace(self.manifest, shards=(ShardRecord(**json.loads(content)),))
        return Store(open_folder(self.store), manifest)


class ScoreActor:
    """An actor: loads the detector once, and gives the verdicts of one part after the other as a Parquet file."""

    def __init__(self, task: ScoreTask) -> None:
        self._task = task
        self._detector: Detector | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        task = self._task
        with answering({"name": row["name"], "images": row["images"], "verdicts": b""}) as answer:
            self._detector = self._detector or task.load()
            stream = self._detector.stream(
                task.images(row["content"]), top_k=task.top_k, batch_size=task.batch_size, progress=lambda *_: None
            )
            sink = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(with_errors(verdicts) for verdicts in stream.batches()), sink)
            answer["verdicts"] = sink.getvalue().to_pybytes()
        return answer


def score_parts(
    folder: StoreFolder,
    task: ScoreTask,
    parts: Iterator[ScorePart],
    address: str,
    workers: int | None,
    progress: Progress | None,
) -> list[str]:
    """See to it that every part has its file, and give their names in order. Their contents are kept by Ray."""
    present, names, left = folder.sizes(), [], []
    done = total = 0
    with connected(address, workers) as cluster:
        device, actors = cluster.room(task.device, workers)
        for part in parts:
            names.append(part.name)
            total += part.images
            if part.name in present:
                done += part.images
            else:
                left.append(cluster.put(asdict(part)))
        for row in cluster.map(left, ScoreActor, replace(task, device=device), device=device, actors=actors):
            folder.put(row["name"], row["verdicts"])
            done += row["images"]
            if progress is not None:
                progress(done, total)
    return names


def _read_part(folder: StoreFolder, name: str) -> tuple[pa.Table, list[Unreadable]]:
    """The verdicts of a part, and the images that have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(folder.read(name)))
        failed = table.filter(table["error"].is_valid()).select(["path", "error"]).to_pylist()
    except (OSError, pa.ArrowException, KeyError) as error:
        path = folder.full_name(name)
        raise ArtifactError(f"{path} cannot be read: {error}. Remove it, and run the same command again.") from error
    unreadable = [Unreadable(row["path"], row["error"]) for row in failed]
    return table.filter(table["error"].is_null()).drop_columns(["error"]), unreadable


@contextlib.contextmanager
def _parts_folder(path: str) -> Iterator[StoreFolder]:
    """A folder of ours, which is removed if the block ends well. On a disk, only one run may use it."""
    folder = open_folder(path)
    with contextlib.nullcontext() if folder.is_remote else lock_folder(folder.path):
        folder.tidy()
        yield folder
        for name in folder.sizes():
            folder.delete(name)
    if not folder.is_remote:
        with contextlib.suppress(OSError):
            Path(folder.path).rmdir()


def _use_one_core(device: str) -> None:
    """As many actors as cores compute side by side."""
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
