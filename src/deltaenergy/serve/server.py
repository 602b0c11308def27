"""Load detectors and models, then listen; stop when told to, with what was accepted finished."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from deltaenergy.detector.detector import Detector
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.models.base import TowerModel
from deltaenergy.monitor import Monitor
from deltaenergy.serve.app import create_app
from deltaenergy.serve.engine import Engine
from deltaenergy.serve.keys import Keys
from deltaenergy.serve.limits import Limits
from deltaenergy.serve.metrics import Metrics
from deltaenergy.serve.targets import Target
from deltaenergy.serve.watching import Watch

LONGEST_NAME = 100
_M_ARENA_MAX, _ARENAS = -8, 2


def keep_memory_flat() -> None:
    """Let all threads share two heaps. To be called before they start.

    glibc otherwise makes a heap for each of them, and what they free there is not used by the others: under load the
    process would grow for hours. Other C libraries have no such setting, and no need of it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def make_engine(
    detectors: Sequence[tuple[str, Detector]],
    model: TowerModel | None,
    limits: Limits | None = None,
    default_score: str = "mcm",
    watches: Mapping[str, tuple[Monitor, Path]] | None = None,
) -> Engine:
    """An engine for named detectors, and for class names on `model`; `watches` are monitors and their state files."""
    targets: dict[str, Target] = {}
    for name, detector in detectors:
        if name in targets:
            raise InputError(f"Two detectors are called {name!r}: give each a name, --detector NAME=FOLDER.")
        targets[name] = Target.of_detector(name, detector)
    metrics = Metrics()
    watched = {name: Watch(name, monitor, path, metrics) for name, (monitor, path) in (watches or {}).items()}
    return Engine(targets, model, default_score, limits or Limits(), metrics, watched)


def named(argument: str) -> tuple[str, str]:
    """NAME=FOLDER, or a folder whose own name is the detector's."""
    name, equals, folder = argument.partition("=")
    if not equals or not name or "/" in name:
        name, folder = Path(argument).resolve().name, argument
    if not name or len(name) > LONGEST_NAME or "/" in name or not name.isprintable():
        raise InputError(f"--detector {argument}: a name has 1 to {LONGEST_NAME} printable characters without a slash.")
    return name, folder


def watched(argument: str, detectors: Sequence[str]) -> tuple[str, Path]:
    """NAME=STATE, or the state file of the only detector there is."""
    name, equals, path = argument.partition("=")
    if not equals or "/" in name:
        if len(detectors) != 1:
            raise InputError(f"--monitor {argument}: there are {len(detectors)} detectors, so say which: NAME=STATE.")
        return detectors[0], Path(argument)
    if name not in detectors:
        raise InputError(f"--monitor {argument}: there is no detector {name!r}.{did_you_mean(name, detectors)}")
    return name, Path(path)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket: a port that is taken is found before models are loaded."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (TypeError, UnicodeError):  # what a host name cannot hold
        raise InputError(f"--host {host!r} is not the name or address of a host.") from None
    except OSError as error:
        raise InputError(
            f"The service cannot listen on {host} port {port}: {error.strerror or error}. Try another --port."
        ) from None
    return bound


def run(engine: Engine, bound: socket.socket, keys: Keys | None, cors: tuple[str, ...] = ()) -> None:
    """Serve until SIGINT or SIGTERM."""
    import uvicorn

    config = uvicorn.Config(
        create_app(engine, keys, cors),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        # Longer than any answer may take: whatever was accepted is finished.
        timeout_graceful_shutdown=int(engine.limits.seconds) + 5,
        h11_max_incomplete_event_size=64 * 1024,
    )
    # uvicorn finishes what it accepted and then raises the signal again: a stop that was asked for is no failure.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
