"""Limits, loading of detectors and models, and listening. On a stop, accepted requests are finished."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import math
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from deltaenergy.core.progress import stage
from deltaenergy.data.decode import use_heic
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import DetectorSource
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.models.base import TowerModel
from deltaenergy.models.on import On
from deltaenergy.monitor import Monitor
from deltaenergy.serve.app import create_app
from deltaenergy.serve.engine import Engine, Predictor, Watch
from deltaenergy.serve.guard import Keys
from deltaenergy.serve.metrics import Metrics

LONGEST_NAME = 100
# The limit of the form parser.
MOST_FILES = 1000
# Numbers of glibc's settings, in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of a request and of the service; a refusal names its limit.

    Attributes:
        body_mb: maximum size of a request, in megabytes.
        files: maximum images per request.
        megapixels: maximum size of an image, checked before it is decoded.
        seconds: maximum time from the first byte of a request to its answer.
        queue: images that are decoded, waiting or in a batch, of all requests together.
        batch: images per encoder batch.
        wait_ms: how long an image may wait for others to share its batch while the encoder is idle.
        classes: maximum class names per request.
        name_length: maximum length of a class name.
        class_lists: number of class lists whose text features are cached.
        rows: maximum features or scores per request.
    """

    body_mb: float = 64
    files: int = 64
    megapixels: float = 50
    seconds: float = 30
    queue: int = 256
    batch: int = 32
    wait_ms: float = 5
    classes: int = 1000
    name_length: int = 200
    class_lists: int = 32
    rows: int = 10_000

    @classmethod
    def of(cls, text: str) -> Limits:
        """From one text: `"seconds=60,files=128"`."""
        kinds = {one.name: float if one.type == "float" else int for one in fields(cls) if one.name != "batch"}
        found: dict[str, float] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, _, value = part.partition("=")
            if name not in kinds:
                raise InputError(f"`limits` has no {name[:60]!r}.{did_you_mean(name[:60], kinds)}")
            try:
                found[name] = kinds[name](value)
            except ValueError:
                raise InputError(f"`limits` {name} must be a number, as in {name}=60, got {value[:60]!r}.") from None
        # A larger request needs a longer queue.
        found.setdefault("queue", max(cls.queue, found.get("files", 0)))
        return cls(**found)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), 0 if one.name == "wait_ms" else 1e-9
            if not (math.isfinite(value) and value >= least):
                raise InputError(f"The limit {one.name} must be a number above 0, got {value!r}.")
        if self.files > MOST_FILES:
            raise InputError(f"The limit files must be at most {MOST_FILES:,}, got {self.files:,}.")
        if self.queue < self.files:
            raise InputError(
                f"The limit queue ({self.queue}) must be at least files ({self.files}): otherwise an allowed request "
                "would always be refused."
            )

    @property
    def body_bytes(self) -> int:
        return int(self.body_mb * 1_000_000)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1_000_000)


def keep_memory() -> None:
    """Let all threads share one heap, and keep what is freed for the next batch. Call it before they start.

    Otherwise glibc makes a heap per thread, and no other thread reuses memory freed there: under load the process would
    grow for hours. And it returns large tensors to the system as soon as they are freed: a sixth of the time of `lite`
    would go into clearing new pages. Other C libraries have no such settings and do not need the first.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 128 * _MB)
        mallopt(_M_TRIM_THRESHOLD, 512 * _MB)


def make_engine(
    detectors: Sequence[tuple[str, Detector]],
    model: TowerModel | None,
    limits: Limits | None = None,
    watches: Mapping[str, tuple[Monitor, Path]] | None = None,
) -> Engine:
    """An engine for named detectors, and for class names on `model`; `watches` are monitors and their state files."""
    predictors: dict[str, Predictor] = {}
    for name, detector in detectors:
        if name in predictors:
            raise InputError(f"Two detectors are named {name!r}: give each its own name.")
        predictors[name] = Predictor.of_detector(name, detector)
    metrics = Metrics()
    watched = {name: Watch(name, monitor, path, metrics) for name, (monitor, path) in (watches or {}).items()}
    return Engine(predictors, model, limits or Limits(), metrics, watched)


@dataclass(frozen=True)
class Service:
    """What to serve, where, and to whom; `run` starts it.

    Attributes:
        detectors: folders of detectors, or NAME=FOLDER.
        model: for class names of requests. Default: the detectors' own if they share one, or `lite`.
        monitors: state files of monitors, STATE.json, or NAME=STATE.json of one of several detectors.
        host: address to listen on.
        port: 0 for a free one.
        api_key_file: file with API keys, one per line.
        cors: web origins whose pages may send requests.
        limits: of a request and of the service.
        heic: whether HEIC images are read.
        on: where models are loaded.
    """

    detectors: Sequence[str] = ()
    model: str | None = None
    monitors: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: Path | None = None
    cors: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    heic: bool = False
    on: str | On = "auto"

    @property
    def is_open(self) -> bool:
        """Whether anyone who can reach the machine can use the service."""
        try:
            return self.api_key_file is None and not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.api_key_file is None and self.host != "localhost"

    def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until SIGINT or SIGTERM; `ready` is called with the URL once requests are answered.

        Models are loaded before the service listens.
        """
        on = On.of(self.on)
        keep_memory()
        keys = None if self.api_key_file is None else Keys.read(self.api_key_file)
        wanted = dict(map(named, self.detectors))
        if len(wanted) < len(self.detectors):
            raise InputError("Two `detectors` have one name: give each its own, NAME=FOLDER.")
        states = [watched(argument, list(wanted)) for argument in self.monitors]
        if len(dict(states)) < len(states):
            raise InputError("Two `monitors` are for one detector: give each its own state file.")
        sources = {name: DetectorSource.of(folder, on, "serve") for name, folder in wanted.items()}
        bound = listen(self.host, self.port)
        with contextlib.ExitStack() as held:
            held.callback(bound.close)
            use_heic(self.heic)
            detectors, model = _load(sources, self.model, on)
            watches = {name: (held.enter_context(Monitor.open(path, detectors[name])), path) for name, path in states}
            limits = replace(self.limits, batch=on.batch_size)
            engine = make_engine(list(detectors.items()), model, limits, watches)
            with stage("Encoding the words of the default score"):
                engine.prepare()
            bound.listen(1024)  # requests are accepted from now on
            host = f"[{self.host}]" if ":" in self.host else self.host
            ready(f"http://{host}:{bound.getsockname()[1]}/")
            run(engine, bound, keys, tuple(self.cors))


def _load(sources: Mapping[str, DetectorSource], model: str | None, on: On) -> tuple[dict[str, Detector], TowerModel]:
    """The detectors, and the model for class names of requests; detectors of one model share it and its batches."""
    known: dict[str, TowerModel] = {}
    detectors: dict[str, Detector] = {}
    for name, source in sources.items():
        detectors[name] = loaded = source.detector()
        base = loaded.classifier.base_model
        if base.fingerprint in known and base is not known[base.fingerprint]:
            assert isinstance(source.by, str)
            detectors[name] = Detector.load(source.by, model=known[base.fingerprint]).prepare()
        elif isinstance(base, TowerModel):
            known[base.fingerprint] = base
    if model is None and len(known) == 1:
        return detectors, next(iter(known.values()))
    with stage("Loading the model"):
        own = on.load_model(model or "lite")
    return detectors, known.get(own.fingerprint, own)


def named(argument: str) -> tuple[str, str]:
    """NAME=FOLDER, or a folder whose name becomes the detector's."""
    name, equals, folder = argument.partition("=")
    if not equals or not name or "/" in name:
        name, folder = Path(argument).resolve().name, argument
    if not name or len(name) > LONGEST_NAME or "/" in name or not name.isprintable():
        raise InputError(
            f"`detectors` {argument}: a name has 1 to {LONGEST_NAME} printable characters without a slash."
        )
    return name, folder


def watched(argument: str, detectors: Sequence[str]) -> tuple[str, Path]:
    """NAME=STATE, or the state file of the only detector."""
    name, equals, path = argument.partition("=")
    if not equals or "/" in name:
        if len(detectors) != 1:
            raise InputError(f"`monitors` {argument}: there are {len(detectors)} detectors, so say which: NAME=STATE.")
        return detectors[0], Path(argument)
    if name not in detectors:
        raise InputError(f"`monitors` {argument}: there is no detector {name!r}.{did_you_mean(name, detectors)}")
    return name, Path(path)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, made before models are loaded, to find a port that is taken."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (TypeError, UnicodeError):  # what a host name cannot contain
        raise InputError(f"`host` {host!r} is not the name or address of a host.") from None
    except OSError as error:
        raise InputError(
            f"The service cannot listen on {host} port {port}: {error.strerror or error}. Try another `port`."
        ) from None
    return bound


def run(engine: Engine, bound: socket.socket, keys: Keys | None, cors: tuple[str, ...] = ()) -> None:
    import uvicorn

    config = uvicorn.Config(
        create_app(engine, keys, cors),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        # Longer than any answer may take, so accepted requests finish.
        timeout_graceful_shutdown=int(engine.limits.seconds) + 5,
        h11_max_incomplete_event_size=64 * 1024,
    )
    # uvicorn finishes what it accepted and then raises the signal again: a requested stop is not a failure.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
