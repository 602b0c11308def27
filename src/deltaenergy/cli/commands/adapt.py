"""`deltaenergy score --adapt`: the adaptive stream; order matters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.records import unreadable_records
from deltaenergy.cli.shell.results import Rows, emit, print_counts

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem


def score_adapted(
    classifier: Classifier,
    adapter: str,
    images: Any,
    id_images: list[ImageItem],
    keep: float,
    out_file: Path | None,
    json_output: bool,
    batch_size: int,
) -> None:
    """Score images in their order with a memory of the ones before."""
    from deltaenergy.detector.adaptive import ORDER_DEPENDENT, AdaptiveDetector

    detector = AdaptiveDetector(classifier, adapter)
    with common.progress_bar(f"Preparing {detector.adapter.spec}") as progress:
        detector.prepare(progress)
    if id_images:
        with common.progress_bar("Calibrating") as progress:
            detector.calibrate(id_images, keep, batch_size=batch_size, progress=progress)

    def document(rows: Rows) -> dict[str, Any]:
        return {
            "model": classifier.model.describe(),
            "classes_hash": classifier.classes_hash,
            "score": detector.adapter.spec,
            "threshold": detector.threshold,
            "note": ORDER_DEPENDENT,
            "images": rows,
            "unreadable": unreadable_records(stream.unreadable),
            "counts": stream.counts.to_dict(),
        }

    with common.progress_bar("Scoring") as progress:
        stream = detector.stream(images, batch_size=batch_size, progress=progress)
        emit(stream.batches(), classifier.classes, out_file=out_file, document=document if json_output else None)
    err.print(ORDER_DEPENDENT)
    print_counts(stream.counts)
    common.finish(stream.unreadable)
