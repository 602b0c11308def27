"""The results of an evaluation as plain data, for the terminal, JSON, tables and the report."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy import __version__
from deltaenergy.core.classes import first_of_name
from deltaenergy.core.text import HasRepr, some_names
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.inline import Shot, pictures_html
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.stats.metrics import Estimate, RankedScores, proportion_estimate

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.detector.calibration import Calibration
    from deltaenergy.detector.names import NamesRule
    from deltaenergy.scoring import AnyScorer, Scored


class Group(StrEnum):
    """The kind of a set: known classes, known classes shifted in style, or no known class."""

    ID = "known"
    SHIFTED = "shifted"
    OPEN = "open"


@dataclass(frozen=True)
class EvaluatedSet:
    """One set of images with its results. Row i of every array belongs to `scored.items[i]`.

    `labels` are positions of classes (−1 if unknown), `counted` the images that count for detection, `scorers` the
    scorers by spec: cross-fitted scorers have the folds of these images first.
    """

    name: str
    group: Group
    scored: Scored
    labels: npt.NDArray[np.int64]
    correct: npt.NDArray[np.bool_]
    counted: npt.NDArray[np.bool_]
    scorers: Mapping[str, AnyScorer] = field(default_factory=dict)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """Which images have a known class."""
        return self.labels >= 0

    def __len__(self) -> int:
        return len(self.scored.items)


@dataclass(frozen=True)
class AccuracyRow:
    """Accuracy on the labelled images of one set."""

    set: str
    group: Group
    images: int
    accuracy: Estimate


@dataclass(frozen=True)
class DetectionRow:
    """How well one score separates a closed set (ID or shifted) from an open set."""

    score: str
    closed: str
    closed_group: Group
    open: str
    closed_images: int
    open_images: int
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class KeptRow:
    """The share of one set that a score keeps at its threshold."""

    score: str
    set: str
    group: Group
    images: int
    kept: Estimate


@dataclass(frozen=True, repr=False)
class Evaluation(HasRepr):
    """The results of an evaluation.

    Attributes:
        classes: the class names.
        sets: the sets in the order given: ID, shifted, open.
        scores: each score's `spec` with what it is (summary, formula, paper).
        primary: the score whose images and verdicts a report shows.
        keep: the ID share that thresholds keep, and the rate of the FPR columns.
        thresholds: by score, from the ID sets or a detector; None if that was cross-fitted.
        calibrations: by score, of the detector or of class names.
        accuracy, detection, kept: the tables.
        provenance: how it was made.
    """

    classes: tuple[str, ...]
    sets: list[EvaluatedSet]
    scores: dict[str, dict[str, str]]
    primary: str
    keep: float
    thresholds: dict[str, float | None]
    accuracy: list[AccuracyRow]
    detection: list[DetectionRow]
    kept: list[KeptRow]
    provenance: dict[str, Any] = field(default_factory=dict)
    calibrations: dict[str, Calibration | NamesRule] = field(default_factory=dict)

    @property
    def unreadable(self) -> list[Unreadable]:
        return [image for image_set in self.sets for image in image_set.scored.unreadable]

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "classes": f"{len(self.classes)} ({some_names(self.classes)})",
            "sets": ", ".join(
                f"{image_set.name} ({image_set.group.value}, {len(image_set)} images)" for image_set in self.sets
            ),
            "scores": some_names(list(self.scores)),
        }
        if self.accuracy:
            facts["accuracy"] = f"{self.accuracy[0].accuracy.value:.1%} on {self.accuracy[0].set}"
        best = max(self.detection, key=lambda row: row.metrics["auroc"].value, default=None)
        if best is not None:
            value = best.metrics["auroc"].value
            facts["best AUROC"] = f"{value:.1%} by {best.score}, {best.closed} against {best.open}"
        if self.unreadable:
            facts["unreadable"] = len(self.unreadable)
        return facts

    def _repr_html_(self) -> str:
        """In a notebook: numbers, and the images that the primary score judges wrongly."""
        wrong = []
        for image_set in self.sets:
            for item, rejected in zip(image_set.scored.items, self.is_ood(image_set).tolist()):
                if rejected != (image_set.group is Group.OPEN):
                    said = NONE_OF_THESE if rejected else KNOWN
                    wrong.append(Shot(item, (f"{said}, wrongly", image_set.name), not rejected))
        return super()._repr_html_() + pictures_html(wrong)

    def plot(self, score: str | None = None, ax: Any = None) -> Any:
        """ROC curves of a score (default the primary one) on matplotlib's axes `ax`, or new axes, and return them."""
        from deltaenergy.detector.inline import roc_curves

        spec = score or self.primary
        if spec not in self.scores:
            raise InputError(f"score {spec!r} was not evaluated.{did_you_mean(spec, self.scores)}")
        rows = [row for row in self.detection if row.score == spec]
        if not rows:
            raise InputError("There is no open set, so there is no curve: pass open_sets to evaluate.")
        # With the name of the score: one plot may have several.
        named = {
            f"{spec}, {row.closed} against {row.open}, AUROC {row.metrics['auroc'].value:.1%}": row for row in rows
        }
        return roc_curves({name: self.ranked(row).roc_curve() for name, row in named.items()}, ax)

    def in_group(self, group: Group) -> list[EvaluatedSet]:
        return [image_set for image_set in self.sets if image_set.group is group]

    def values(self, score: str, name: str) -> npt.NDArray[np.float64]:
        """The scores of a set, or of a pool such as `all open sets`."""
        return values_of([image_set for group in Group for image_set in self._pool(group, name)], score)

    def pair(self, row: DetectionRow) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The scores behind a row of `detection`: of the closed and of the open images."""
        sets = self._pool(row.closed_group, row.closed), self._pool(Group.OPEN, row.open)
        return values_of(sets[0], row.score), values_of(sets[1], row.score)

    def _pool(self, group: Group, name: str) -> list[EvaluatedSet]:
        """The sets of a group behind a name in the tables."""
        return (pools(self.sets, group, pooled=False) | pools(self.sets, group)).get(name, [])

    def ranked(self, row: DetectionRow) -> RankedScores:
        """The same, ranked: for its ROC curve, or a metric at another rate."""
        return RankedScores(*self.pair(row))

    def is_ood(self, image_set: EvaluatedSet, score: str | None = None) -> npt.NDArray[np.bool_]:
        """The verdict on each image of a set: True if the score is below its threshold or NaN."""
        spec = score or self.primary
        values, known, threshold = image_set.scored.values[spec], self.calibrations.get(spec), self.thresholds[spec]
        if known is None:
            assert threshold is not None  # set on the ID sets
            return ~(values >= threshold)
        named = np.array(first_of_name(self.classes), dtype=np.int64)[image_set.scored.predicted]
        return known.rejects(image_set.scored.by_fold.get(spec, values), named)

    def to_dict(self) -> dict[str, Any]:
        """All tables as JSON values: one flat row per line of each."""
        from deltaenergy.evaluation.classification import classification
        from deltaenergy.evaluation.disagreement import disagreement_record

        return {
            "accuracy": [flat_row(row) for row in self.accuracy],
            "detection": [flat_row(row) for row in self.detection],
            "kept": [{**flat_row(row), "threshold": self.thresholds[row.score]} for row in self.kept],
            "classification": [group.to_dict() for group in classification(self)],
            "disagreement": disagreement_record(self),
            "unreadable": [{"path": image.id, "reason": image.reason} for image in self.unreadable],
            "provenance": self.provenance,
        }


def pools(sets: Iterable[EvaluatedSet], group: Group, pooled: bool = True) -> dict[str, list[EvaluatedSet]]:
    """The sets of a group by the names to report: each alone, and if `pooled` all together if there are several.

    Of ID sets only the pool is reported: they share a threshold.
    """
    alone = {image_set.name: [image_set] for image_set in sets if image_set.group is group}
    if len(alone) < 2 or not pooled:
        return alone
    together = {f"all {group.value} sets": [image_set for (image_set,) in alone.values()]}
    return together if group is Group.ID else alone | together


def values_of(sets: Iterable[EvaluatedSet], score: str) -> npt.NDArray[np.float64]:
    """The scores of all images that count, of the scored sets among these; do not change them.

    Those of a single set are not copied if all of its images count.
    """
    scored = [image_set for image_set in sets if score in image_set.scored.values]
    values = [
        image_set.scored.values[score] if image_set.counted.all() else image_set.scored.values[score][image_set.counted]
        for image_set in scored
    ]
    return values[0] if len(values) == 1 else np.concatenate([np.zeros(0), *values])


def accuracy_rows(sets: Sequence[EvaluatedSet], *, pooled: bool) -> list[AccuracyRow]:
    """Accuracy of each labelled closed set, and with `pooled` of all ID and of all shifted sets."""
    rows = []
    for group in (Group.ID, Group.SHIFTED):
        for name, chosen in (pools(sets, group, pooled=False) | pools(sets, group, pooled)).items():
            labelled = sum(int(image_set.labelled.sum()) for image_set in chosen)
            if labelled:
                right = sum(int(image_set.correct.sum()) for image_set in chosen)
                rows.append(AccuracyRow(name, group, labelled, proportion_estimate(right, labelled)))
    return rows


def detection_rows(
    sets: Sequence[EvaluatedSet], scores: Sequence[str], keep: float, *, resamples: int, seed: int, pooled: bool
) -> list[DetectionRow]:
    """Each score on each closed set against each open set; intervals only with resamples.

    With `pooled`, sets of a group are also combined. Pairs without an image that counts, and sets that were not scored,
    are skipped.
    """
    rows = []
    for group in (Group.ID, Group.SHIFTED):
        for closed, known_sets in pools(sets, group, pooled).items():
            for open_name, open_sets in pools(sets, Group.OPEN, pooled).items():
                for spec in scores:
                    known, unknown = values_of(known_sets, spec), values_of(open_sets, spec)
                    if not len(known) or not len(unknown):
                        continue
                    try:
                        ranked = RankedScores(known, unknown)
                    except InputError as error:
                        raise InputError(f"Score {spec!r}, {closed!r} against {open_name!r}: {error}") from error
                    metrics = (
                        ranked.estimates(keep, resamples=resamples, seed=seed)
                        if resamples
                        else {name: Estimate(value, value, value) for name, value in ranked.metrics(keep).items()}
                    )
                    rows.append(DetectionRow(spec, closed, group, open_name, ranked.n_id, ranked.n_ood, metrics))
    return rows


def kept_rows(evaluation: Evaluation) -> list[KeptRow]:
    """The share of each set that each score's threshold keeps."""
    rows = []
    for spec in evaluation.thresholds:
        for image_set in evaluation.sets:
            if spec in image_set.scored.values and len(image_set):
                kept = int((~evaluation.is_ood(image_set, spec)).sum())
                rows.append(
                    KeptRow(
                        spec, image_set.name, image_set.group, len(image_set), proportion_estimate(kept, len(image_set))
                    )
                )
    return rows


def flat(name: str, estimate: Estimate) -> dict[str, float]:
    """A value and its interval, as columns of a table."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def flat_row(row: AccuracyRow | DetectionRow | KeptRow) -> dict[str, Any]:
    """A row as JSON values."""
    cells = {**vars(row), **getattr(row, "metrics", {})}
    cells.pop("metrics", None)
    columns = (flat(name, cell) if isinstance(cell, Estimate) else {name: cell} for name, cell in cells.items())
    return {name: value for column in columns for name, value in column.items()}


def provenance_of(classifier: Classifier, **settings: Any) -> dict[str, Any]:
    """Everything but the date decides the numbers: equal entries and equal images give equal results."""
    return {
        "model": classifier.model.describe(),
        "classifier": {
            **classifier.describe(),
            # Tuned classifiers record theirs in the method.
            "templates": list(classifier.templates) if classifier.method.name == "zero-shot" else [],
            "batch_dependent": classifier.batch_dependent,
        },
        "classes": list(classifier.classes),
        "classes_hash": classifier.classes_hash,
        **settings,
        "device": str(classifier.model.device),
        "precision": str(classifier.model.dtype).removeprefix("torch."),
        "versions": {
            "deltaenergy": __version__,
            "Python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
