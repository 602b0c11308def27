"""The command `deltaenergy`. Each command is a file of its own; heavy imports happen when one runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from deltaenergy import __version__
from deltaenergy.cli import (
    bench,
    calibrate,
    choose,
    clipn_train,
    data,
    demo,
    evaluate,
    features,
    methods,
    report,
    score,
    serve,
    theory,
    tune,
    undo,
)
from deltaenergy.cli.common import out, show_warnings_plainly
from deltaenergy.cli.guard import guarded
from deltaenergy.cli.renamed import with_new_names
from deltaenergy.errors import InputError
from deltaenergy.progress import show_progress

app = typer.Typer(
    name="deltaenergy",
    help="Say which of your classes an image is, and whether it is any of them at all.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("score")(score.score)
app.command("undo")(undo.undo)
app.command("calibrate")(calibrate.calibrate)
app.command("choose")(choose.choose)
app.command("clipn-train")(clipn_train.clipn_train)
app.command("evaluate")(evaluate.evaluate)
app.add_typer(data.app, name="data")
app.command("tune")(tune.tune)
app.command("theory")(theory.theory)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.command("features")(features.features)
app.command("methods")(methods.methods)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"deltaenergy {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Say which of your classes an image is, and whether it is any of them at all."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: however a command ends, it is one message and an exit code, never a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(guarded(lambda: _run(given), given))


def _run(given: list[str]) -> object:
    show_warnings_plainly()
    show_progress(False)  # commands have bars of their own
    for argument in given:
        if "\0" in argument:
            raise InputError(f"The argument {argument!r} holds a NUL character, which no name or path can have.")
    return app(args=with_new_names(given), prog_name="deltaenergy", standalone_mode=False)
