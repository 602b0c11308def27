"""`deltaenergy evaluate` and `choose`: measure scores on your own images, and find the best without unknown ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, out, print_json, print_table
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.evaluation import Comparison, DetectionRow, Evaluation
    from deltaenergy.evaluation.choose import Choice

# Terminal width from which AUPR and the other FPR convention are shown.
WIDE = 110
_FOLDER = "a folder with one folder per class, or a flat one; repeat for several."


@command(
    "Measure",
    "deltaenergy evaluate --id good/ --open other/ --report report.html --explain 6",
    "deltaenergy evaluate --id good/ --shifted sketches/ --open other/ --score all",
    "deltaenergy evaluate --id good/ --open other/ --detector tuned/ --detector second/ --zero-shot",
)
def evaluate(
    id_sets: Annotated[list[str], typer.Option("--id", help=f"Known images: {_FOLDER}")],
    shifted_sets: Annotated[
        list[str] | None, o.unset("--shifted", help=f"Known classes in another style: {_FOLDER}")
    ] = None,
    open_sets: Annotated[list[str] | None, o.unset("--open", help=f"Images of none of the classes: {_FOLDER}")] = None,
    detector: Annotated[
        list[str] | None,
        o.unset("--detector", "-d", help="Folder of a detector, from calibrate or tune; repeat to compare several."),
    ] = None,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot", help="Also compare with the first detector's model before tuning.")
    ] = False,
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    template: o.TemplateOption = None,
    scores: o.ScoresOption = None,
    keep: Annotated[float, typer.Option(help="Share of known images that thresholds keep.")] = 0.95,
    limit: Annotated[
        int | None, o.count(help="Use at most this many images per set, sampled.", show_default=False)
    ] = None,
    report: o.ReportOption = None,
    explain: Annotated[
        int | None,
        o.count(help="Explain this many of the worst mistakes of each kind in the report.", show_default=False),
    ] = None,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Measure accuracy, and how well each score separates known from unknown images.

    Without --classes, the class folders of --id name the classes. With --detector, its classifier is measured, with its
    own score and threshold unless --score is given. Several detectors, or one and --zero-shot, are compared on the same
    images, with paired intervals of their differences.
    """
    results.check_report(report)
    if explain is not None and report is None:
        raise InputError("`explain` needs `report`.")
    compared = bool(detector) and (len(detector or ()) > 1 or zero_shot)
    if zero_shot and not detector:
        raise InputError("`zero_shot` needs `detector`; without one, zero-shot is already measured.")
    if compared and (explain or scores):
        raise InputError(f"`{'explain' if explain else 'scores'}` is for one detector at a time.")
    by = o.by_options(", ".join(detector) if detector else None, classes, model, template)
    import deltaenergy as de
    from deltaenergy.evaluation.sets import short_names

    names = short_names([*id_sets, *(shifted_sets or ()), *(open_sets or ())])
    sets = [[(names[path], path) for path in paths or ()] for paths in (id_sets, shifted_sets, open_sets)]
    if compared:
        comparison = de.compare(detector or (), *sets, zero_shot=zero_shot, keep=keep, limit=limit, on=on)
        results.write_report(comparison, report)
        print_json(comparison.to_dict()) if json else _print_comparison(comparison)
        results.finish(comparison.unreadable)
        return
    evaluation = de.evaluate(by, scores, *sets, keep=keep, limit=limit, on=on)
    more = []
    if explain is not None:
        from deltaenergy.explanation.page import mistakes_section

        more = [mistakes_section(evaluation, explain)]
    results.write_report(evaluation, report, more=more)
    print_json(evaluation.to_dict()) if json else _print(evaluation)
    results.finish(evaluation.unreadable)


def _print(evaluation: Evaluation) -> None:
    """Accuracies, then one table per pair of a known and an open set."""
    from deltaenergy.evaluation.summary import best_score
    from deltaenergy.report.words import best_in_words, metric_name

    if evaluation.accuracy:
        rows = [[row.set, row.group.value, str(row.images), row.accuracy.percent()] for row in evaluation.accuracy]
        print_table(["set", "group", ">images", ">accuracy"], rows, title="Accuracy")
    if (best := best_score(evaluation)) is not None:
        out.print()
        out.print("{} {}{}".format(*best_in_words(best)))
    pairs: dict[str, list[DetectionRow]] = {}
    for found in evaluation.detection:
        closed = f"{found.closed} ({found.closed_group.value}, {found.closed_images})"
        pairs.setdefault(f"{closed} against {found.open} (open, {found.open_images})", []).append(found)
    for title, detection in pairs.items():
        auroc, aupr_in, aupr_out, fpr, fpr_ood = detection[0].metrics
        brief = [fpr_ood, aupr_in, aupr_out] if not out.is_terminal or out.width >= WIDE else []
        cells = [
            [
                row.score,
                *(row.metrics[name].percent() for name in (auroc, fpr)),
                *(f"{100 * row.metrics[name].value:.1f}%" for name in brief),
            ]
            for row in detection
        ]
        out.print()
        print_table(["score", *(f">{metric_name(name)}" for name in (auroc, fpr, *brief))], cells, title=title)
    for score, rule in evaluation.calibrations.items():
        kept = [row for row in evaluation.kept if row.score == score]
        shown = [[row.set, row.group.value, str(row.images), row.kept.percent()] for row in kept]
        out.print()
        print_table(["set", "group", ">images", ">kept"], shown, title=f"At the threshold of {score}")
        results.print_rule(rule.guarantee)


def _print_comparison(comparison: Comparison) -> None:
    """One line per metric, one column per detector, each with its difference to the first."""
    from deltaenergy.evaluation.summary import GROUP_WORDS, changes, measured
    from deltaenergy.report.words import metric_name, points

    figures = {name: measured(one) for name, one in comparison.evaluations.items()}
    own = {name: changes(comparison, name) for name in figures}
    rows = []
    for column in dict.fromkeys(column for found in figures.values() for column in found):
        cells = []
        for name, found in figures.items():
            text = f"{100 * found[column].value:.1f}%" if column in found else "–"
            change = own[name].get(column)
            if change is not None:
                low, high = points(change.change.low), points(change.change.high)
                text += f"  {points(change.change.value)}{'*' if change.is_clear else ' '} ({low} to {high})"
            cells.append(text)
        metric, group = column
        rows.append([f"{metric_name(metric)}, {GROUP_WORDS[group]}", *cells])
    print_table(["", *(f">{name}" for name in figures)], rows)
    out.print(f"Differences to {comparison.baseline} in percentage points, paired 95% intervals; * excludes 0.")


@command("Make a detector", "deltaenergy choose --id good/", "deltaenergy choose --id good/ --out detector/")
def choose(
    images: Annotated[str, typer.Option("--id", help="Known images: one folder per class, or a table with labels.")],
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            "-s",
            autocompletion=o.complete_score,
            help="Candidate; repeat for several, or use all.",
            show_default="all that work on features, and some τ",
        ),
    ] = None,
    detector: o.DetectorOption = None,
    out: Annotated[
        Path | None, o.unset("--out", "-o", help="Calibrate a detector with the best score and save it here.")
    ] = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Find the best score for your classes, using only images of those classes.

    Classes are split into groups. Each group in turn is left out, and its images serve as unknowns. Without --classes,
    the class folders name the classes. With --detector, its classifier is used.
    """
    import deltaenergy as de
    from deltaenergy.detector.opening import check_detector_folder
    from deltaenergy.files import keeping_result

    if out is not None:
        check_detector_folder(out, overwrite)
    choice = de.choose(o.by_options(detector, classes, model), images, scores, on=on)
    saved = None if out is None else choice.detector()
    if out is not None and saved is not None:
        keeping_result(out, saved.save, what="The detector")
    if json:
        written = {"detector": None} if saved is None or out is None else results.detector_record(out, saved)
        print_json({**choice.to_dict(), **written})
    else:
        _print_choice(choice, out)
    results.finish(choice.unreadable)


def _print_choice(choice: Choice, out: Path | None) -> None:
    rows = []
    for one in choice.ranking:
        auroc, behind = one.auroc, one.behind
        gap = f"{100 * behind.value:.1f} ({100 * behind.low:.1f} to {100 * behind.high:.1f})"
        interval = f"{100 * auroc.low:.1f} to {100 * auroc.high:.1f}"
        last = gap if one is not choice.ranking[0] else ""
        rows.append([one.spec, f"{100 * auroc.value:.1f}", interval, last, f"{100 * one.fpr95:.1f}"])
    print_table(["score", ">AUROC", ">interval", ">behind the best", ">FPR95"], rows)
    err.print(
        f"{choice.images} images of {choice.classes} classes; {choice.folds} groups left out in turn, seed "
        f"{choice.seed}. Intervals: 95%, classes resampled."
    )
    rivals = sum(one.behind.low <= 0 for one in choice.ranking[1:])
    if rivals:
        err.print(f"{rivals} more may be as good: the interval of their distance to the best includes 0.")
    err.print(f'Use it:  --score "{choice.best}"')
    if out is not None:
        err.print(f"Detector saved to {out}.")
