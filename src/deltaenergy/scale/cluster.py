"""A Ray cluster: connect, hand out rows through Ray Data, and notice when Ray is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltaenergy import errors
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError, explain_os_error

# Ray itself ends the whole process when its head has been silent for a minute: we must be sooner.
PATIENCE = 20.0
_LOOK_EVERY = 1.0
_STARTS = 3
# A row that ends its actor this often is at fault itself.
MOST_RETRIES = 3
DEVICES = ("auto", "cpu", "cuda")
AGAIN = "Nothing that was done is lost: run the same command again to resume."
_ADDRESS = re.compile(r"local|auto|\[?[\w.:-]+\]?:\d{1,5}")
_OBJECT_STORE_BYTES = 100 << 20


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


@contextlib.contextmanager
def connected(address: str, workers: int | None = None) -> Iterator[Cluster]:
    """Ray at `address` for the block. `local` starts one on this machine, which ends with the block.

    A Ray that this process is connected to already is used as it is, and left so.
    """
    if not _ADDRESS.fullmatch(address):
        raise InputError(
            f"`ray` {address!r} is not a valid address. Use local (starts Ray on this machine), auto (the Ray that "
            "runs here, or that RAY_ADDRESS names) or HOST:PORT."
        )
    # Ray would report its use over the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("`ray` needs Ray: pip install 'deltaenergy[ray]'.") from None
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
                raise InputError(f"There is no Ray at `ray` {address}, or it does not start: {first}") from error


class Cluster:
    """A Ray that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._answered = self._looked = time.monotonic()

    def room(self, device: str, workers: int | None) -> tuple[str, int]:
        """Where each actor runs, `cuda` or `cpu`, and how many there are: as many as fit by default."""
        if device not in DEVICES:
            raise InputError(f"`device` {device} is one of this machine. On Ray use auto, cpu or cuda.")
        resources = self._ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            raise InputError("`device` cuda: no machine of this Ray has a GPU. Use cpu.")
        room = gpus or int(resources.get("CPU", 0))
        if workers is not None and workers > room:
            raise InputError(f"`workers` {workers}: this Ray has only {room} {'GPUs' if gpus else 'CPUs'}.")
        return "cuda" if gpus else "cpu", workers or max(room, 1)

    def put(self, row: dict[str, Any]) -> Any:
        import pyarrow as pa

        return self._ray.put(pa.Table.from_pylist([row]))

    def map(
        self, rows: Sequence[Any], actor: type, argument: Any, *, device: str, actors: int
    ) -> Iterator[dict[str, Any]]:
        """Have actors of this class, made with `argument`, called with each row; gives their answers as they come."""
        if not rows:
            return
        ray = self._ray
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what is wrong is said here
        needs = {"num_cpus": 0, "num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray means to give the two limits other names
            answers = ray.data.from_arrow_refs(list(rows)).map(
                actor,
                fn_constructor_args=[argument],
                compute=ray.data.ActorPoolStrategy(size=min(actors, len(rows))),
                max_restarts=-1,
                max_task_retries=MOST_RETRIES,
                **needs,
            )
        try:
            for answer in self._watched(answers):
                if answer["error"] is not None:
                    raise getattr(errors, answer["kind"], ArtifactError)(answer["error"])
                yield answer
        except ray.exceptions.RayActorError as error:
            raise ArtifactError(
                f"A worker ended {MOST_RETRIES + 1} times in the same part, or its machine was lost (an image that "
                f"needs more memory than there is?). {AGAIN}"
            ) from error
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ArtifactError(f"Ray was lost: {(str(error).strip().splitlines() or [''])[0]} {AGAIN}") from error

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
                raise ArtifactError(f"The head of Ray does not answer: it is gone. {AGAIN}") from None
