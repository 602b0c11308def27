"""`write_report`: an evaluation, or a detector's predictions, as one HTML file."""

from __future__ import annotations

from pathlib import Path

from deltaenergy.detector import Detector, Predictions
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import Evaluation
from deltaenergy.files import write_text
from deltaenergy.report.evaluation import evaluation_page
from deltaenergy.report.predictions import predictions_page


def write_report(
    results: Evaluation | Predictions,
    path: str | Path,
    *,
    detector: Detector | None = None,
    title: str | None = None,
    command: str | None = None,
) -> None:
    """Write a report that opens offline in any browser.

    Args:
        results: what `evaluate` returned, or what `Detector.predict` returned.
        path: the HTML file.
        detector: the one that made the predictions; an evaluation does not need it.
        title: in place of the usual one.
        command: what the user typed; an evaluation brings its own.
    """
    if isinstance(results, Evaluation):
        document = evaluation_page(results, title)
    elif detector is None:
        raise InputError("write_report: give the detector that made these predictions, as detector=….")
    else:
        document = predictions_page(results, detector, title=title, command=command)
    write_text(path, document)
