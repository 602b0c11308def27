"""What the commands share: consoles, progress bars, exit codes, and options that mean the same everywhere."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from deltaenergy.errors import InputError
from deltaenergy.progress import Progress

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import Unreadable
    from deltaenergy.detector import Detector
    from deltaenergy.models.base import Model
    from deltaenergy.scores.base import Score

# Results go to standard output; progress, notes and errors to standard error, so that pipes stay clean.
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

SOME_UNREADABLE = 1
WRONG_USE = 2

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="lite (bundled, offline), a folder, or a hub id.", show_default=True)
]
ClassesOption = Annotated[
    str | None, typer.Option("--classes", "-c", help='Class names: "dog,cat", or a text file with one per line.')
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option("--template", "-t", help="Prompt with {} for the name; repeat for an ensemble.", show_default=False),
]
ScoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        "-s",
        help='Score, with parameters if you like: "delta-energy(tau=0.1,c=1)". Repeat it, separate by commas, or all. '
        "[default: delta-energy]",
        show_default=False,
    ),
]
KeepOption = Annotated[float, typer.Option("--keep", help="Share of in-distribution images to accept.")]
DetectorOption = Annotated[
    str | None, typer.Option("--detector", "-d", help="Folder written by calibrate or tune.", show_default=False)
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Images per step of the image tower.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]


@contextlib.contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """A bar on standard error while the block runs; gives the callback that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bars(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task(description, total=None)

        def move(done: int, total: int | None) -> None:
            bars.update(task, completed=done, total=total)

        yield move


def load_model_with_status(name: str, device: str) -> Model:
    """`load_model`, with a line on standard error while it works."""
    with err.status(f"Loading model {name} …"):
        from deltaenergy.models.loading import load_model

        return load_model(name, device=device)


def make_classifier(model: Model, classes: str | Sequence[str] | None, templates: Sequence[str] | None) -> Classifier:
    """A zero-shot classifier from the command line's words, or from class names that are known otherwise."""
    from deltaenergy.classes import read_classes
    from deltaenergy.classifiers.zero_shot import ZeroShotClassifier

    if classes is None:
        raise InputError('Give --classes, for example --classes "dog,cat", or --detector DIR.')
    names = read_classes(classes) if isinstance(classes, str) else classes
    with progress_bar("Encoding class names") as progress:
        return ZeroShotClassifier(model, names, templates=templates or None, progress=progress)


def prepare(detector: Detector) -> Detector:
    """`detector.prepare()` with a bar, for scores that encode thousands of texts first."""
    with progress_bar(f"Preparing {detector.score.spec}") as progress:
        return detector.prepare(progress)


def make_scores(specs: Sequence[str] | None, *, quiet: bool = False) -> list[Score]:
    """The scores that `--score` names; `all` stands for every score that runs with its defaults.

    Those it leaves out are named on standard error, unless `quiet`.
    """
    from deltaenergy.scores.registry import list_scores, make_score
    from deltaenergy.specs import split

    scores: list[Score] = []
    for spec in [part for text in specs or ["delta-energy"] for part in split(text, ",", "--score")]:
        if spec == "all":
            everything = [make_score(name) for name in list_scores()]
            scores += [score for score in everything if score.missing is None]
            for score in everything:
                if score.missing is not None and not quiet:
                    err.print(f"Left out of all: {score.missing}", markup=False, soft_wrap=True)
        else:
            scores.append(make_score(spec))
    unique = {score.spec: score for score in scores}
    if not unique:
        raise InputError("--score is empty. `deltaenergy methods` lists the scores.")
    return list(unique.values())


def read_photo_arguments(photos: Sequence[str]) -> list[str] | str:
    """Paths from the command line; `-` stands for the paths on standard input, one per line."""
    if list(photos) == ["-"]:
        lines = [line.strip() for line in sys.stdin]
        paths = [line for line in lines if line]
        if not paths:
            raise InputError("Standard input holds no path. Write one path per line.")
        return paths
    return photos[0] if len(photos) == 1 else list(photos)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def report_unreadable(unreadable: Sequence[Unreadable]) -> None:
    """List images that were skipped, on standard error."""
    if not unreadable:
        return
    err.print(f"[yellow]{len(unreadable)} image(s) could not be read and were skipped:[/]")
    for image in unreadable:
        err.print(f"  {image.id}: {image.reason}", markup=False, soft_wrap=True)


def finish(unreadable: Sequence[Unreadable]) -> None:
    """List skipped images and leave with exit code 1 if there are any."""
    report_unreadable(unreadable)
    if unreadable:
        raise typer.Exit(SOME_UNREADABLE)


def show_warnings_plainly() -> None:
    """Show Python warnings as one line for a user, without file and source line."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning):
            err.print(f"Warning: {message}", style="yellow", markup=False, soft_wrap=True)

    warnings.showwarning = show
