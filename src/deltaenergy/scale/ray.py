"""Feature stores and verdicts on a Ray cluster. Ray Data hands out the work; each actor loads its model once.

    build_store(model, "photos/", "photos.store", ray="auto")          # deltaenergy features … --ray auto
    score_on_ray("photos.store", "detector/", "verdicts.csv")          # deltaenergy score … --ray local

What is done stays done whatever happens to Ray, so every failure here ends with the advice to run the same again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy import __version__
from deltaenergy.core.progress import Progress, stage
from deltaenergy.data.items import Unreadable
from deltaenergy.data.remote.url import folder_of, is_url
from deltaenergy.detector.fiftyone import names_fiftyone
from deltaenergy.detector.opening import DetectorSource
from deltaenergy.detector.verdict import Counts, verdict_columns
from deltaenergy.detector.verdict_files import check_table, write_table
from deltaenergy.errors import ArtifactError, InputError, first_line
from deltaenergy.files import hash_value
from deltaenergy.files.lock import lock_folder, remove_empty
from deltaenergy.models.on import On
from deltaenergy.scale.engines import with_errors
from deltaenergy.scale.workers import answering, open_work, raise_error, worker_settings
from deltaenergy.source import SourcePart, as_source, check_has, open_part, parts_of, stores_of
from deltaenergy.store.folder import LocalFolder, StoreFolder, open_folder
from deltaenergy.store.writer import Joiner, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.detector.detector import Detector

# Images of a part: this many batches, whatever the number of actors, so each run finds the parts of the one before.
WINDOW_BATCHES = 16
# Ray itself ends the whole process when its head has been silent for a minute: we must be sooner.
PATIENCE = 20.0
# A row that ends its actor this often is at fault itself.
MOST_RETRIES = 3
_LOOK_EVERY = 1.0
_STARTS = 3
_BUSY_SECONDS = 0.5
_OBJECT_STORE_BYTES = 100 << 20
_ADDRESS = re.compile(r"local|auto|\[?[\w.:-]+\]?:\d{1,5}")
_AGAIN = "Nothing that was done is lost: run the same command again to resume."


class Cluster:
    """A Ray, checked when it is named and connected for a `with` block.

    A Ray that this process is connected to already is used as it is, and left so.

    Args:
        address: `local` starts one on this machine, which ends with the block; `auto` or HOST:PORT.
        workers: number of actors; by default one per CPU, or per GPU where the device is one.
        device: where each actor runs.
    """

    def __init__(self, address: str, workers: int | None = None, device: str = "auto") -> None:
        if not _ADDRESS.fullmatch(address):
            raise InputError(
                f"`ray` {address!r} is not a valid address. Use local (starts Ray on this machine), auto (the Ray that "
                "runs here, or that RAY_ADDRESS names) or HOST:PORT."
            )
        if device not in ("auto", "cpu", "cuda"):
            raise InputError(f"`device` {device} is one of this machine. On Ray use auto, cpu or cuda.")
        self._address, self._workers, self._device = address, workers, device

    def __enter__(self) -> Cluster:
        # Ray would report its use over the network.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
            import ray.data
        except ImportError:
            raise InputError("`ray` needs Ray: pip install 'deltaenergy[ray]'.") from None
        self._ray, self._ours = ray, not ray.is_initialized()
        if self._ours:
            self._start()
        try:
            self._find_room()
        except BaseException:
            self.__exit__()
            raise
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._answered = self._looked = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._ray.shutdown()

    def _start(self) -> None:
        settings: dict[str, Any] = {"address": self._address, "log_to_driver": False, "logging_level": "ERROR"}
        attempts = 1
        if self._address == "local":
            # On the loopback address: no other machine can reach it.
            settings |= {"num_cpus": self._workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            settings["object_store_memory"] = _OBJECT_STORE_BYTES
            attempts = _STARTS
        for attempt in range(attempts):
            try:
                self._ray.init(**settings)
                return
            except Exception as error:  # a bare one says that Ray was not up in time, as on a busy machine
                self._ray.shutdown()
                if attempt == attempts - 1:
                    raise InputError(
                        f"There is no Ray at `ray` {self._address}, or it does not start: {first_line(error)}"
                    ) from error

    def _find_room(self) -> None:
        """Decide where each actor runs, and how many there are: as many as fit by default."""
        resources = self._ray.cluster_resources()
        gpus = 0 if self._device == "cpu" else int(resources.get("GPU", 0))
        if self._device == "cuda" and not gpus:
            raise InputError("`device` cuda: no machine of this Ray has a GPU. Use cpu.")
        room = gpus or int(resources.get("CPU", 0))
        if self._workers is not None and self._workers > room:
            raise InputError(f"`workers` {self._workers}: this Ray has only {room} {'GPUs' if gpus else 'CPUs'}.")
        self._device, self._actors = "cuda" if gpus else "cpu", self._workers or max(room, 1)

    def map(self, rows: Iterable[dict[str, Any]], actor: type, *arguments: Any) -> Iterator[dict[str, Any]]:
        """Have actors called with each row, and give their answers as they come; rows are kept by Ray.

        An actor is made with the arguments and its device.
        """
        import pyarrow as pa

        ray = self._ray
        references = [ray.put(pa.Table.from_pylist([row])) for row in rows]
        if not references:
            return
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what is wrong is said here
        needs = {"num_cpus": 0, "num_gpus": 1} if self._device == "cuda" else {"num_cpus": 1}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray means to give the two limits other names
            answers = ray.data.from_arrow_refs(references).map(
                actor,
                fn_constructor_args=[*arguments, self._device],
                compute=ray.data.ActorPoolStrategy(size=min(self._actors, len(references))),
                max_restarts=-1,
                max_task_retries=MOST_RETRIES,
                **needs,
            )
        try:
            for answer in self._watched(answers):
                raise_error(answer)
                yield answer
        except ray.exceptions.RayActorError as error:
            raise ArtifactError(
                f"A worker ended {MOST_RETRIES + 1} times in the same part, or its machine was lost (an image that "
                f"needs more memory than there is?). {_AGAIN}"
            ) from error
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ArtifactError(f"Ray was lost: {first_line(error)} {_AGAIN}") from error

    def _watched(self, answers: Any) -> Iterator[dict[str, Any]]:
        """The answers, which another thread waits for, while this one looks whether the cluster is alive."""
        arrived: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue(maxsize=8)

        def wait() -> None:
            try:
                for answer in answers.iter_rows():
                    arrived.put(answer)
                arrived.put(None)
            except BaseException as error:
                arrived.put(error)

        threading.Thread(target=wait, daemon=True).start()
        while True:
            self._check_alive()
            try:
                found = arrived.get(timeout=_LOOK_EVERY)
            except queue.Empty:
                continue
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found

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
                raise ArtifactError(f"The head of Ray does not answer: it is gone. {_AGAIN}") from None


def join_on_ray(work: Work, progress: Progress | None, *, cluster: Cluster) -> None:
    """Have the planned shards encoded on a cluster, whose machines must see the images, the model and the store."""
    settings, so_far = worker_settings(work), work.counting(progress)
    rows = ({"shard": position} for position in range(len(work.plan.shards)))
    with cluster:
        for row in cluster.map(rows, ShardActor, settings):
            so_far(row["shard"], work.plan.shards[row["shard"]].images, True)


class ShardActor:
    """Sees to it that one planned shard after the other is finished."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        self._settings, self._device = settings, device
        self._joiner: Joiner | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        with answering(row) as answer:
            if self._joiner is None:
                _use_one_core(self._device)
                opened = open_work(self._settings, self._device)
                if opened is None:  # another run has finished the store
                    return answer
                self._joiner = Joiner(*opened)
            while not self._joiner.take(int(row["shard"]), lambda *_: None):
                time.sleep(_BUSY_SECONDS)  # another run works on it
        return answer


@dataclass(frozen=True)
class RayScored:
    """What `score_on_ray` did."""

    detector: Detector
    counts: Counts
    unreadable: list[Unreadable]


def score_on_ray(
    images: str | Path | Sequence[str],
    detector: str | Path | None,
    out: str | Path | None,
    *,
    ray: str = "local",
    workers: int | None = None,
    top_k: int = 1,
    on: str | On = "auto",
) -> RayScored:
    """Score images or a feature store on a Ray cluster; the table has the bytes that `score` writes.

    A part is a shard of the store, or sixteen batches of images. This process writes the verdicts of each part, as they
    come, to a hidden folder next to `out`; a run that ended early finds there what need not be done again. When all
    parts are there, they are merged in order. The detector is sent to the actors; the images, or the store, and the
    model must be within their reach.

    Args:
        images: paths or URLs of images, or of one feature store.
        detector: a detector's folder. It must be given, as must `out`.
        out: the table, FILE.csv, .jsonl, .parquet or .xlsx, or its URL in cloud storage.
        ray: `local` starts Ray on this machine, `auto` uses the running one, or HOST:PORT.
        workers: number of actors; by default one per CPU, or per GPU where the device is one.
        top_k: number of closest classes to report per image.
        on: where actors run the model, and images per batch.
    """
    if detector is None:
        raise InputError("`ray` needs `detector`: each process loads it.")
    if out is None or names_fiftyone(out):
        raise InputError("`ray` needs `out`: a file .csv, .jsonl, .parquet or .xlsx for the verdicts.")
    check_table(out, "out")
    if top_k < 1:
        raise InputError(f"`top_k` must be at least 1, got {top_k!r}.")
    on = On.of(on)
    cluster = Cluster(ray, workers, on.device)
    # This process only reads the detector; the device is the workers'.
    by = DetectorSource.of(detector, replace(on, device="cpu"), "score")
    source = as_source(images)
    parts = parts_of(source, WINDOW_BATCHES * on.batch_size)
    loaded = by.detector()
    check_has(source, loaded.score.needs | loaded.classifier.needs_to_predict, "This detector")
    for store in stores_of(source):
        store.check_model(loaded.classifier.model)
    given = [images] if isinstance(images, str | Path) else images
    working_folder = None if all(is_url(str(path)) for path in given) else str(Path.cwd())
    actor = (_files_of(loaded), on.batch_size, top_k, working_folder)
    unreadable: list[Unreadable] = []
    rejected = 0

    def rows(tables: Iterable[pa.Table]) -> Iterator[list[dict[str, Any]]]:
        nonlocal rejected
        for table in tables:
            failed = table.filter(table["error"].is_valid()).to_pylist()
            unreadable.extend(Unreadable(row["path"], row["error"]) for row in failed)
            judged = table.filter(table["error"].is_null()).drop_columns(["error"]).to_pylist()
            rejected += sum(row["is_ood"] for row in judged)
            yield judged

    with stage("Scoring on Ray") as progress, _parts_folder(out, loaded, on.batch_size, top_k) as folder:
        try:
            names = score_parts(folder, parts, cluster, actor, progress)
            columns = verdict_columns(min(top_k, len(loaded.classifier.classes)))
            written = write_table(out, rows(_read_part(folder, name) for name in names), columns)
        except KeyboardInterrupt as stop:
            stop.add_note("The parts that are done are kept: run the same command again to resume.")
            raise
    return RayScored(loaded, Counts(written, rejected, len(unreadable)), unreadable)


def score_parts(
    folder: StoreFolder,
    parts: Iterable[SourcePart],
    cluster: Cluster,
    actor: tuple[Any, ...],
    progress: Progress | None,
) -> list[str]:
    """See to it that every part has its file, and give their names in order. An actor is made with `actor`."""
    present, names = folder.sizes(), list[str]()
    done = total = 0

    def left() -> Iterator[dict[str, Any]]:
        nonlocal done, total
        for position, part in enumerate(parts):
            names.append(f"{position:06d}-{part.version}.parquet")
            total += part.images
            if names[-1] in present:
                done += part.images
            else:
                yield {"name": names[-1], "images": part.images, "content": part.content}

    with cluster:
        for row in cluster.map(left(), ScoreActor, *actor):
            folder.put(row["name"], row["verdicts"])
            done += row["images"]
            if progress is not None:
                progress(done, total)
    return names


class ScoreActor:
    """Loads the detector once, and gives the verdicts of one part after the other as a Parquet file.

    The detector comes as its files; relative paths start at `working_folder`.
    """

    def __init__(
        self, files: dict[str, bytes], batch_size: int, top_k: int, working_folder: str | None, device: str
    ) -> None:
        self._files, self._batch_size, self._top_k = files, batch_size, top_k
        self._working_folder, self._device = working_folder, device
        self._detector: Detector | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with answering({"name": row["name"], "images": row["images"], "verdicts": b""}) as answer:
            self._detector = self._detector or self._load()
            stream = self._detector.stream(
                open_part(row["content"]), top_k=self._top_k, batch_size=self._batch_size, progress=lambda *_: None
            )
            sink = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(with_errors(verdicts) for verdicts in stream.batches()), sink)
            answer["verdicts"] = sink.getvalue().to_pybytes()
        return answer

    def _load(self) -> Detector:
        from deltaenergy.detector.detector import Detector

        _use_one_core(self._device)
        if self._working_folder is not None:
            try:
                os.chdir(self._working_folder)
            except OSError as error:
                raise InputError(
                    f"A worker cannot open the folder {self._working_folder}: {error.strerror}. Every machine of the "
                    "cluster must see the images."
                ) from error
        with tempfile.TemporaryDirectory() as folder:
            for name, data in self._files.items():
                (Path(folder) / name).write_bytes(data)
            return Detector.load(folder, device=self._device).prepare()


def _files_of(detector: Detector) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        detector.save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _read_part(folder: StoreFolder, name: str) -> pa.Table:
    """The verdicts of a part, with the column `error`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(folder.read(name)))
        table.select(["path", "error"])
    except (OSError, pa.ArrowException, KeyError) as error:
        path = folder.full_name(name)
        raise ArtifactError(f"{path} cannot be read: {error}. Remove it, and run the same command again.") from error
    return table


@contextlib.contextmanager
def _parts_folder(out: str | Path, detector: Detector, batch_size: int, top_k: int) -> Iterator[StoreFolder]:
    """A folder of ours next to `out`, removed if the block ends well. On a disk only one run may use it."""
    from deltaenergy.detector.saved import version_of

    asked = [__version__, version_of(detector), detector.require_threshold().slack, batch_size, top_k]
    table = Path(os.path.realpath(out))
    name = f".deltaenergy-{table.name}-{hash_value(asked)}.parts"
    folder = open_folder(f"{folder_of(out)}/{name}" if is_url(out) else table.with_name(name))
    with contextlib.ExitStack() as held:
        if isinstance(folder, LocalFolder):
            held.callback(remove_empty, folder.path)
            held.enter_context(lock_folder(folder.path))
        folder.tidy()
        yield folder
        for name in folder.sizes():
            folder.delete(name)


def _use_one_core(device: str) -> None:
    """As many actors as cores compute side by side."""
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
