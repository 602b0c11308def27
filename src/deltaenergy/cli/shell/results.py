"""Print and write results: verdicts as a table, CSV, a file or JSON; reports; and the closing lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deltaenergy.cli.shell.console import err, print_json, print_table
from deltaenergy.cli.shell.exits import DONE, SOME_UNREADABLE
from deltaenergy.cli.shell.options import typed
from deltaenergy.core.text import counted, visible

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.guarantee import Guarantee
    from deltaenergy.detector.names import NamesRule
    from deltaenergy.detector.score import Scoring
    from deltaenergy.detector.verdict import Counts
    from deltaenergy.detector.verdicts import Verdicts


def show(verdicts: Scoring, *, out: str | None = None, report: Path | None = None, json: bool = False) -> None:
    """Print or write verdicts: to a file or a pipe as they come; a terminal, JSON and a report need all of them.

    A report is written before anything is printed, so a closed standard output cannot stop it.
    """
    from deltaenergy.detector.fiftyone import names_fiftyone
    from deltaenergy.detector.score import no_threshold
    from deltaenergy.detector.verdict_files import check_table, write_csv, write_table
    from deltaenergy.files import keeping_result

    if out is not None:
        check_table(out, "out")
    if report is not None and not verdicts.has_threshold:
        raise no_threshold("`report`")
    check_report(report)
    fiftyone = out is not None and names_fiftyone(out)
    whole_at_once = json or report is not None or fiftyone or (out is None and sys.stdout.isatty())
    held: list[Verdicts] = []

    def parts() -> Iterator[Verdicts]:
        for part in verdicts.batches():
            if whole_at_once:
                held.append(part)
            yield part

    def print_csv(some: Iterable[Verdicts]) -> None:
        write_csv(sys.stdout, (row for part in some for row in part.rows()), verdicts.columns)

    if out is not None and not fiftyone:
        written = write_table(out, (part.rows() for part in parts()), verdicts.columns)
        err.print(f"{counted(written, 'image')} written to {out}")
    elif not whole_at_once:
        print_csv(parts())
    else:
        held += verdicts.batches()
    if whole_at_once:
        whole = verdicts.collect(held)
        if out is not None and fiftyone:
            keeping_result(out, whole.to_fiftyone, what="The table")
            err.print(f"{counted(len(whole), 'image')} written to {out}")
        if report is not None:
            write_report(whole, report, detector=verdicts.detector)
        if json:
            print_json(_document(verdicts, whole))
        elif out is None and sys.stdout.isatty():
            _print_verdicts(whole, verdicts.columns)
        elif out is None:
            print_csv(held)
    close(verdicts)


def close(verdicts: Scoring) -> None:
    from deltaenergy.detector.adaptive import ORDER_DEPENDENT
    from deltaenergy.detector.detector import Detector

    if not isinstance(verdicts.detector, Detector):
        err.print(ORDER_DEPENDENT)
    print_counts(verdicts.counts)
    if isinstance(verdicts.detector, Detector):
        print_guarantee(verdicts.detector, verdicts.fdr)
    finish(verdicts.unreadable)


def _document(verdicts: Scoring, whole: Verdicts) -> dict[str, Any]:
    from deltaenergy.detector.adaptive import ORDER_DEPENDENT
    from deltaenergy.detector.detector import Detector

    detector = verdicts.detector
    more: dict[str, Any] = {"note": ORDER_DEPENDENT}
    if isinstance(detector, Detector):
        known = detector.guarantee
        more = {"guarantee": None if known is None else known.to_dict(), "fdr": verdicts.fdr}
    return {
        "model": detector.classifier.model.describe(),
        "classes_hash": detector.classifier.classes_hash,
        "score": whole.score_name,
        "threshold": detector.threshold,
        **more,
        "images": whole.rows(),
        "unreadable": unreadable_records(verdicts.unreadable),
        "counts": verdicts.counts.to_dict(),
    }


def _print_verdicts(whole: Verdicts, columns: Sequence[str]) -> None:
    from rich.text import Text

    ranks = [rank for rank in range(2, len(columns)) if f"label_{rank}" in columns]
    names = ["image", "class", ">confidence", *(name for rank in ranks for name in (f"class {rank}", ">"))]
    names += [f">{whole.score_name}", *([] if whole.is_ood is None else [">p", "verdict", "more like"])]
    rows = []
    for one in whole:
        cells: list[str | Text] = [one.path]
        for label, confidence in one.top:
            cells += [label, f"{confidence:.2f}"]
        cells.append(f"{one.score:.4g}")
        if one.verdict is not None:
            p_value = "–" if one.p_value is None else f"{one.p_value:.3f}"
            cells += [p_value, Text(one.verdict, "red" if one.is_ood else "green"), one.more_like or ""]
        rows.append(cells)
    print_table(names, rows)


def print_counts(counts: Counts) -> None:
    unreadable = f"{counts.unreadable:,} unreadable"
    if counts.rejected is None:
        err.print(f"{counts.images:,} scored, {unreadable}.")
        err.print("No verdicts without a threshold: add --id FOLDER, or --detector FOLDER.", style="dim")
        return
    known, none = (f"{count:,} {word}" for word, count in list(counts.to_dict().items())[:2])
    err.print(f"{known}, {none}, {unreadable}.")


def print_guarantee(detector: Detector, fdr: float | None = None) -> None:
    """Print the guarantee, or that of the false discovery rate, on standard error."""
    from deltaenergy.detector.names import NamesRule
    from deltaenergy.stats.thresholds import percent

    if detector.guarantee is None:
        return
    if fdr is None:
        print_rule(detector.guarantee)
        if isinstance(detector.guarantee, NamesRule):
            err.print("For a guarantee, add known images: --id FOLDER.", style="dim")
        return
    count = len(detector.calibration_scores)
    err.print(
        f"Of the rejected images, at most {percent(fdr)} are known in expectation. With {count} calibration images no "
        f"p-value is below {1 / (count + 1):.2g}: to find a few unknown images among very many, calibrate on about "
        f"1 / ({fdr:g} × their share) images."
    )


def print_rule(guarantee: Guarantee | NamesRule) -> None:
    """Print what the threshold guarantees on standard error; in yellow if it is less than requested."""
    from deltaenergy.detector.names import NamesRule

    err.print(str(guarantee), style=None if guarantee.holds or isinstance(guarantee, NamesRule) else "yellow")


def check_report(path: Path | None) -> None:
    """Refuse a report that could not be written, before any work."""
    from deltaenergy.report import check_report

    if path is not None:
        check_report(path, "report")


def write_report(results: Any, path: Path | None, **options: Any) -> None:
    """`deltaenergy.write_report`, if a report was requested; its path is printed."""
    from deltaenergy.core.progress import stage
    from deltaenergy.report import write_report

    if path is not None:
        with stage("Writing the report"):
            write_report(results, path, command=typed(), **options)
        err.print(f"Report written to {path}")


def detector_record(folder: str | Path, detector: Detector) -> dict[str, Any]:
    known = detector.guarantee
    return {
        "detector": str(folder),
        "score": detector.score.spec,
        "threshold": detector.threshold,
        "keep": None if known is None else known.keep,
        "guarantee": None if known is None else known.to_dict(),
    }


def threshold_words(detector: Detector) -> str:
    """A sentence with the threshold of a detector, or why it has none."""
    if detector.threshold is None:
        return f"{detector.score.spec} is cross-fitted, and has no single threshold."
    return f"Threshold {detector.threshold:.6g} for {detector.score.spec}."


def unreadable_records(unreadable: Iterable[Unreadable]) -> list[dict[str, str]]:
    return [{"path": image.id, "reason": image.reason} for image in unreadable]


def finish(unreadable: Sequence[Unreadable], code: int = DONE) -> None:
    """List skipped images; exit with `code`, or with 1 if there are any."""
    if unreadable:
        err.print(f"Skipped {counted(len(unreadable), 'unreadable image')}:", style="yellow")
        for image in unreadable:
            err.print(f"  {visible(image.id)}: {image.reason}", style="yellow")
    if code or unreadable:
        raise typer.Exit(code or SOME_UNREADABLE)
