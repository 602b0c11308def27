"""Reports: one HTML file each, for light and dark screens, phones and paper; nothing is loaded from the network.

`write_report(results, "report.html")` writes the page that belongs to what it is given. The pieces serve other pages
too: `charts` (SVG), `page` (sections, tables, key figures), `html` (escaping); none imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy.errors import InputError
from deltaenergy.files import write_text

if TYPE_CHECKING:
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.data.items import ImageItem
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.evaluation.compare import Comparison
    from deltaenergy.evaluation.results import Evaluation
    from deltaenergy.monitor import Monitor
    from deltaenergy.report.page import Section

__all__ = ["write_report"]


def write_report(
    results: Evaluation | Comparison | Verdicts | Monitor | Results,
    path: str | Path,
    *,
    detector: Detector | None = None,
    items: Sequence[ImageItem] | None = None,
    title: str | None = None,
    command: str | None = None,
    more: Sequence[Section] = (),
) -> None:
    """Write a report that opens offline in any browser.

    Args:
        results: what `evaluate`, `compare` or `Detector.predict` returned, a monitor, or a folder of benchmark results.
        path: the HTML file.
        detector: the one that made the predictions; no other kind needs it.
        items: the images of the predictions, where their paths do not lead to them: in an archive, or moved since.
        title: in place of the usual one.
        command: what the user typed; an evaluation brings its own.
        more: further sections for an evaluation, such as `explanation.mistakes.mistakes_section` makes one.
    """
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.evaluation.compare import Comparison
    from deltaenergy.evaluation.results import Evaluation
    from deltaenergy.monitor import Monitor
    from deltaenergy.report.benchmark import benchmark_page
    from deltaenergy.report.comparison import comparison_page
    from deltaenergy.report.evaluation import evaluation_page
    from deltaenergy.report.monitor import monitor_page
    from deltaenergy.report.verdicts import verdicts_page

    folder = Path(path).parent
    if isinstance(results, Evaluation):
        page = evaluation_page(results, folder, title, more)
    elif isinstance(results, Comparison):
        page = comparison_page(results, title)
    elif isinstance(results, Monitor):
        page = monitor_page(results, folder, title, command)
    elif isinstance(results, Results):
        page = benchmark_page(results, title)
    elif detector is None:
        raise InputError("write_report: give the detector that made these predictions, as detector=….")
    else:
        page = verdicts_page(results, detector, folder, items, title, command)
    write_text(path, page)
