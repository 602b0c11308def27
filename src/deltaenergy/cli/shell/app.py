"""The application. A command is a function that registers itself here, with its help panel and its examples."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.models import ArgumentInfo, OptionInfo

from deltaenergy import __version__
from deltaenergy.cli.shell.console import err, out
from deltaenergy.cli.shell.exits import Interrupted

Command = TypeVar("Command", bound=Callable[..., None])
Panel = Literal["Use", "Make a detector", "Measure", "Operate", "Research"]

app = typer.Typer(name="deltaenergy", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
COMMANDS: dict[str, Callable[..., None]] = {}
# Examples by command: shown under its --help, and run by a test.
EXAMPLES: dict[str, tuple[str, ...]] = {}
# Python arguments that share one option on the command line.
_WIDER = {
    "on": ("device", "backend", "precision", "batch_size"),
    "int8_images": ("calibration_images",),
    "detector": ("by", "detectors"),
    "monitor": ("monitors",),
}


def command(panel: Panel, *examples: str) -> Callable[[Command], Command]:
    """Add a function to the application under its own name; its docstring is the help."""

    def add(function: Command) -> Command:
        name = function.__name__.strip("_").replace("_", "-")
        COMMANDS[name], EXAMPLES[name] = function, examples

        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> None:
            err.typed_as = options_of(function)
            try:
                function(*arguments, **options)
            except KeyboardInterrupt as stop:  # typer would end the process and lose its notes
                raise Interrupted(*getattr(stop, "__notes__", ())) from None

        epilog = "\n\n".join(["[bold]Examples[/bold]", *examples])  # typer keeps paragraphs apart, not lines
        app.command(name, help=paragraphs(function.__doc__), epilog=epilog, rich_help_panel=panel)(run)
        return function

    return add


def paragraphs(docstring: str | None) -> str:
    """A docstring with one line per paragraph: the terminal folds them."""
    return "\n\n".join(" ".join(block.split()) for block in (docstring or "").strip().split("\n\n"))


def parameters(function: Callable[..., None]) -> Iterator[tuple[str, Any, OptionInfo | ArgumentInfo]]:
    """Name, type and typer's annotation of each parameter."""
    hints = typing.get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        told = next(one for one in hints[name].__metadata__ if isinstance(one, OptionInfo | ArgumentInfo))
        yield name, hints[name].__origin__, told


def options_of(function: Callable[..., None]) -> dict[str, str]:
    """How a user types each argument of the call behind a command."""
    found: dict[str, str] = {}
    for name, _, told in parameters(function):
        if isinstance(told, ArgumentInfo):
            found[name] = told.metavar or name.upper()
        else:  # in an annotation, the first name takes the place of a default
            names = [str(told.default), *(told.param_decls or ()), f"--{name.replace('_', '-')}"]
            found[name] = next(one for one in names if one.startswith("--"))
        found |= dict.fromkeys(_WIDER.get(name, ()), found[name])
    return found


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"deltaenergy {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only results, warnings and errors. Works with every command.")
    ] = False,
) -> None:
    """Classify images, and reject those that belong to none of your classes."""
