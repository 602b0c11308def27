"""The option `--ray [ADDRESS]`, whose value may be left out, and `--workers` that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from deltaenergy.cli.shell.options import check_count

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Share the work out on Ray: alone a Ray of its own on this machine, auto the one that runs here, or "
        "HOST:PORT.",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        callback=check_count,
        help="Number of Ray workers (needs --ray). Default: one per CPU or GPU.",
        show_default=False,
    ),
]


def with_ray_address(given: Sequence[str]) -> list[str]:
    """The arguments with `local` behind a `--ray` that no address follows; typer knows no values that may lack."""
    end = given.index("--") if "--" in given else len(given)
    if "--ray" not in given[:end]:
        return list(given)
    from deltaenergy.scale.ray_cluster import is_address

    found: list[str] = []
    for position, argument in enumerate(given):
        found.append(argument)
        last = position + 1 >= end
        if argument == "--ray" and position < end and (last or not is_address(given[position + 1])):
            found.append("local")
    return found
