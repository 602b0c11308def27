"""Several detectors at once: calibrated by one pass over the images, and judging the same batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.store_pass import names_a_store
from deltaenergy.errors import InputError
from deltaenergy.labels import ClassFinder, class_indices, first_of_name
from deltaenergy.models.features import is_feature_array
from deltaenergy.predictions import Predictions
from deltaenergy.progress import Progress
from deltaenergy.recognition import asks_words, check_known
from deltaenergy.scores.runnable import check_runnable, given_by, unlabelled
from deltaenergy.scoring import Scored, score_images
from deltaenergy.thresholds import CONFIDENCE, NoGuarantee, check_confidence, check_keep, fit_count

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.detector import Detector

# So many calibration images next to the threshold are scored again alone, and what that changes is multiplied by so
# much: rounding must not decide.
SCORED_AGAIN, SLACK_OF_CHANGE, LARGEST_ROUNDING = 4, 8.0, 1e-3


def calibrate_together(
    detectors: Sequence[Detector],
    images: Any,
    keep: float = 0.95,
    confidence: float | None = CONFIDENCE,
    *,
    by_class: bool = False,
    labels: Sequence[str] | None = None,
    keep_images: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[Detector]:
    """`Detector.calibrate` of several detectors of one classifier, with one pass over the images."""
    check_calibration(keep, confidence, by_class=by_class, labels=labels)
    classifier = detectors[0].classifier
    given = given_by([images], classifier).without(labels=unlabelled(images))
    check_runnable([one.score for one in detectors], given)
    # What they learned from other images is learned anew.
    scorers = [replace(one.scorer, fitted=not one.score.needs_fit) for one in detectors]

    def fit_on(count: int) -> npt.NDArray[np.int64] | None:
        fit = fit_count(count, keep, confidence)
        return np.sort(np.random.default_rng(0).permutation(count)[:fit]) if fit else None

    scored = score_images(
        classifier,
        scorers,
        images,
        fit=True,
        fit_on=fit_on,
        keep_features=keep_images or asks_words(classifier),
        batch_size=batch_size,
        progress=progress,
    )
    check_known(classifier, scored.items, scored.predicted, scored.features, stacklevel=3)
    if scored.unreadable:
        first = scored.unreadable[0]
        warnings.warn(
            f"{len(scored.unreadable)} calibration image(s) could not be read and were left out, "
            f"the first is {first.id}: {first.reason}",
            stacklevel=3,
        )
    for one in detectors:
        one.calibrate_scored(scored, keep, confidence, by_class=by_class, labels=labels, keep_images=keep_images)
    if not (is_feature_array(images) or names_a_store(images)):
        _widen_slack(detectors, scored)
    for guarantee in {one.guarantee for one in detectors if one.guarantee is not None}:
        if keep < 1 and confidence is not None and guarantee.confidence is None:
            warnings.warn(str(guarantee), NoGuarantee, stacklevel=3)
    return list(detectors)


def _widen_slack(detectors: Sequence[Detector], scored: Scored) -> None:
    """Score the images next to each threshold again, one at a time, and give way to several times what that changes.

    How much a score is moved by the rounding of a tower depends on both: some saturated scores by far more, relative
    to their size, than any rule would allow for. What changes by more than a thousandth does not change by rounding,
    and is given no way: such a score depends on its batch.
    """
    for one in detectors:
        values = scored.values[one.score.spec]
        above = np.flatnonzero(values >= one.bounds().min())
        near = above[np.argsort(values[above], kind="stable")[:SCORED_AGAIN]]
        again = score_images(one.classifier, [one.scorer], [scored.items[row] for row in near], batch_size=1)
        found = {item.id: value for item, value in zip(again.items, again.values[one.score.spec])}
        known = [row for row in near if scored.items[row].id in found]
        pairs = [(found[scored.items[row].id], values[row]) for row in known]
        changes = [abs(new - old) for new, old in pairs if abs(new - old) <= LARGEST_ROUNDING * max(1.0, abs(old))]
        one.slack = max([one.slack, *(SLACK_OF_CHANGE * change for change in changes)])


def judge_together(
    detectors: Sequence[Detector], batches: Iterable[Scored], fdr: float | None = None
) -> Iterator[tuple[Scored, list[Predictions]]]:
    """Each batch with the verdicts of every detector. With `fdr` all batches are looked at before the first comes."""
    if fdr is None:
        for batch in batches:
            yield batch, [one.judge(batch) for one in detectors]
        return
    found = list(batches)
    ends = np.cumsum([len(batch.items) for batch in found]).tolist()
    controlled = []
    for one in detectors:
        verdicts = [verdict for batch in found for verdict in one.judge(batch)]
        controlled.append(one.control(Predictions(verdicts, []), fdr))
    for batch, end in zip(found, ends):
        rows = slice(end - len(batch.items), end)
        yield batch, [Predictions(verdicts[rows], batch.unreadable, fdr) for verdicts in controlled]


def check_calibration(
    keep: float, confidence: float | None, *, by_class: bool = False, labels: Sequence[str] | None = None
) -> None:
    """Raise `InputError` for settings of `Detector.calibrate` that make no sense, before any work."""
    check_keep(keep)
    check_confidence(confidence)
    if by_class and keep == 1:
        raise InputError("by_class needs keep below 1: one threshold for all keeps every calibration image as it is.")
    if labels is not None and not by_class:
        raise InputError("labels are for thresholds by class: give by_class=True as well.")


def true_classes(scored: Scored, classes: Sequence[str], labels: Sequence[str] | None) -> npt.NDArray[np.int64]:
    """The class of each image, by its first position in the class list."""
    if labels is None:
        if scored.items and all(item.label is None for item in scored.items):
            raise InputError(
                "by_class needs to know the class of each image. Give a folder with one subfolder per class, a table "
                "with a label column, or labels with rows of features."
            )
        found = class_indices(scored.items, classes, "by_class")
    else:
        if len(labels) != len(scored.items) or scored.unreadable:
            raise InputError(
                f"labels must hold one class name for each of the {len(scored.items)} rows, got {len(labels)}."
            )
        finder = ClassFinder(classes)
        positions = [finder.find(str(label)) for label in labels]
        for row, position in enumerate(positions):
            if position is None:
                raise finder.unknown("by_class", f"row {row}", [str(labels[row])])
        found = [position for position in positions if position is not None]
    return np.array(first_of_name(classes), dtype=np.int64)[np.array(found, dtype=np.int64)]


def check_numbers(scored: Scored, spec: str) -> None:
    """Raise `InputError` if an image's score is NaN: a threshold among such values would mean nothing."""
    bad = np.flatnonzero(np.isnan(scored.values[spec]))
    if len(bad):
        raise InputError(
            f"The score {spec} of the known image {scored.items[bad[0]].id} is not a number"
            f"{f', as those of {len(bad) - 1} more' if len(bad) > 1 else ''}, so that no threshold can be set. "
            "Leave it out, or use another score."
        )
