"""`write_report` and `write_verdicts`: an evaluation, or a detector's verdicts, as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.detector import Detector, Predictions, Verdict
from deltaenergy.errors import InputError
from deltaenergy.evaluation.compare import Comparison
from deltaenergy.evaluation.results import Evaluation
from deltaenergy.files import write_text
from deltaenergy.monitor import Monitor
from deltaenergy.report.comparison import comparison_page
from deltaenergy.report.evaluation import evaluation_page
from deltaenergy.report.monitor import write_monitor
from deltaenergy.report.page import Section
from deltaenergy.report.verdicts import judged_by_id, verdicts_page


def write_report(
    results: Evaluation | Comparison | Predictions | Monitor,
    path: str | Path,
    *,
    detector: Detector | None = None,
    title: str | None = None,
    command: str | None = None,
    more: Sequence[Section] = (),
) -> None:
    """Write a report that opens offline in any browser.

    Args:
        results: what `evaluate`, `compare` or `Detector.predict` returned, or a monitor.
        path: the HTML file.
        detector: the one that made the predictions; an evaluation does not need it.
        title: in place of the usual one.
        command: what the user typed; an evaluation brings its own.
        more: further sections for an evaluation, such as `explain.mistakes.mistakes_section` makes one.
    """
    if isinstance(results, Evaluation):
        write_text(path, evaluation_page(results, title, Path(path).parent, more=more))
    elif isinstance(results, Comparison):
        write_text(path, comparison_page(results, title))
    elif isinstance(results, Monitor):
        write_monitor(results, path, title=title, command=command)
    elif detector is None:
        raise InputError("write_report: give the detector that made these predictions, as detector=….")
    else:
        write_verdicts(
            judged_by_id(results),
            path,
            detector=detector,
            unreadable=results.unreadable,
            fdr=results.fdr,
            title=title,
            command=command,
        )


def write_verdicts(
    judged: Sequence[tuple[ImageItem, Verdict]],
    path: str | Path,
    *,
    detector: Detector,
    unreadable: Sequence[Unreadable] = (),
    fdr: float | None = None,
    title: str | None = None,
    command: str | None = None,
) -> None:
    """Write a page of images and their verdicts, closest calls first, that opens offline in any browser.

    `write_report` of predictions does the same; here images come as items, which may lie in archives. `fdr` is the
    false discovery rate, if that decided.
    """
    folder = Path(path).parent
    write_text(path, verdicts_page(judged, detector, unreadable, folder, fdr=fdr, title=title, command=command))
