"""What the commands share: progress bars, models and scores by name, JSON, and the list of unreadable images."""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deltaenergy.cli.shell.console import err, out
from deltaenergy.cli.shell.exits import SOME_UNREADABLE, keeping
from deltaenergy.cli.shell.options import (
    BackendOption,
    BatchOption,
    CalibrateOnOption,
    ClassesOption,
    ConfidenceOption,
    DetectorOption,
    DeviceOption,
    FdrOption,
    JsonOption,
    KeepOption,
    ModelOption,
    ModelPlace,
    OneScoreOption,
    OverwriteOption,
    PrecisionOption,
    ScoreOption,
    TemplateOption,
)
from deltaenergy.core.progress import Progress
from deltaenergy.core.text import to_json, visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem, Unreadable
    from deltaenergy.data.streams import ImageStream
    from deltaenergy.detector.detector import Detector
    from deltaenergy.models.base import TowerModel
    from deltaenergy.scores.availability import Given
    from deltaenergy.scores.base import Score

__all__ = [
    "BackendOption",
    "BatchOption",
    "CalibrateOnOption",
    "ClassesOption",
    "ConfidenceOption",
    "DetectorOption",
    "DeviceOption",
    "FdrOption",
    "JsonOption",
    "KeepOption",
    "ModelOption",
    "ModelPlace",
    "OneScoreOption",
    "OverwriteOption",
    "PrecisionOption",
    "ScoreOption",
    "TemplateOption",
    "err",
    "keeping",
    "out",
]


@contextlib.contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """A bar on standard error while the block runs; gives the callback that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bars(*columns, console=err, transient=True, disable=err.hushed or not err.is_terminal) as bars:
        task = bars.add_task(visible(description), total=None)

        def move(done: int, total: int | None) -> None:
            bars.update(task, completed=done, total=total)

        yield move


def status(text: str) -> contextlib.AbstractContextManager[Any]:
    """A line on standard error while the block runs."""
    from rich.text import Text

    return contextlib.nullcontext() if err.hushed else err.status(Text(visible(text)))


def load_model_with_status(name: str, place: ModelPlace) -> TowerModel:
    """`load_model`, with a line on standard error while it works."""
    with status(f"Loading model {name} …"):
        from deltaenergy.models.loading.load import load_model

        return load_model(
            name,
            device=place.device,
            backend=place.backend or "torch",
            precision=place.precision,
            calibration_images=place.calibrate_on,
        )


def load_detector(folder: str, place: ModelPlace) -> Detector:
    """`Detector.load`, with a line on standard error while it works."""
    with status(f"Loading detector {folder} …"):
        from deltaenergy.detector.detector import Detector

        detector = Detector.load(folder, device=place.device)
    place.check_detector(detector.classifier.base_model, folder)
    return detector


def refuse_beside_detector(context: typer.Context, detector: str | None, *names: str) -> None:
    """Raise `InputError` if one of these parameters was typed: the detector brings its own, and would win unseen."""
    for parameter in context.command.params if detector is not None else ():
        source = context.get_parameter_source(parameter.name) if parameter.name in names else None
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{parameter.opts[0]} is part of the detector in {detector}: remove one of the two.")


def zero_shot(
    model: str, place: ModelPlace, classes: str | Sequence[str] | None, templates: Sequence[str] | None
) -> Classifier:
    """A zero-shot classifier from the command line's words, or from class names that are known otherwise."""
    from deltaenergy.core.classes import check_classes, read_classes

    # The names are looked at before the model, which takes longer.
    if classes is None:
        raise InputError('Give --classes, for example --classes "dog,cat", or --detector DIR.')
    names = check_classes(read_classes(classes) if isinstance(classes, str) else classes)
    loaded = load_model_with_status(model, place)
    from deltaenergy.classifiers.zero_shot import ZeroShotClassifier

    with progress_bar("Encoding class names") as progress, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Class names stand more than once")  # said above
        return ZeroShotClassifier(loaded, names, templates=templates or None, progress=progress)


def check_report(path: Path | None) -> None:
    """Refuse a report that could not be written, before the work rather than after it."""
    from deltaenergy.files import check_writable

    if path is None:
        return
    if path.is_dir():
        raise InputError(f"--report {path} is a folder. Give a file name that ends in .html.")
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"--report {path}: a report is an HTML file, so that its name must end in .html.")
    check_writable(path, option="--report")


def typed() -> str:
    """The command as it was typed, for reports."""
    program = Path(sys.argv[0]).name
    return shlex.join(["deltaenergy" if program == "__main__.py" else program, *sys.argv[1:]])


def check_detector_out(folder: Path, overwrite: bool) -> None:
    """Refuse a folder for a detector that cannot be written, or that holds one already, before the work."""
    from deltaenergy.detector.saved import RECORD
    from deltaenergy.files import check_writable

    check_writable(folder, folder=True, option="--out")
    if (folder / RECORD).exists() and not overwrite:
        raise InputError(f"--out {folder} holds a detector already. Choose another folder, or give --overwrite.")


def prepare(detector: Detector) -> Detector:
    """`detector.prepare()` with a bar, for scores that encode thousands of texts first."""
    with progress_bar(f"Preparing {detector.score.spec}") as progress:
        return detector.prepare(progress)


def one_score(specs: Sequence[str] | None, given: Given | None = None) -> Score:
    """The score that `--score` names, or the default."""
    scores = make_scores(specs, given)
    if len(scores) > 1:
        raise InputError(f"--score takes one score here, got {len(scores)}. `deltaenergy evaluate` compares several.")
    return scores[0]


def make_scores(
    specs: Sequence[str] | None, given: Given | None = None, *, default: str | None = None, quiet: bool = False
) -> list[Score]:
    """The scores that `--score` names, or the `default`, which is that of detectors unless another is given.

    `all` stands for every score and named setting that can run and is cheap.
    Those it leaves out are told in one line on standard error, unless `quiet`. With `given`, what images and classifier
    have for scores, a named score that cannot run is refused.
    """
    from deltaenergy.core.specs import split
    from deltaenergy.scores.availability import Given, check_runnable, runnable_scores
    from deltaenergy.scores.registry import DEFAULT_SCORE, make_score

    scores: list[Score] = []
    for spec in [part for text in specs or [default or DEFAULT_SCORE] for part in split(text, ",", "--score")]:
        if spec == "all":
            usable, left_out = runnable_scores(given or Given())
            scores += usable
            if left_out is not None and not quiet:
                err.print(left_out, style="dim", soft_wrap=True, markup=False)
        else:
            scores.append(make_score(spec))
            if given is not None:
                check_runnable(scores[-1:], given)
    unique = {score.spec: score for score in scores}
    if not unique:
        raise InputError("--score is empty. `deltaenergy methods` lists the scores.")
    return list(unique.values())


def read_image_arguments(images: Sequence[str]) -> list[str] | str:
    """Paths from the command line; `-` stands for the paths on standard input, one per line."""
    if list(images) != ["-"]:
        return images[0] if len(images) == 1 else list(images)
    if sys.stdin is None:
        raise InputError("Standard input is closed. Give paths as arguments, or one per line on standard input.")
    paths = [path for path in (line.strip() for line in sys.stdin) if path]
    if not paths:
        raise InputError("Standard input holds no path. Write one path per line.")
    if any("\0" in path for path in paths):
        raise InputError("Standard input holds NUL characters. Write one path per line (find without -print0).")
    return paths


def list_images(given: list[str] | str, *, hold: bool = False) -> list[ImageItem] | ImageStream:
    """The images of arguments, after a look at all their names: whatever is wrong with them is said now.

    They are not held in memory, unless they must be looked at as a whole, or come from feature stores.
    """
    from deltaenergy.source import image_stream

    with status("Listing the images …"):
        stream = image_stream(given)
        if hold or stream.stored:
            return list(stream)
        stream.survey()
        return stream


def threshold_words(detector: Detector) -> str:
    """The threshold of a detector, or why there is none, as a sentence."""
    if detector.threshold is None:
        return f"{detector.score.spec} is cross-fitted, and has no single threshold."
    return f"Threshold {detector.threshold:.6g} for {detector.score.spec}."


def print_json(value: Any) -> None:
    """One JSON document on standard output. What is not a number, such as a score of NaN, is null."""
    sys.stdout.write(to_json(value, indent=2, ascii_only=not sys.stdout.encoding.lower().startswith("utf")) + "\n")


def report_unreadable(unreadable: Sequence[Unreadable]) -> None:
    """List images that were skipped, on standard error."""
    if not unreadable:
        return
    err.print(f"{len(unreadable)} image(s) could not be read and were skipped:", style="yellow")
    for image in unreadable:
        err.print(f"  {visible(image.id)}: {image.reason}", style="yellow")


def finish(unreadable: Sequence[Unreadable]) -> None:
    """List skipped images and leave with exit code 1 if there are any."""
    report_unreadable(unreadable)
    if unreadable:
        raise typer.Exit(SOME_UNREADABLE)


def show_warnings_plainly() -> None:
    """Show Python warnings and our log as one line for a user, without file and source line."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning):
            err.print(f"Warning: {message}", style="yellow")

    warnings.showwarning = show
    log = logging.getLogger("deltaenergy")
    if not any(isinstance(handler, _ToConsole) for handler in log.handlers):
        log.addHandler(_ToConsole())


class _ToConsole(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if err.is_terminal or not record.name.startswith("deltaenergy.models.lite"):
            err.print(record.getMessage())
