"""Work on Ray actors: connect, start as many actors as there is room for, hand out parts, and notice when Ray is lost.

One task a part. Ray starts an actor that died again and repeats its task; the actors of this package look first whether
the part is there already. What is done stays done whatever happens to Ray, so that every failure here ends with the
advice to run the same command again.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deltaenergy import errors
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError, explain_os_error

# Ray itself ends the whole process when its head has been silent for a minute: we must be sooner.
PATIENCE = 20.0
_LOOK_EVERY = 1.0
_CLOSING = 5.0
_STARTS = 3
# A part that ends its process so often is at fault itself.
MOST_RETRIES = 3
_ADDRESS = re.compile(r"local|auto|\[?[\w.:-]+\]?:\d{1,5}")
_STORE_BYTES = 100 << 20
DEVICES = ("auto", "cpu", "cuda")
AGAIN = "Nothing that was done is lost: run the same command again to go on."


@dataclass(frozen=True)
class Failed:
    """What an actor gives back in place of a result: an error that is the user's to mend, in words, and its kind."""

    message: str
    kind: str = "ArtifactError"

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """An error that an actor met; what the system refused is put into words."""
        if isinstance(error, OSError) and not isinstance(error, DeltaEnergyError):
            return cls(explain_os_error(error))
        return cls(str(error), type(error).__name__)


def check_device(device: str) -> None:
    """Raise `InputError` for a device that Ray does not hand out."""
    if device not in DEVICES:
        raise InputError(
            f"`device` {device} is one of this machine. On Ray use {', '.join(DEVICES[:-1])} or {DEVICES[-1]}."
        )


def is_address(text: str) -> bool:
    """Whether this names a Ray: `local`, `auto` or HOST:PORT."""
    return _ADDRESS.fullmatch(text) is not None


@contextlib.contextmanager
def connected(address: str, workers: int | None = None) -> Iterator[Cluster]:
    """Ray at `address` for the block. `local` starts one on this machine, which ends with the block.

    A Ray that this process is connected to already is used as it is, and left so.
    """
    if not is_address(address):
        raise InputError(
            f"`ray` {address!r} is not an address. Give local (a Ray of its own on this machine), auto (the one that "
            "runs here, or that RAY_ADDRESS names) or HOST:PORT."
        )
    ray = _import_ray()
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, workers)
    try:
        yield Cluster(ray)
    finally:
        if ours:
            ray.shutdown()


def _import_ray() -> Any:
    # Ray would report its use over the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError("`ray` needs Ray: pip install 'deltaenergy[ray]'.") from None
    return ray


def _start(ray: Any, address: str, workers: int | None) -> None:
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # On the loopback address: nobody else can reach it.
        settings |= {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        settings["object_store_memory"] = _STORE_BYTES
    attempts = _STARTS if address == "local" else 1
    for attempt in range(attempts):
        try:
            ray.init(**settings)
            return
        except Exception as error:  # Ray says by a bare one that it was not up in time, as on a busy machine
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
        self._heard = self._looked = time.monotonic()

    def places(self, device: str, workers: int | None) -> tuple[str, int]:
        """Where each actor runs, `cuda` or `cpu`, and how many there are: as many as fit, if not said."""
        resources = self._ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            raise InputError("`device` cuda: no machine of this Ray has a GPU. Use cpu.")
        room = gpus or int(resources.get("CPU", 0))
        if workers is not None and workers > room:
            raise InputError(f"`workers` {workers}: this Ray has {room} {'GPU' if gpus else 'CPU'}(s).")
        return "cuda" if gpus else "cpu", workers or max(room, 1)

    def run(self, actor: type, argument: Any, parts: Sequence[Any], *, device: str, workers: int) -> Iterator[Any]:
        """Hand each part to an actor of this class, made with `argument`, and give the results as they come.

        The class has the methods `prepare()` and `work(part)`, each of which may give back `Failed`, which ends the
        run, and `close()`, which is called when all parts are done.
        """
        ray = self._ray
        needs = {"num_cpus": 0, "num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        made = ray.remote(**needs, max_restarts=-1, max_task_retries=MOST_RETRIES)(actor)
        actors: list[Any] = []
        try:
            actors += [made.remote(argument) for _ in range(min(workers, len(parts)))]
            yield from self._hand_out(actors, parts)
            self._close(actors)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # an error of ours
        except ray.exceptions.RayActorError as error:
            raise ArtifactError(
                f"A worker ended {MOST_RETRIES + 1} times in the same part, or its machine was lost (a picture that "
                f"needs more memory than there is?). {AGAIN}"
            ) from error
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ArtifactError(f"Ray was lost: {(str(error).strip().splitlines() or [''])[0]} {AGAIN}") from error
        finally:
            for one in actors:
                with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
                    ray.kill(one)

    def _hand_out(self, actors: list[Any], parts: Sequence[Any]) -> Iterator[Any]:
        from ray.util import ActorPool

        # An actor gets a part when it is ready: one that waits for a free CPU holds up nobody.
        starting = {one.prepare.remote(): one for one in actors}
        pool, waiting = ActorPool([]), iter(parts)
        left = len(parts)
        while left:
            if starting:
                ready, _ = self._ray.wait(list(starting), timeout=0 if pool.has_next() else _LOOK_EVERY)
                for reference in ready:
                    _check(self._ray.get(reference))
                    pool.push(starting.pop(reference))
            while pool.has_free() and (part := next(waiting, None)) is not None:
                pool.submit(lambda one, value: one.work.remote(value), part)
            if pool.has_next():
                try:
                    result = pool.get_next_unordered(timeout=_LOOK_EVERY)
                except TimeoutError:
                    pass
                else:
                    yield _check(result)
                    left -= 1
            self._check_alive()

    def _close(self, actors: list[Any]) -> None:
        """Let actors go in peace; the work is done, and those that cannot answer are ended in any case."""
        closed = [one.close.remote() for one in actors]
        self._ray.wait(closed, num_returns=len(closed), timeout=_CLOSING)

    def _check_alive(self) -> None:
        """Raise `ArtifactError` if the head of the cluster has not answered for too long."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        try:
            socket.create_connection(self._head, timeout=_LOOK_EVERY).close()
            self._heard = now
        except OSError:
            if now - self._heard > PATIENCE:
                raise ArtifactError(f"The head of Ray does not answer: it is gone. {AGAIN}") from None


def _check(result: Any) -> Any:
    if isinstance(result, Failed):
        raise getattr(errors, result.kind, ArtifactError)(result.message)
    return result
