"""The command `deltaenergy`. Each command is a file of its own; heavy imports happen when one runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

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
    theory,
    tune,
)
from deltaenergy.cli.common import WRONG_USE, err, show_warnings_plainly
from deltaenergy.errors import DeltaEnergyError

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
app.command("calibrate")(calibrate.calibrate)
app.command("choose")(choose.choose)
app.command("clipn-train")(clipn_train.clipn_train)
app.command("evaluate")(evaluate.evaluate)
app.add_typer(data.app, name="data")
app.command("tune")(tune.tune)
app.command("theory")(theory.theory)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("features")(features.features)
app.command("methods")(methods.methods)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deltaenergy {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Say which of your classes an image is, and whether it is any of them at all."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point: a user's mistake is one message and exit code 2, never a traceback."""
    show_warnings_plainly()
    try:
        app(args=None if arguments is None else list(arguments))
    except DeltaEnergyError as error:
        err.print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(WRONG_USE)
    except KeyboardInterrupt:
        err.print("Interrupted.")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (head, less) is gone; that is no error.
        sys.stderr.close()
        sys.exit(0)
