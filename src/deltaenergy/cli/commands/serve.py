"""`deltaenergy serve`: a page and a JSON service."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.detector.detector import Detector
    from deltaenergy.monitor import Monitor


def serve(
    detector: Annotated[
        list[str] | None,
        typer.Option("--detector", "-d", help="Folder of a detector, or NAME=FOLDER; may be given several times."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="For class names that come with a request. Default: lite, or the detectors' own if they share one.",
            show_default=False,
        ),
    ] = None,
    monitor: Annotated[
        list[str] | None,
        typer.Option("--monitor", help="STATE.json, or NAME=STATE.json: watch for a change, as `monitor` does."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="Keys, one per line: whoever asks must send one.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option("--cors", help="An origin whose pages may ask; none unless given.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="The longest a request may take.")] = 30,
    max_files: Annotated[int, typer.Option("--max-files", min=1, help="Images in a request.")] = 64,
    max_body: Annotated[float, typer.Option("--max-body", help="Megabytes of a request.")] = 64,
    max_megapixels: Annotated[float, typer.Option("--max-megapixels", help="Of one picture.")] = 50,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Images under way at a time; beyond, 429.")] = 256,
    max_wait: Annotated[float, typer.Option("--max-wait", help="Milliseconds to wait for company in a batch.")] = 5,
    heic: Annotated[bool, typer.Option("--heic", help="Read HEIC images, too (needs the extra heic).")] = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Answer over HTTP: a page at /, the API at /v1 (described at /docs), /v2 for inference clients, /metrics.

    Models are loaded before the service listens, and no request ever downloads anything.
    """
    try:
        from deltaenergy.serve import server
        from deltaenergy.serve.guard import Keys
    except ModuleNotFoundError as error:
        raise InputError(
            f"serve needs {error.name}, which is not installed: pip install 'deltaenergy[serve]'."
        ) from None

    from deltaenergy.data.decode import use_heic

    place = common.ModelPlace(device, backend, precision, calibrate_on)
    server.keep_memory_flat()
    limits = server.Limits(
        body_mb=max_body,
        files=max_files,
        megapixels=max_megapixels,
        seconds=seconds,
        queue=max(queue, max_files),
        batch=batch_size,
        wait_ms=max_wait,
    )
    keys = None if api_key_file is None else Keys.read(api_key_file)
    wanted = [server.named(argument) for argument in detector or []]
    watching = [server.watched(argument, [name for name, _ in wanted]) for argument in monitor or []]
    bound = server.listen(host, port)
    with contextlib.ExitStack() as held:
        held.callback(bound.close)
        use_heic(heic)
        detectors, own = server.load(
            wanted,
            model,
            lambda folder: common.prepare(common.load_detector(folder, place)),
            lambda name: common.load_model_with_status(name, place),
        )
        watches = _watches(watching, dict(detectors), held)
        engine = server.make_engine(detectors, own, limits, watches)
        with common.status("Encoding the words of the default score …"):
            engine.prepare()
        bound.listen(1024)  # whoever asks from now on is answered, if only in a moment
        address = bound.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        if keys is None and not _is_loopback(host):
            err.print("Anyone who reaches this address may ask: give --api-key-file to change that.", style="yellow")
        err.print(f"Ready: http://{shown}:{address}/ (page), /docs (API). Ctrl+C stops.")
        server.run(engine, bound, keys, tuple(cors or ()))


def _watches(
    wanted: list[tuple[str, Path]], detectors: dict[str, Detector], held: contextlib.ExitStack
) -> dict[str, tuple[Monitor, Path]]:
    """The monitors, whose state files are held while the service runs, and written when it ends."""
    from deltaenergy.monitor import Monitor

    watches: dict[str, tuple[Monitor, Path]] = {}
    for name, path in wanted:
        if name in watches:
            raise InputError(f"--monitor names two state files for the detector {name!r}.")
        watches[name] = held.enter_context(Monitor.open(path, detectors[name])), path
    return watches


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
