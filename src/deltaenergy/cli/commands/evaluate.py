"""`deltaenergy evaluate`: accuracy and detection metrics on the user's own images, and a report."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.commands.compared import print_comparison
from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.console import PlainConsole
from deltaenergy.cli.shell.options import check_count, check_seed
from deltaenergy.core.text import visible
from deltaenergy.errors import DeltaEnergyError, InputError

if TYPE_CHECKING:
    from rich.table import Table

    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem
    from deltaenergy.detector.detector import Detector
    from deltaenergy.evaluation import Comparison, DetectionRow, Evaluation
    from deltaenergy.report.page import Section
    from deltaenergy.scores.base import Score, Scorer
    from deltaenergy.stats.metrics import Estimate

    Sets = list[tuple[str, str | list[ImageItem]]]

# Columns that a terminal must have for AUPR and the other FPR convention.
WIDE = 110
FOLDER_HELP = "a folder with one folder per class, or a flat one; repeat for several."


def evaluate(
    context: typer.Context,
    id_sets: Annotated[list[str], typer.Option("--id", help=f"Images of the classes: {FOLDER_HELP}")],
    shifted: Annotated[
        list[str] | None, typer.Option("--shifted", help=f"The same classes in another style: {FOLDER_HELP}")
    ] = None,
    open_sets: Annotated[
        list[str] | None, typer.Option("--open", help=f"Images of none of the classes: {FOLDER_HELP}")
    ] = None,
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    scores: common.ScoreOption = None,
    template: common.TemplateOption = None,
    detectors: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            help="Folder written by calibrate or tune; repeat to compare several.",
            show_default=False,
        ),
    ] = None,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot", help="Compare with the first detector's model and classes, untuned.")
    ] = False,
    keep: common.KeepOption = 0.95,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, callback=check_count, help="At most so many images of each set, drawn with --seed."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, callback=check_seed, help="For --limit and the confidence intervals.")
    ] = 0,
    report: Annotated[Path | None, typer.Option("--report", "-r", help="Write a report to FILE.html.")] = None,
    explain: Annotated[
        int | None,
        typer.Option(
            "--explain",
            min=1,
            callback=check_count,
            help="In the report, show for so many of the worst mistakes of each kind what decided.",
            show_default=False,
        ),
    ] = None,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Measure accuracy, and how well each score tells images of the classes from images of none of them.

    Classes are the folder names of --id unless --classes is given. With --detector, its classifier is measured, with
    its own score and threshold unless --score is given. Several, or one and --zero-shot, are compared on the same
    images, with paired intervals of their differences.
    """
    place = common.ModelPlace(device, backend, precision, calibrate_on)
    common.check_report(report)
    from deltaenergy.evaluation import evaluate as run
    from deltaenergy.source import load_images
    from deltaenergy.store.store_pass import names_a_store

    if explain is not None and report is None:
        raise InputError("--explain adds a section to the report: give --report FILE.html.")
    names = _set_names([*id_sets, *(shifted or []), *(open_sets or [])])
    compared = bool(detectors) and (len(detectors or []) > 1 or zero_shot)

    own_parts = ("classes", "template", "model", *(("scores",) if compared else ()))
    common.refuse_beside_detector(context, ", ".join(detectors) if detectors else None, *own_parts)
    # Every set is looked for before the model is loaded, so that a mistyped path is reported at once. A store is read
    # as it goes.
    known, other, unknown = (
        [(names[text], text if names_a_store(text) and not compared else load_images(text)) for text in sets or []]
        for sets in (id_sets, shifted, open_sets)
    )
    if zero_shot and not detectors:
        raise InputError("--zero-shot goes with --detector: without one, the zero-shot classifier is measured anyway.")
    if detectors and compared:
        if explain is not None:
            raise InputError("--explain shows the mistakes of one classifier: evaluate one detector at a time.")
        comparison = _compare(detectors, zero_shot, known, other, unknown, keep, limit, seed, place, batch_size)
        _write_report(comparison, report)
        if json_output:
            common.print_json(comparison.to_dict())
        else:
            print_comparison(comparison)
        common.finish(comparison.unreadable)
        return
    detector = detectors[0] if detectors else None
    images = [items for _, items in (*known, *other, *unknown)]
    found, classifier, used = _load(detector, classes, template, scores, known, images, model, place)
    with common.progress_bar("Encoding images") as progress:
        evaluation = run(
            classifier,
            used,
            known,
            other,
            unknown,
            keep=keep,
            detector=found,
            primary=_primary(scores, used),
            limit=limit,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
            command=common.typed(),
        )
    more = [] if explain is None else [_explained(evaluation, classifier, explain, batch_size)]
    _write_report(evaluation, report, more)
    if json_output:
        common.print_json(evaluation.to_dict())
    else:
        _print(evaluation)
    common.finish(evaluation.unreadable)


def _explained(evaluation: Evaluation, classifier: Classifier, most: int, batch_size: int) -> Section:
    from deltaenergy.explanation.page import mistakes_section

    with common.progress_bar("Explaining mistakes") as progress:
        return mistakes_section(evaluation, classifier, most, batch_size=batch_size, progress=progress)


def _write_report(results: Evaluation | Comparison, report: Path | None, more: Sequence[Section] = ()) -> None:
    from deltaenergy.files import keeping_result
    from deltaenergy.report import write_report

    if report is not None:
        with common.status("Writing the report …"):
            keeping_result(report, lambda place: write_report(results, place, more=more), what="The report")
        err.print(f"Report written to {report}")


def _compare(
    folders: list[str],
    zero_shot: bool,
    known: Sets,
    other: Sets,
    unknown: Sets,
    keep: float,
    limit: int | None,
    seed: int,
    place: common.ModelPlace,
    batch_size: int,
) -> Comparison:
    from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
    from deltaenergy.detector.detector import Detector
    from deltaenergy.evaluation import compare

    names = _set_names(folders)
    loaded = {names[folder]: common.load_detector(folder, place) for folder in folders}
    if zero_shot:
        first = next(iter(loaded.values()))
        plain = ZeroShotClassifier(first.classifier.model, first.classifier.classes)
        loaded = {"zero-shot": Detector(plain, first.score), **loaded}
    for one in loaded.values():
        common.prepare(one)
    with common.progress_bar("Encoding images") as progress:
        return compare(
            loaded,
            known,
            other,
            unknown,
            keep=keep,
            limit=limit,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
            command=common.typed(),
        )


def _load(
    detector: str | None,
    classes: str | None,
    template: list[str] | None,
    scores: list[str] | None,
    known: Sets,
    images: Sequence[str | list[ImageItem]],
    model: str,
    place: common.ModelPlace,
) -> tuple[Detector | None, Classifier, list[Scorer]]:
    """The detector if there is one, the classifier, and the scores, which must run on all `images`."""
    from deltaenergy.evaluation.stored_items import each_of
    from deltaenergy.scores.availability import closed_tower, given_by, unlabelled

    every = (item for _, items in known for item in each_of(items))
    first = list(itertools.islice(every, 1))
    # One image with a label says as much as all of them.
    labels = unlabelled([*first, *itertools.islice((item for item in every if item.label is not None), 1)])
    if detector is not None:
        if scores:
            common.make_scores(scores, quiet=True)  # a misspelt name is told before a model is loaded
        found = common.load_detector(detector, place)
        if not scores:
            return found, found.classifier, [found.scorer]
        used = common.make_scores(scores, given_by(images, found.classifier).without(labels=labels))
        return found, found.classifier, _prepared(scores, used, found.classifier)
    # What cannot run is told before a model is loaded and a prompt encoded.
    given = given_by(images).without(labels=labels, pixels=closed_tower(place.backend, place.precision))
    used = common.make_scores(scores, given)
    named = classes if classes is not None else _folder_classes(known)
    classifier = common.zero_shot(model, place, named, template)
    return None, classifier, _prepared(scores, used, classifier)


def _folder_classes(known: Sets) -> list[str]:
    """Class names from the folders of the ID sets, with spaces for underscores as a prompt wants them."""
    from deltaenergy.core.labels import class_names
    from deltaenergy.evaluation.stored_items import each_of

    found = class_names(item for _, items in known for item in each_of(items))
    if not found:
        raise InputError('The --id folders have no class folders: give the class names, as in --classes "dog,cat".')
    return found


def _prepared(specs: list[str] | None, scores: list[Score], classifier: Classifier) -> list[Scorer]:
    """The scores, with what they learn from the class texts; one of `all` that fails at it is named and left out."""
    from deltaenergy.detector.detector import Detector

    usable = []
    for score in scores:
        try:
            usable.append(common.prepare(Detector(classifier, score)).scorer)
        except DeltaEnergyError as error:
            if not _asks_for_all(specs):
                raise
            err.print(f"{score.spec} is left out: {error}", style="dim")
    return usable


def _asks_for_all(specs: list[str] | None) -> bool:
    return any(part.strip() == "all" for spec in specs or [] for part in spec.split(","))


def _primary(specs: list[str] | None, used: list[Scorer]) -> str | None:
    """The score that the report's images show: the first asked for, or the default when all are."""
    from deltaenergy.scores.registry import DEFAULT_SCORE

    return DEFAULT_SCORE if _asks_for_all(specs) and any(one.spec == DEFAULT_SCORE for one in used) else None


def _set_names(paths: list[str]) -> dict[str, str]:
    """A short name for each set: the last parts of its path, as many as tell it from the others."""
    parts = {path: [part for part in Path(path).parts if part not in {"/", "."}] or [path] for path in paths}
    if len(parts) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError(f"{twice} is given twice. Each set of images stands for itself.")
    names: dict[str, str] = {}
    for path, own in parts.items():
        for length in range(1, len(own) + 1):
            name = "/".join(own[-length:])
            if sum("/".join(other[-length:]) == name for other in parts.values()) == 1:
                break
        names[path] = name
    return names


def _print(evaluation: Evaluation) -> None:
    """Accuracies, then one table per pair of a closed and an open set."""
    from rich.table import Table

    from deltaenergy.evaluation.summary import best_score
    from deltaenergy.report.words import best_in_words

    # Where nobody watches, lines need not fit a screen: folded cells are hard to read for a program.
    console = common.out if common.out.is_terminal else PlainConsole(width=160)
    if evaluation.accuracy:
        table = Table(box=None, header_style="bold", title="Accuracy", title_justify="left")
        for name in ("set", "group"):
            table.add_column(name)
        for name in ("images", "accuracy"):
            table.add_column(name, justify="right")
        for row in evaluation.accuracy:
            table.add_row(visible(row.set), row.group.value, str(row.images), _cell(row.accuracy))
        console.print(table)
    if (best := best_score(evaluation)) is not None:
        console.print()
        console.print("{} {}{}".format(*best_in_words(best)), markup=False, highlight=False)
    pairs: dict[str, list[DetectionRow]] = {}
    for found in evaluation.detection:
        closed = f"{found.closed} ({found.closed_group.value}, {found.closed_images})"
        pairs.setdefault(f"{closed} against {found.open} (open, {found.open_images})", []).append(found)
    for title, rows in pairs.items():
        console.print()
        console.print(_detection_table(title, rows, wide=console.width >= WIDE))


def _detection_table(title: str, rows: list[DetectionRow], *, wide: bool) -> Table:
    from rich.table import Table

    from deltaenergy.report.words import metric_name

    auroc, aupr_in, aupr_out, fpr, fpr_ood = rows[0].metrics
    brief = [fpr_ood, aupr_in, aupr_out] if wide else []
    table = Table(box=None, header_style="bold", title=visible(title), title_justify="left")
    table.add_column("score", overflow="fold")
    for name in [auroc, fpr, *brief]:
        table.add_column(metric_name(name), justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row.metrics[auroc]), _cell(row.metrics[fpr])]
        table.add_row(row.score, *cells, *(f"{100 * row.metrics[name].value:.1f} %" for name in brief))
    return table


def _cell(value: Estimate) -> str:
    return f"{100 * value.value:.1f} % ({100 * value.low:.1f} to {100 * value.high:.1f})"
