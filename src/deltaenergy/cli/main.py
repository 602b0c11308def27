"""The command `deltaenergy`. Each command is a file of its own; heavy imports happen when one runs."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from deltaenergy import __version__
from deltaenergy.cli.commands import (
    bench,
    calibrate,
    choose,
    data,
    demo,
    evaluate,
    explain,
    features,
    methods,
    model,
    monitor,
    report,
    score,
    serve,
    theory,
    tune,
    undo,
)
from deltaenergy.cli.shell.common import err, out, show_warnings_plainly
from deltaenergy.cli.shell.examples import named
from deltaenergy.cli.shell.exits import guarded
from deltaenergy.core.progress import show_progress
from deltaenergy.errors import InputError

# Importing torch makes some hundred thousand objects that all stay: by default the collector walks them many times.
COLLECT_AFTER = 50_000

app = typer.Typer(
    name="deltaenergy",
    help="Say which of your classes an image is, and whether it is any of them at all.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _add(name: str, command: Callable[..., None]) -> None:
    named(app, name, name)(command)


_add("demo", demo.demo)
_add("score", score.score)
_add("undo", undo.undo)
_add("calibrate", calibrate.calibrate)
_add("choose", choose.choose)
_add("evaluate", evaluate.evaluate)
_add("explain", explain.explain)
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")
_add("tune", tune.tune)
_add("theory", theory.theory)
_add("bench", bench.bench)
_add("report", report.report)
_add("serve", serve.serve)
_add("monitor", monitor.monitor)
_add("features", features.features)
_add("verify", features.verify)
_add("methods", methods.methods)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"deltaenergy {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print results, warnings and errors only. Goes with every command.")
    ] = False,
) -> None:
    """Say which of your classes an image is, and whether it is any of them at all."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: however a command ends, it is one message and an exit code, never a traceback."""
    gc.set_threshold(max(COLLECT_AFTER, gc.get_threshold()[0]))
    atexit.register(gc.freeze)  # nor does it walk them once more when the process ends
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(guarded(lambda: _run(given), given))


def _run(given: list[str]) -> object:
    show_warnings_plainly()
    show_progress(False)  # commands have bars of their own
    for argument in given:
        if "\0" in argument:
            raise InputError(f"The argument {argument!r} holds a NUL character, which no name or path can have.")
    # Taken out here, so that it may stand before or after the command.
    end = given.index("--") if "--" in given else len(given)
    err.hushed = "--quiet" in given[:end]
    given = [*(argument for argument in given[:end] if argument != "--quiet"), *given[end:]]
    return app(args=given, prog_name="deltaenergy", standalone_mode=False)
