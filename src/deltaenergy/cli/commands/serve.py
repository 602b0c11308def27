"""`deltaenergy serve`: a web page and a JSON service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err
from deltaenergy.errors import InputError


@command(
    "Operate",
    "deltaenergy serve --detector detector/",
    "deltaenergy serve --detector detector/ --monitor state.json --port 8080 --limits seconds=60,files=128",
)
def serve(
    detector: Annotated[
        list[str] | None, o.unset("--detector", "-d", help="Folder of a detector, or NAME=FOLDER; repeat for several.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Model for requests that bring their own class names.",
            show_default="the detectors' own if they share one, or lite",
        ),
    ] = None,
    monitor: Annotated[
        list[str] | None, o.unset(help="Monitor file: STATE.json, or NAME=STATE.json (see monitor).")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8000,
    api_key_file: Annotated[
        Path | None, o.unset(help="File with API keys, one per line; clients must send one.")
    ] = None,
    cors: Annotated[list[str] | None, o.unset(help="Allow requests from this web origin; repeatable.")] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            help="Limits per request: seconds, files, body_mb, megapixels. For the service: queue (images in "
            "progress; more get 429), wait_ms (to fill a batch). Such as seconds=60,files=128.",
            show_default="seconds=30, files=64, body_mb=64, megapixels=50, queue=256, wait_ms=5",
        ),
    ] = None,
    heic: Annotated[bool, typer.Option("--heic", help="Also read HEIC images (needs the extra heic).")] = False,
    on: o.OnOption = "auto",
) -> None:
    """Serve detectors over HTTP: web page (/), JSON API (/v1, /docs), Open Inference Protocol (/v2), /metrics.

    Models are loaded before the service listens, and no request downloads anything.
    """
    try:
        from deltaenergy.serve.server import Limits, Service
    except ModuleNotFoundError as error:
        raise InputError(
            f"serve needs {error.name}, which is not installed: pip install 'deltaenergy[serve]'."
        ) from None

    service = Service(
        detectors=detector or (),
        model=model,
        monitors=monitor or (),
        host=host,
        port=port,
        api_key_file=api_key_file,
        cors=cors or (),
        limits=Limits.of(limits or ""),
        heic=heic,
        on=on,
    )

    def ready(url: str) -> None:
        if service.is_open:
            warning = "Warning: no API key; anyone who can reach this address can use the service. Set --api-key-file."
            err.print(warning, style="yellow")
        err.print(f"Ready: {url} (page), /docs (API). Ctrl+C stops.")

    service.run(ready)
