"""Options that mean the same in every command, with their shell completion."""

from __future__ import annotations

import functools
import importlib
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.detector.opening import ClassNames

# Larger counts are mistakes; larger seeds fit no generator.
LARGEST_COUNT, LARGEST_SEED = 2**31 - 1, 2**63 - 1


def at_most(largest: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """A callback that refuses larger numbers. A bound set in typer would fill the help's columns with its digits."""

    def check(param: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None and value > largest:
            raise InputError(f"{param.opts[0]} must be at most {largest:,}, got {value}.")
        return value

    return check


# An option without a default, and one that is a count.
unset = functools.partial(typer.Option, show_default=False)
count = functools.partial(typer.Option, min=1, callback=at_most(LARGEST_COUNT))


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """The names that start with the word being typed; after a comma, with its last part."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def _listed(module: str, function: str) -> Callable[[], Iterable[str]]:
    """The names that a function lists; its module is imported when they are needed."""
    return lambda: getattr(importlib.import_module(f"deltaenergy.{module}"), function)()


_scores, _methods = _listed("scores.registry", "list_scores"), _listed("classifiers.methods", "list_methods")
complete_score, complete_method = completing(_scores), completing(_methods)
complete_score_or_method = completing(lambda: sorted({*_scores(), *_methods()}))
complete_benchmark = completing(_listed("benchmarks.spec", "benchmark_names"))


def _words() -> Iterable[str]:
    from deltaenergy.models.on import WORDS

    return (word.removesuffix("N") for word in WORDS)


ImagesArgument = Annotated[
    list[str],
    typer.Argument(help="Files, folders, globs, a table with a path column, or - for paths on standard input."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="lite (bundled, offline), a folder, or a Hugging Face Hub id.", show_default="lite"
    ),
]
ClassesOption = Annotated[
    str | None, unset("--classes", "-c", help='Class names: "dog,cat", or a text file with one per line.')
]
TemplateOption = Annotated[
    list[str] | None,
    unset("--template", "-t", help="Prompt template with {} for the class name; repeat to average several."),
]
ScoreOption = Annotated[
    str | None,
    typer.Option(
        "--score",
        "-s",
        autocompletion=complete_score,
        help='Score, optionally with parameters: "delta-energy(tau=0.1,c=1)".',
        show_default="delta-energy+words",
    ),
]
ScoresOption = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        "-s",
        autocompletion=complete_score,
        help='Score, optionally with parameters: "delta-energy(tau=0.1,c=1)". Repeat for several, or use all.',
        show_default="delta-energy+words",
    ),
]
KeepOption = Annotated[
    float | None, typer.Option("--keep", help="Share of new known images to keep, on average.", show_default="0.95")
]
KnownOption = Annotated[list[str] | None, unset("--id", help="Known images to set the threshold with.")]
FdrOption = Annotated[
    float | None,
    unset("--fdr", help="Expected share of known images among the rejected, at most; replaces the threshold."),
]
DetectorOption = Annotated[str | None, unset("--detector", "-d", help="Folder of a detector, from calibrate or tune.")]
OnOption = Annotated[
    str,
    typer.Option(
        "--on",
        autocompletion=completing(_words),
        help="Where the model runs: a device (cpu, cuda, cuda:1, mps), backend (torch, openvino, onnx, compile), "
        "precision (fp32, int8, fp16, bf16) and batch=N, in any order between commas.",
    ),
]
Int8Option = Annotated[
    str | None,
    unset("--int8-images", help="Images to set int8 ranges with (OpenVINO): a few hundred that look like yours."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing detector in --out.")]
OutDetectorOption = Annotated[Path, typer.Option("--out", "-o", help="Folder for the detector.")]
ReportOption = Annotated[Path | None, unset("--report", "-r", help="Write a report to FILE.html.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")]
RayOption = Annotated[
    str | None,
    unset(
        "--ray",
        metavar="ADDRESS",
        help="Run on Ray: local starts it on this machine, auto uses the running cluster, or HOST:PORT.",
    ),
]
WorkersOption = Annotated[
    int | None,
    count("--workers", help="Number of worker processes; on Ray by default one per CPU or GPU.", show_default=False),
]


def by_options(
    detector: str | None,
    classes: str | None,
    model: str | None,
    template: Sequence[str] | None = None,
    int8_images: str | None = None,
) -> str | ClassNames:
    """The detector to use, or one from class names and a model."""
    from deltaenergy.detector.opening import ClassNames

    if detector is None:
        return ClassNames(classes, model or "lite", template or None, int8_images)
    own = {"classes": classes, "model": model, "template": template, "int8_images": int8_images}
    for name, value in own.items():
        if value:
            raise InputError(f"`{name}` is part of the detector in {detector}: remove one of the two.")
    return detector


def read_images(images: Sequence[str]) -> str | list[str]:
    """Paths from the command line; `-` stands for the paths on standard input, one per line."""
    if list(images) != ["-"]:
        return images[0] if len(images) == 1 else list(images)
    if sys.stdin is None:
        raise InputError("Standard input is closed. Give paths as arguments, or one per line on standard input.")
    paths = [path for path in (line.strip() for line in sys.stdin) if path]
    if not paths:
        raise InputError("Standard input has no path. Write one path per line.")
    if any("\0" in path for path in paths):
        raise InputError("Standard input has NUL characters. Write one path per line (find without -print0).")
    return paths


def typed() -> str:
    """The command as it was typed, for reports."""
    program = Path(sys.argv[0]).name
    return shlex.join(["deltaenergy" if program == "__main__.py" else program, *sys.argv[1:]])
