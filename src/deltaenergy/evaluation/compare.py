"""Several detectors side by side on the same images, and the differences between them with paired intervals.

In every bootstrap resample all detectors get the same images, so images that are hard for all do not widen the
interval. The first detector is the baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
from deltaenergy.core.progress import Progress, part_of, stage
from deltaenergy.data.items import StoredRow, Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import DetectorSource
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import EvaluatedSet, Evaluation, Group, flat, pools, provenance_of, values_of
from deltaenergy.evaluation.run import EvaluationRules, evaluate_sets, warn_of_no_open_set, warn_of_unknown_classes
from deltaenergy.evaluation.sets import LoadedSet, grouped_sets, load_sets, match_labels, short_names
from deltaenergy.models.base import TowerModel
from deltaenergy.models.on import On
from deltaenergy.scoring import needs_of_images
from deltaenergy.source import Features
from deltaenergy.stats.metrics import Estimate, paired_differences, paired_mean_difference
from deltaenergy.stats.thresholds import check_keep


@dataclass(frozen=True)
class Difference:
    """One detector's metric minus the baseline's, on the same images. `open` is empty if it does not apply."""

    name: str
    metric: str
    closed: str
    open: str
    images: int
    change: Estimate

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.change.low <= 0 <= self.change.high


@dataclass(frozen=True)
class Comparison:
    """The evaluation of each detector by name, the first of which is the baseline, and the differences to it."""

    evaluations: dict[str, Evaluation]
    differences: list[Difference]

    @property
    def baseline(self) -> str:
        """The baseline detector."""
        return next(iter(self.evaluations))

    @property
    def unreadable(self) -> list[Unreadable]:
        by_id = {image.id: image for evaluation in self.evaluations.values() for image in evaluation.unreadable}
        return list(by_id.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "detectors": {name: evaluation.to_dict() for name, evaluation in self.evaluations.items()},
            "differences": [
                {
                    "detector": row.name,
                    "metric": row.metric,
                    "closed": row.closed,
                    "open": row.open or None,
                    "images": row.images,
                    **flat("difference", row.change),
                }
                for row in self.differences
            ],
        }


def compare(
    detectors: Mapping[str, Detector | str | Path] | Sequence[str],
    id_sets: Any,
    shifted_sets: Any = (),
    open_sets: Any = (),
    *,
    zero_shot: bool = False,
    keep: float = 0.95,
    limit: int | None = None,
    seed: int = 0,
    resamples: int = 1000,
    on: str | On = "auto",
) -> Comparison:
    """Measure several detectors on the same sets of images.

    A detector without a threshold gets one from the ID sets; a score that learns from images is cross-fitted on them,
    as in `evaluate`. Detectors of one model share the encoded images if they need only features.

    Args:
        detectors: by name, each a detector or its folder; or a list of folders.
        id_sets: images of the classes.
        shifted_sets: images of the same classes shifted in style.
        open_sets: images of none of the classes.
        zero_shot: compare with the first detector's model before tuning, which then comes first.
        keep: the ID share that thresholds keep, and the rate of the FPR metrics.
        limit: at most this many images of each set, drawn with `seed`.
        seed: for `limit` and for the bootstrap.
        resamples: number of bootstrap resamples behind each interval.
        on: where to run models, and images per batch.
    """
    if not isinstance(detectors, Mapping):
        detectors = {name: folder for folder, name in short_names(detectors).items()}
    if len(detectors) + zero_shot < 2:
        raise InputError(f"compare needs at least two detectors, got {len(detectors)}.")
    check_keep(keep)
    on = On.of(on)
    sources = {name: DetectorSource.of(one, on, "compare") for name, one in detectors.items()}
    loaded = load_sets(grouped_sets(id_sets, shifted_sets, open_sets, limit, "compare"), limit, seed)
    opened = {name: source.detector() for name, source in sources.items()}
    if zero_shot:
        first = next(iter(opened.values()))
        plain = ZeroShotClassifier(first.classifier.model, first.classifier.classes)
        opened = {"zero-shot": Detector(plain, first.score).prepare(), **opened}
    with stage("Encoding images") as progress:
        evaluations = _evaluate_each(
            opened, loaded, EvaluationRules(keep, resamples, seed, on.batch_size), limit, progress
        )
    return Comparison(evaluations, differences(evaluations, keep, resamples=resamples, seed=seed))


def _evaluate_each(
    detectors: Mapping[str, Detector],
    loaded: Sequence[LoadedSet],
    rules: EvaluationRules,
    limit: int | None,
    progress: Progress,
) -> dict[str, Evaluation]:
    evaluations = {}
    encoded: dict[str, list[LoadedSet]] = {}
    for name, detector in detectors.items():
        classifier = detector.classifier
        sets: Sequence[LoadedSet] = loaded
        by_row = not classifier.batch_dependent and isinstance(classifier.model, TowerModel)
        if by_row and not needs_of_images(classifier, [detector.score]):
            key = classifier.model.fingerprint
            if key not in encoded:
                encoded[key] = list(_encode(loaded, classifier.model, rules.batch_size, progress))
            sets = encoded[key]
        labelled = [replace(image_set, labels=match_labels(image_set, classifier.classes)) for image_set in sets]
        evaluations[name] = evaluate_sets(
            classifier,
            [detector.scorer],
            labelled,
            rules,
            calibrated=detector if detector.calibration is not None else None,
            progress=progress,
            provenance=provenance_of(classifier, seed=rules.seed, limit=limit, resamples=rules.resamples),
        )
        warn_of_unknown_classes(evaluations[name], who=f"The detector {name!r}", stacklevel=3)
    warn_of_no_open_set(evaluations[name], stacklevel=3)
    return evaluations


def _encode(sets: Sequence[LoadedSet], model: Any, batch_size: int, progress: Progress | None) -> Iterator[LoadedSet]:
    total, before = sum(map(len, sets)), 0
    for image_set in sets:
        encoded = model.encode(image_set.items, batch_size=batch_size, progress=part_of(progress, before, total))
        before += len(image_set)
        image_set.check_readable(encoded.items, encoded.unreadable)
        held = Features(encoded.features)
        items = [replace(item, row=StoredRow(held, i)) for i, item in enumerate(encoded.items)]
        yield replace(image_set, items=items, unreadable=tuple(encoded.unreadable))


def differences(
    evaluations: Mapping[str, Evaluation], keep: float, *, resamples: int = 1000, seed: int = 0
) -> list[Difference]:
    """The differences of every other evaluation to the first, on the same images."""
    (_, base), *others = evaluations.items()
    return [row for name, other in others for row in _differences(name, base, other, keep, resamples, seed)]


def _differences(
    name: str, base: Evaluation, other: Evaluation, keep: float, resamples: int, seed: int
) -> Iterator[Difference]:
    """Accuracy, then detection, then the shares kept by each detector at its own threshold: of each whole group."""
    pairs = {group: _aligned(base, other, group) for group in Group if base.in_group(group)}
    pool = {group: list(pools(base.sets, group))[-1] for group in pairs}
    closed_groups = [group for group in pairs if group is not Group.OPEN]
    for group in closed_groups:
        both = [first.labelled & second.labelled for first, second in pairs[group]]
        before = np.concatenate([first.correct[use] for (first, _), use in zip(pairs[group], both)])
        after = np.concatenate([second.correct[use] for (_, second), use in zip(pairs[group], both)])
        if len(before):
            change = paired_mean_difference(before, after, resamples=resamples, seed=seed)
            yield Difference(name, "accuracy", pool[group], "", len(before), change)
    for group in closed_groups if Group.OPEN in pairs else ():
        scores = [
            (
                values_of([pair[side] for pair in pairs[group]], evaluation.primary),
                values_of([pair[side] for pair in pairs[Group.OPEN]], evaluation.primary),
            )
            for side, evaluation in enumerate((base, other))
        ]
        found = paired_differences(scores[0], scores[1], keep, resamples=resamples, seed=seed)
        images = sum(map(len, scores[0]))
        for metric, change in found.items():
            yield Difference(name, metric, pool[group], pool[Group.OPEN], images, change)
    for of_pool, of_group in pairs.items():
        before = np.concatenate([~base.is_ood(first) for first, _ in of_group])
        after = np.concatenate([~other.is_ood(second) for _, second in of_group])
        change = paired_mean_difference(before, after, resamples=resamples, seed=seed)
        where = ("", pool[of_pool]) if of_pool is Group.OPEN else (pool[of_pool], "")
        yield Difference(name, "kept", *where, len(before), change)


def _aligned(base: Evaluation, other: Evaluation, group: Group) -> list[tuple[EvaluatedSet, EvaluatedSet]]:
    """The sets of a group in both; their images must be the same."""
    pairs = list(zip(base.in_group(group), other.in_group(group)))
    for first, second in pairs:
        if [item.id for item in first.scored.items] != [item.id for item in second.scored.items]:
            raise InputError(f"The detectors could not read the same images of the set {first.name!r}.")
    return pairs
