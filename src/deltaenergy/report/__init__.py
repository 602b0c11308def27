"""Reports: one HTML file each, for light and dark screens, phones and paper; nothing is loaded from the network.

`write_report(results, "report.html")` writes the page for the results it gets. Other pages use the same pieces:
`charts` (SVG), `page` (sections, tables, key figures), `html` (escaping); none imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deltaenergy.errors import InputError
from deltaenergy.files import check_writable, keeping_result, write_text

if TYPE_CHECKING:
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.score import Scoring
    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.evaluation.compare import Comparison
    from deltaenergy.evaluation.results import Evaluation
    from deltaenergy.monitor import Monitor
    from deltaenergy.report.page import Section

__all__ = ["check_report", "write_report"]
PAGES = (".html", ".htm")


class HasPage(Protocol):
    """Results that make their own page: explanations, theory."""

    def report_page(self, folder: Path, title: str | None, command: str | None) -> str:
        """The whole page as HTML, in a file of `folder`."""


def check_report(path: str | Path, argument: str = "path", endings: Sequence[str] = PAGES) -> None:
    """Raise `InputError` for a report that could not be written, before the work."""
    if Path(path).suffix.lower() not in endings and not Path(path).is_dir():
        raise InputError(f"`{argument}` {path}: the name must end in {' or '.join(endings)}.")
    check_writable(path, argument=argument)


def write_report(
    results: Evaluation | Comparison | Verdicts | Scoring | Monitor | Results | HasPage,
    path: str | Path,
    *,
    detector: Detector | None = None,
    title: str | None = None,
    command: str | None = None,
    more: Sequence[Section] = (),
) -> None:
    """Write a report that opens offline in any browser. If `path` cannot be written, it is saved elsewhere.

    Args:
        results: what `evaluate`, `compare`, `score`, `Detector.predict` or `explain` returned, a monitor, or a folder
            of benchmark results, which can also be written as Markdown (.md) or LaTeX (.tex).
        path: the file.
        detector: the detector that made the verdicts of `Detector.predict`.
        title: replaces the default title.
        command: what the user typed.
        more: further sections for an evaluation, such as `explanation.page.mistakes_section`.
    """
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.score import Scoring
    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.evaluation.compare import Comparison
    from deltaenergy.evaluation.results import Evaluation
    from deltaenergy.monitor import Monitor
    from deltaenergy.report.benchmark import benchmark_page, benchmark_tables
    from deltaenergy.report.comparison import comparison_page
    from deltaenergy.report.evaluation import evaluation_page
    from deltaenergy.report.monitor import monitor_page
    from deltaenergy.report.verdicts import verdicts_page

    path = Path(path)
    check_report(path, endings=(*PAGES, ".md", ".tex") if isinstance(results, Results) else PAGES)

    def made_by(one: Evaluation) -> Evaluation:
        return replace(one, provenance={**one.provenance, "command": command})

    if isinstance(results, Scoring):
        detector, results = results.detector if isinstance(results.detector, Detector) else None, results.collect()
    if isinstance(results, Evaluation):
        page = evaluation_page(made_by(results), path.parent, title, more)
    elif isinstance(results, Comparison):
        named = {name: made_by(one) for name, one in results.evaluations.items()}
        page = comparison_page(replace(results, evaluations=named), title)
    elif isinstance(results, Monitor):
        page = monitor_page(results, path.parent, title, command)
    elif isinstance(results, Results) and path.suffix.lower() in (".md", ".tex"):
        page = benchmark_tables(results, path.suffix.lower())
    elif isinstance(results, Results):
        page = benchmark_page(results, title)
    elif not isinstance(results, Verdicts):
        page = results.report_page(path.parent, title, command)
    elif detector is None:
        raise InputError("write_report: give the `detector` that made these verdicts.")
    else:
        page = verdicts_page(results, detector, path.parent, title, command)
    keeping_result(path, lambda place: write_text(place, page), what="The report")
