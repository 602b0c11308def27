"""Feature stores and verdicts on a Ray cluster. Ray Data hands out the work; each actor loads its model once.

    build_store(model, "photos/", "photos.store", ray="auto")          # deltaenergy features … --ray auto
    score_on_ray(detector, "detector/", "photos.store", "verdicts.csv")

What is done stays done whatever happens to Ray, so every failure here ends with the advice to run the same again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy import __version__, errors
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.content import hash_bytes, stamp_of
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.data.references import refer, resolve
from deltaenergy.data.remote.url import is_url
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError, explain_os_error
from deltaenergy.files import hash_strings, hash_value
from deltaenergy.files.lock import FolderLock
from deltaenergy.models.encoding import STORED_BATCH
from deltaenergy.scale.engines import with_errors
from deltaenergy.scale.workers import open_work, worker_settings
from deltaenergy.source import image_stream
from deltaenergy.store.folder import StoreFolder, open_folder
from deltaenergy.store.items import StorePass, names_a_store, pass_over
from deltaenergy.store.plan import PlannedImage, pack_rows, unpack_rows
from deltaenergy.store.shard import Manifest, ShardRecord
from deltaenergy.store.store import Store
from deltaenergy.store.writer import Joiner, ShardProgress, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.detector.detector import Detector

# Ray itself ends the whole process when its head has been silent for a minute: we must be sooner.
PATIENCE = 20.0
_LOOK_EVERY = 1.0
_STARTS = 3
# Actors that died one after the other without an answer: one more would die as well.
MOST_DEATHS = 4
# Images of a part: this many batches, whatever the number of actors, so each run finds the parts of the one before.
WINDOW_BATCHES = 16
DEVICES = ("auto", "cpu", "cuda")
AGAIN = "Nothing that was done is lost: run the same command again to resume."
_ADDRESS = re.compile(r"local|auto|\[?[\w.:-]+\]?:\d{1,5}")
_OBJECT_STORE_BYTES = 100 << 20
_BUSY_SECONDS = 0.5


def join_on_ray(
    work: Work, progress: Progress | None, *, address: str, workers: int | None = None, device: str = "auto"
) -> None:
    """Have the planned shards of a store encoded on a Ray cluster.

    Each machine must see the images, the model and the store.
    """
    settings, so_far = worker_settings(work), ShardProgress(work, progress)
    with connected(address, workers) as cluster:
        device, count = cluster.room(device, workers)
        settings |= {"device": device, "threads": 1 if device == "cpu" else None}
        shards = [cluster.put({"shard": position}) for position in range(len(work.plan.shards))]
        for row in cluster.map(shards, ShardTask, settings, device=device, workers=count):
            position = int(row["shard"])
            so_far(position, work.plan.shards[position].images, True)


class ShardTask:
    """An actor: sees to it that one planned shard after the other is finished."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._joiner: Joiner | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The shard, when it is finished."""
        with answering(row) as answer:
            if self._joiner is None:
                _use_threads(self._settings["threads"])
                opened = open_work(self._settings)
                if opened is None:  # another run has finished the store
                    return answer
                self._joiner = Joiner(*opened)
            while not self._joiner.take(int(row["shard"]), lambda shard, images, finished: None):
                time.sleep(_BUSY_SECONDS)  # another run works on it
        return answer


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
    must be within their reach.

    Args:
        detector: calibrated.
        images: paths, patterns or URLs of images, or of one feature store.
        out: the file or URL that the verdicts are for.
        address: `local`, `auto`, or HOST:PORT.
        workers: number of actors. By default one per CPU, or per GPU where the device is one.
        device: `auto`, `cpu` or `cuda`.
        batch_size: images per pass of the image encoder.
        top_k: number of classes to report per image.
        progress: called with (done, total) images.
    """
    from deltaenergy.detector.saved import version_of

    asked = [__version__, version_of(detector), detector.require_calibration().slack, batch_size, top_k]
    place, name = os.path.split(str(out) if is_url(str(out)) else os.path.realpath(out))
    with _parts_folder(f"{place}/.deltaenergy-{name}-{hash_value(asked)}.parts") as folder:
        request = ScoreRequest(_files_of(detector), device, batch_size, top_k, _working_folder(images))
        request, parts = _cut(detector, images, request)
        names = _score_parts(folder, request, parts, address, workers, progress)
        yield (_read_part(folder, name) for name in names)


@dataclass(frozen=True)
class ScoreRequest:
    """What an actor must know to score a part; with a store, its address and manifest, without the shards."""

    detector: dict[str, bytes]
    device: str
    batch_size: int
    top_k: int
    working_folder: str | None
    store: str | None = None
    manifest: Manifest | None = None
    patches: bool = False
    rows: int = STORED_BATCH


@dataclass(frozen=True)
class ScorePart:
    """Some consecutive images: `content` is the record of a shard, or their list. The name tells what they are."""

    name: str
    images: int
    content: bytes


class ScoreActor:
    """An actor: loads the detector once, and gives the verdicts of one part after the other as a Parquet file."""

    def __init__(self, request: ScoreRequest) -> None:
        self._request = request
        self._detector: Detector | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The part's name, and its verdicts."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with answering({"name": row["name"], "images": row["images"], "verdicts": b""}) as answer:
            detector, request = self._load(), self._request
            stream = detector.stream(
                self._images(row["content"]), top_k=request.top_k, batch_size=request.batch_size, progress=_silent
            )
            sink = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(with_errors(verdicts) for verdicts in stream.batches()), sink)
            answer["verdicts"] = sink.getvalue().to_pybytes()
        return answer

    def _load(self) -> Detector:
        from deltaenergy.detector.detector import Detector

        if self._detector is None:
            request = self._request
            _use_threads(1 if request.device == "cpu" else None)  # as many processes as cores compute side by side
            if request.working_folder is not None:
                # Relative paths of images mean what they mean to the process that listed them.
                try:
                    os.chdir(request.working_folder)
                except OSError as error:
                    raise InputError(
                        f"A worker cannot open the folder {request.working_folder}: {error.strerror}. Every machine of "
                        "the cluster must see the images."
                    ) from error
            with tempfile.TemporaryDirectory() as folder:
                for name, data in request.detector.items():
                    (Path(folder) / name).write_bytes(data)
                self._detector = Detector.load(folder, device=request.device).prepare()
        return self._detector

    def _images(self, content: bytes) -> Any:
        request = self._request
        if request.store is None or request.manifest is None:
            return [
                ImageItem(image.id, resolve(image.source or ""), image.label, image.domain)
                for image in unpack_rows(content, 0)
            ]
        manifest = replace(request.manifest, shards=(ShardRecord(**json.loads(content)),))
        return StorePass(Store(open_folder(request.store), manifest), request.patches, request.rows, [0])


def _cut(detector: Detector, images: Any, request: ScoreRequest) -> tuple[ScoreRequest, Iterator[ScorePart]]:
    """The images in parts, and what actors must know of a store."""
    if not names_a_store(images):
        stream = image_stream(images)
        if stream.stored:
            raise InputError("--ray takes images, or one feature store: score each store by itself.")
        return request, _windows(stream, WINDOW_BATCHES * request.batch_size)
    patches = Need.PATCHES in detector.score.needs | detector.classifier.needs_to_predict
    rows = request.batch_size if patches else max(request.batch_size, STORED_BATCH)
    store = pass_over(images, detector.classifier.model, patches=patches, size=rows).store
    manifest = replace(store.manifest, shards=())
    request = replace(request, store=store.folder.address, manifest=manifest, patches=patches, rows=rows)
    return request, _shards(store)


def _shards(store: Store) -> Iterator[ScorePart]:
    for position, record in enumerate(store.manifest.shards):
        name = _part_name(position, [record.index_hash, record.features_hash])
        yield ScorePart(name, record.images, json.dumps(asdict(record)).encode())


def _windows(stream: ImageStream, size: int) -> Iterator[ScorePart]:
    images = iter(stream)
    position = 0
    while window := list(islice(images, size)):
        rows = [PlannedImage(item.id, item.label, item.domain, stamp_of(item), refer(item.source)) for item in window]
        if missing := next((row.id for row in rows if row.source is None), None):
            raise InputError(f"The image {missing!r} is not a file, so other processes cannot read it.")
        content = pack_rows([rows])
        yield ScorePart(_part_name(position, [hash_bytes(content)]), len(rows), content)
        position += 1


def _part_name(position: int, known: Sequence[str]) -> str:
    """The file of a part: another where its images have changed."""
    return f"{position:06d}-{hash_strings(known)}.parquet"


def _score_parts(
    folder: StoreFolder,
    request: ScoreRequest,
    parts: Iterator[ScorePart],
    address: str,
    workers: int | None,
    progress: Progress | None,
) -> list[str]:
    """See to it that every part has its file, and give their names in order. Their contents are kept by Ray."""
    present, names, left = folder.sizes(), [], []
    done = total = 0
    with connected(address, workers) as cluster:
        device, count = cluster.room(request.device, workers)
        for part in parts:
            names.append(part.name)
            total += part.images
            if part.name in present:
                done += part.images
            else:
                left.append(cluster.put(asdict(part)))
        if left:
            here = replace(request, device=device)
            for row in cluster.map(left, ScoreActor, here, device=device, workers=count):
                folder.put(row["name"], row["verdicts"])
                done += int(row["images"])
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
        raise ArtifactError(
            f"{folder.full_name(name)} cannot be read: {error}. Remove it, and run the same command again."
        ) from error
    unreadable = [Unreadable(row["path"], row["error"]) for row in failed]
    return table.filter(table["error"].is_null()).drop_columns(["error"]), unreadable


@contextlib.contextmanager
def _parts_folder(path: str) -> Iterator[StoreFolder]:
    """A folder of ours, which is removed if the block ends well. On a disk, only one run may use it."""
    folder = open_folder(path)
    with contextlib.nullcontext() if folder.is_remote else FolderLock(folder.path):
        folder.tidy()
        yield folder
        for name in folder.sizes():
            folder.delete(name)
    if not folder.is_remote:
        with contextlib.suppress(OSError):
            Path(folder.path).rmdir()


def _files_of(detector: Detector) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        detector.save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _working_folder(images: Any) -> str | None:
    """Where relative paths start; of no interest to URLs."""
    given = [images] if isinstance(images, (str, Path)) else images
    return None if all(is_url(str(path)) for path in given) else str(Path.cwd())


@contextlib.contextmanager
def answering(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What an actor gives back: with the error, in words and by its kind, that is the user's to fix."""
    found: dict[str, Any] = {**answer, "error": None, "kind": None}
    try:
        yield found
    except DeltaEnergyError as error:
        found |= {"error": str(error), "kind": type(error).__name__}
    except OSError as error:
        found |= {"error": explain_os_error(error), "kind": "ArtifactError"}


def _use_threads(count: int | None) -> None:
    import torch

    if count is not None:
        torch.set_num_threads(count)


def _silent(done: int, total: int | None) -> None:
    """Actors show no progress."""


def check_device(device: str) -> None:
    """Raise `InputError` for a device that Ray does not hand out."""
    if device not in DEVICES:
        raise InputError(
            f"--device {device} is one of this machine. With --ray use {', '.join(DEVICES[:-1])} or {DEVICES[-1]}."
        )


def is_ray_address(text: str) -> bool:
    """Whether this names a Ray cluster: `local`, `auto` or HOST:PORT."""
    return _ADDRESS.fullmatch(text) is not None


@contextlib.contextmanager
def connected(address: str, workers: int | None = None) -> Iterator[Cluster]:
    """Ray at `address` for the block. `local` starts one on this machine, which ends with the block.

    A Ray that this process is connected to already is used as it is, and left so.
    """
    if not is_ray_address(address):
        raise InputError(
            f"--ray {address!r} is not a valid address. Use local (starts Ray on this machine), auto (the Ray that "
            "runs here, or that RAY_ADDRESS names) or HOST:PORT."
        )
    # Ray would report its use over the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("--ray needs Ray: pip install 'deltaenergy[ray]'.") from None
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, workers)
    try:
        yield Cluster(ray)
    finally:
        if ours:
            ray.shutdown()


def _start(ray: Any, address: str, workers: int | None) -> None:
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # On the loopback address: no other machine can reach it.
        settings |= {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        settings["object_store_memory"] = _OBJECT_STORE_BYTES
    attempts = _STARTS if address == "local" else 1
    for attempt in range(attempts):
        try:
            ray.init(**settings)
            return
        except Exception as error:  # a bare one says that Ray was not up in time, as on a busy machine
            ray.shutdown()
            if attempt == attempts - 1:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(f"There is no Ray at --ray {address}, or it does not start: {first}") from error


class Cluster:
    """A Ray that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._answered = self._looked = time.monotonic()

    def room(self, device: str, workers: int | None) -> tuple[str, int]:
        """Where each actor runs, `cuda` or `cpu`, and how many there are: as many as fit by default."""
        check_device(device)
        resources = self._ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            raise InputError("--device cuda: no machine of this Ray has a GPU. Use --device cpu.")
        room = gpus or int(resources.get("CPU", 0))
        if workers is not None and workers > room:
            raise InputError(f"--workers {workers}: this Ray has only {room} {'GPUs' if gpus else 'CPUs'}.")
        return "cuda" if gpus else "cpu", workers or max(room, 1)

    def put(self, row: dict[str, Any]) -> Any:
        """A row of data that Ray keeps."""
        import pyarrow as pa

        return self._ray.put(pa.Table.from_pylist([row]))

    def map(
        self, rows: Sequence[Any], actor: type, argument: Any, *, device: str, workers: int
    ) -> Iterator[dict[str, Any]]:
        """Have actors of this class, made with `argument`, called with each row; gives their answers as they come."""
        ray, count = self._ray, min(workers, len(rows))
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what is wrong is said here
        needs = {"num_cpus": 0, "num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        starts = ray.remote(num_cpus=0, max_restarts=-1)(_Starts).remote()
        answers = ray.data.from_arrow_refs(list(rows)).map(
            _Counted,
            fn_constructor_args=[actor, argument, starts],
            compute=ray.data.ActorPoolStrategy(size=count),
            **needs,
        )
        try:
            for answer in self._watched(answers.iter_rows(), starts, count):
                if answer["error"] is not None:
                    raise getattr(errors, answer["kind"], ArtifactError)(answer["error"])
                yield answer
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ArtifactError(f"Ray was lost: {(str(error).strip().splitlines() or [''])[0]} {AGAIN}") from error
        finally:
            with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
                ray.kill(starts)

    def _watched(self, rows: Iterator[dict[str, Any]], starts: Any, actors: int) -> Iterator[dict[str, Any]]:
        """The rows, which another thread waits for, while this one looks whether cluster and actors are alive."""
        arrived: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue(maxsize=8)
        ended = threading.Event()

        def hand_over(found: dict[str, Any] | BaseException | None) -> None:
            while not ended.is_set():
                with contextlib.suppress(queue.Full):
                    arrived.put(found, timeout=_LOOK_EVERY)
                    return

        def wait() -> None:
            try:
                for row in rows:
                    hand_over(row)
                    if ended.is_set():
                        return
                hand_over(None)
            except BaseException as error:
                hand_over(error)

        threading.Thread(target=wait, daemon=True).start()
        asked, started, forgiven = starts.count.remote(), actors, actors
        try:
            while True:
                self._check_alive()
                if self._ray.wait([asked], timeout=0)[0]:
                    with contextlib.suppress(self._ray.exceptions.RayError):  # who counts may die as well
                        started = self._ray.get(asked)
                    asked = starts.count.remote()
                if started - forgiven >= MOST_DEATHS:
                    raise ArtifactError(
                        f"{MOST_DEATHS} workers ended one after the other without finishing a part (an image that "
                        f"needs more memory than there is?). {AGAIN}"
                    )
                try:
                    found = arrived.get(timeout=_LOOK_EVERY)
                except queue.Empty:
                    continue
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                yield found
                forgiven = max(started, actors)
        finally:
            ended.set()

    def _check_alive(self) -> None:
        """Raise `ArtifactError` if the head of the cluster has not answered for too long."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        try:
            socket.create_connection(self._head, timeout=_LOOK_EVERY).close()
            self._answered = now
        except OSError:
            if now - self._answered > PATIENCE:
                raise ArtifactError(f"The head of Ray does not answer: it is gone. {AGAIN}") from None


class _Starts:
    """An actor that counts how often others were started: more often than there are, if they died."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        self._count += 1

    def count(self) -> int:
        return self._count


class _Counted:
    """An actor that says when it starts."""

    def __init__(self, actor: type, argument: Any, starts: Any) -> None:
        starts.add.remote()
        self._actor = actor(argument)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._actor(row)
        return answer
