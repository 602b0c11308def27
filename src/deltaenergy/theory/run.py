"""The theorems and Figure 1 on a detector and images, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltaenergy.core.progress import stage
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import By, DetectorSource
from deltaenergy.explanation.methods import check_method
from deltaenergy.models.on import On
from deltaenergy.source import as_source, has_pixels, labelled_images, load_images
from deltaenergy.theory.check import TheoryReport, check_theory
from deltaenergy.theory.figure1 import Figure1, claims, figure1, figure_record
from deltaenergy.theory.page import theory_page


@dataclass(frozen=True)
class Theory:
    """What was found; `figure` is None without unknown images, and for feature stores."""

    report: TheoryReport
    figure: Figure1 | None

    @property
    def unreadable(self) -> list[Unreadable]:
        return self.report.unreadable

    def sentences(self) -> list[str]:
        """What holds, and what does not."""
        found = [f"{name}: {text}" for name, text in self.report.sentences()]
        if self.figure is None:
            return [*found, "Figure 1: Not checked: it needs unknown images, and images rather than feature stores."]
        said = (("holds" if one.holds else "does not hold", one) for one in claims(self.figure))
        return [*found, *(f"Figure 1 {verdict}: {one.claim}. {one.found}" for verdict, one in said)]

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {**self.report.to_dict(), "figure_1": None if self.figure is None else figure_record(self.figure)}

    def report_page(self, folder: Path, title: str | None, command: str | None) -> str:
        return theory_page(self.report, self.figure, command or "")


def check_paper(
    by: By,
    known: Any,
    unknown: Any = None,
    *,
    against: str | Path | None = None,
    domains: bool = False,
    method: str = "auto",
    on: str | On = "auto",
) -> Theory:
    """Check the paper's theorems on a detector and images, and its Figure 1 if there are unknown images.

    Args:
        by: a detector or its folder.
        known: images of its classes, in one folder per class.
        unknown: images of none of its classes.
        against: folder of a detector that was tuned without EBM, for Theorem 4.
        domains: whether `known` has folders DOMAIN/CLASS/ rather than CLASS/.
        method: heatmap of Figure 1.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "theory")
    check_method(method)
    items, others = labelled_images(known, domains), None if unknown is None else load_images(unknown)
    classifier = source.classifier()
    other = None if against is None else Detector.load(against, model=classifier.model).classifier
    batch_size = source.on.batch_size
    with stage("Encoding images") as progress:
        report = check_theory(
            classifier, items, open_images=others, against=other, batch_size=batch_size, progress=progress
        )
    figure = None
    if others is not None and all(has_pixels(as_source(one)) for one in (items, others)):
        with stage("Masking images") as progress:
            figure = figure1(classifier, items, others, method=method, batch_size=batch_size, progress=progress)
    return Theory(report, figure)
