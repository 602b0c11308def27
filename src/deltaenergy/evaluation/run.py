"""`evaluate`: encode every set once, score it with all scores, and measure."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from deltaenergy.classifiers.base import Classifier
from deltaenergy.core.classes import class_names, first_of_name
from deltaenergy.core.progress import Progress, part_of, stage
from deltaenergy.detector.calibration import check_numbers
from deltaenergy.detector.class_check import warn_of_chance
from deltaenergy.detector.opening import By, DetectorSource
from deltaenergy.errors import DeltaEnergyError
from deltaenergy.evaluation.results import (
    EvaluatedSet,
    Evaluation,
    Group,
    accuracy_rows,
    detection_rows,
    kept_rows,
    provenance_of,
)
from deltaenergy.evaluation.sets import (
    LoadedSet,
    grouped_sets,
    known_items,
    load_sets,
    match_labels,
    no_labels,
    same_class,
)
from deltaenergy.scores.availability import Given, chosen_scores
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.registry import DEFAULT_SCORE
from deltaenergy.scoring import (
    NOTHING_SCORED,
    AnyScorer,
    CrossFitted,
    Encoded,
    Scored,
    bind,
    cross_fit,
    known_images,
    needs_of_images,
    score_all,
)
from deltaenergy.stats.thresholds import check_keep, threshold_at

if TYPE_CHECKING:
    from deltaenergy.detector.calibration import Calibration
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.names import NamesRule
    from deltaenergy.models.on import On

Scores: TypeAlias = str | Score | Scorer | Sequence[str | Score | Scorer]
LOG = logging.getLogger(__name__)

# Scores learn from at most this many images of all feature stores, evenly spaced: they are held in memory.
MOST_LEARNED = 20_000


class NoOpenSet(UserWarning):
    """Without images of none of the classes, detection could not be measured."""


@dataclass(frozen=True)
class EvaluationRules:
    """How sets are measured.

    Attributes:
        keep: the ID share that thresholds keep, and the rate of the FPR metrics.
        resamples: number of bootstrap resamples behind each interval.
        seed: for the bootstrap.
        batch_size: images per step of the image tower.
        by_name: images are labelled by name, so classes of one name count as one.
        correct_only: closed images count for detection only if they are classified correctly.
        pooled: sets of a group are also measured together.
        allow_empty: a set without a readable image is not an error.
    """

    keep: float = 0.95
    resamples: int = 1000
    seed: int = 0
    batch_size: int = 32
    by_name: bool = True
    correct_only: bool = False
    pooled: bool = True
    allow_empty: bool = False


def evaluate(
    by: By,
    scores: Scores | None = None,
    id_sets: Any = None,
    shifted_sets: Any = (),
    open_sets: Any = (),
    *,
    keep: float = 0.95,
    limit: int | None = None,
    seed: int = 0,
    resamples: int = 1000,
    on: str | On = "auto",
) -> Evaluation:
    """Measure a classifier and its scores on sets of images.

    Sets are `{name: images}`, or a list of `(name, images)` or `ImageSet`, or the images of a single set.

    Args:
        by: a detector or its folder, whose threshold is used for its score; or a classifier or class names, whose
            default score uses the threshold from class names.
        scores: one or several names, `Score` or `Scorer` objects, or `all`; those that learn from ID data are
            cross-fitted on the ID sets (see `deltaenergy.scoring.CrossFitted`), unless they are the detector's own. By
            default the detector's, or `delta-energy+words`.
        id_sets: images of the classes; class folders give their labels.
        shifted_sets: images of the same classes shifted in style.
        open_sets: images of none of the classes.
        keep: the ID share that thresholds keep, and the rate of the FPR metrics.
        limit: at most this many images of each set, drawn with `seed`.
        seed: for `limit` and for the bootstrap.
        resamples: number of bootstrap resamples behind each interval.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "evaluate")
    check_keep(keep)
    given = grouped_sets(() if id_sets is None else id_sets, shifted_sets, open_sets, limit, "evaluate")
    images = [image_set.images for image_set, _ in given]
    if source.is_detector:
        if scores is not None:
            chosen_scores(scores, Given())  # a misspelt name fails before the detector is loaded
        detector = source.detector()
        classifier = detector.classifier
        chosen, left_out = chosen_scores(detector.scorer if scores is None else scores, Given.of(images, classifier))
    else:
        detector = None
        asked = source.score(None) if scores is None else scores
        chosen, left_out = chosen_scores(asked, source.given(images).without(labels=no_labels(given)))
        classifier = source.classifier(lambda: class_names(known_items(given)))
        if scores is None and classifier.model.text is not None:
            detector = source.named_detector(None, classifier)
            chosen = list({score.spec: score for score in (*chosen, detector.score)}.values())
    if left_out is not None:
        LOG.info(left_out)
    if detector is not None and detector.calibration is None:
        detector = None
    used = _scorers(classifier, chosen, detector, lenient=left_out is not None)
    # With all scores, a report shows the verdicts of the default score.
    primary = DEFAULT_SCORE if left_out is not None and DEFAULT_SCORE in used else None
    loaded = load_sets(given, limit, seed, hold=False)
    labelled = [replace(image_set, labels=match_labels(image_set, classifier.classes)) for image_set in loaded]
    with stage("Encoding images") as progress:
        found = evaluate_sets(
            classifier,
            list(used.values()),
            labelled,
            EvaluationRules(keep, resamples, seed, source.on.batch_size),
            calibrated=detector,
            primary=primary,
            progress=progress,
            provenance=provenance_of(classifier, seed=seed, limit=limit, resamples=resamples),
        )
    warn_of_unknown_classes(found)
    warn_of_no_open_set(found)
    return found


def evaluate_sets(
    classifier: Classifier,
    scorers: Sequence[Scorer],
    sets: Sequence[LoadedSet],
    rules: EvaluationRules,
    *,
    calibrated: Detector | None = None,
    primary: str | None = None,
    progress: Progress | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Evaluation:
    """`evaluate` for sets whose images are listed and labelled.

    Scorers that have not seen ID images yet are cross-fitted on the ID sets. A `calibrated` detector's threshold is
    used for its score.
    """
    found = _score_sets(classifier, scorers, sets, rules.batch_size, progress)
    if not rules.allow_empty:
        for image_set, (scored, _) in zip(sets, found):
            image_set.check_readable(scored.items, scored.unreadable)
    evaluated = [_evaluated(image_set, *of_set, classifier, rules) for image_set, of_set in zip(sets, found)]
    specs = [scorer.spec for scorer in scorers]
    thresholds = _thresholds(evaluated, specs, rules.keep)
    calibrations: dict[str, Calibration | NamesRule] = {}
    provenance = dict(provenance or {})
    if calibrated is not None and calibrated.score.spec in specs:
        known = calibrated.require_threshold()
        thresholds[calibrated.score.spec], calibrations[calibrated.score.spec] = known.threshold, known
        provenance["guarantee"] = str(known.guarantee)
    measured = Evaluation(
        classes=classifier.classes,
        sets=evaluated,
        scores={
            scorer.spec: {name: getattr(scorer.score, name) for name in ("summary", "formula", "paper")}
            for scorer in scorers
        },
        primary=primary or next(iter(specs), ""),
        keep=rules.keep,
        thresholds=thresholds,
        accuracy=accuracy_rows(evaluated, pooled=rules.pooled),
        detection=detection_rows(
            evaluated, specs, rules.keep, resamples=rules.resamples, seed=rules.seed, pooled=rules.pooled
        ),
        kept=[],
        calibrations=calibrations,
        provenance=provenance,
    )
    return replace(measured, kept=kept_rows(measured))


def warn_of_unknown_classes(evaluation: Evaluation, *, who: str = "The model", stacklevel: int = 2) -> None:
    """Warn if accuracy on labelled ID images is no better than guessing."""
    known = [image_set for image_set in evaluation.sets if image_set.group is Group.ID]
    correct, told = (
        int(sum(getattr(image_set, rows).sum() for image_set in known)) for rows in ("correct", "labelled")
    )
    warn_of_chance(correct, told, len(set(first_of_name(evaluation.classes))), who=who, stacklevel=stacklevel + 1)


def warn_of_no_open_set(evaluation: Evaluation, *, stacklevel: int = 2) -> None:
    """Warn if detection could not be measured because there is no open set."""
    if not evaluation.in_group(Group.OPEN):
        warnings.warn(
            "No open set, so detection was not measured. Add images of none of the classes (`open_sets`).",
            NoOpenSet,
            stacklevel=stacklevel + 1,
        )


def _scorers(
    classifier: Classifier, scores: Sequence[Score | Scorer], detector: Detector | None, *, lenient: bool
) -> dict[str, Scorer]:
    """Scorers by spec; the detector's fitted scorer replaces an equal score.

    With `lenient`, a score that fails to bind is skipped with a note.
    """
    own = {detector.score.spec: detector.scorer} if detector is not None else {}
    bound: dict[str, Scorer] = {}
    with stage("Preparing the scores") as progress:
        for number, score in enumerate(scores, start=1):
            try:
                bound |= {scorer.spec: scorer for scorer in bind(classifier, [own.get(score.spec, score)])}
            except DeltaEnergyError as error:
                if not lenient:
                    raise
                LOG.info("%s was skipped: %s", score.spec, error)
            progress(number, len(scores))
    return bound


def _score_sets(
    classifier: Classifier,
    scorers: Sequence[Scorer],
    sets: Sequence[LoadedSet],
    batch_size: int,
    progress: Progress | None,
) -> list[tuple[Scored, dict[str, AnyScorer]]]:
    """The results of each set and its scorers: those that learn are cross-fitted on all ID sets."""
    learning = not all(scorer.fitted for scorer in scorers)
    learned_from = [learning and part.group is Group.ID and part.own_classes is None for part in sets]
    starts = [0, *accumulate(map(len, sets))]
    encoded = [
        Encoded(
            classifier if image_set.classifier is None else image_set.classifier,
            scorers if image_set.own_classes is None else [],
            image_set.source,
            hold=known,
            batch_size=batch_size,
            progress=part_of(progress, start, starts[-1]),
        )
        for image_set, known, start in zip(sets, learned_from, starts)
    ]
    early = _score_early(classifier, scorers, encoded, learned_from)
    used: Sequence[AnyScorer] = scorers
    if learning:
        stored = sum(len(part) for part in compress(sets, learned_from) if part.store is not None)
        step = max(1, -(-stored // MOST_LEARNED))
        every = [1 if part.store is None else step for part in compress(sets, learned_from)]
        used = cross_fit(scorers, known_images(list(compress(encoded, learned_from)), scorers, every=every))
    found, row = [], 0
    for i, image_set in enumerate(sets):
        # For another class list only accuracy counts; a variant of the classifier shares what was learned.
        of_set = used if image_set.own_classes is None else []
        own = [_bound_to(encoded[i].classifier, scorer) for scorer in of_set]
        if learned_from[i]:
            own = [replace(one, folds=one.folds[row:]) if isinstance(one, CrossFitted) else one for one in own]
        before = early.get(i, NOTHING_SCORED)
        scored = score_all(
            encoded[i],
            [scorer for scorer in own if scorer.spec not in before.values],
            known=learned_from[i],
            keep_items=image_set.store is None,
            expected=len(image_set),
        )
        row += len(scored.predicted) if learned_from[i] else 0
        values = {**before.values, **scored.values}
        scored = replace(
            scored,
            # Images of a whole store are looked up.
            items=scored.items if image_set.store is None else image_set.items,
            unreadable=[*image_set.unreadable, *scored.unreadable],
            values={scorer.spec: values[scorer.spec] for scorer in own},
            by_fold={**before.by_fold, **scored.by_fold},
        )
        found.append((scored, {scorer.spec: scorer for scorer in own}))
    return found


def _score_early(
    classifier: Classifier, scorers: Sequence[Scorer], encoded: Sequence[Encoded], learned_from: Sequence[bool]
) -> dict[int, Scored]:
    """By position of the set, scores that need patches or pixels of images that other scores learn from.

    Images are encoded once, so such scores are computed in that pass.
    """
    of_images = [scorer for scorer in scorers if scorer.fitted and scorer.score.needs_images]
    if not of_images or needs_of_images(classifier, [scorer.score for scorer in scorers if not scorer.fitted]):
        return {}
    return {
        i: score_all(images, of_images, keep_items=False)
        for i, (images, known) in enumerate(zip(encoded, learned_from))
        if known
    }


def _bound_to(classifier: Classifier, scorer: AnyScorer) -> AnyScorer:
    if scorer.classifier is classifier:
        return scorer
    if isinstance(scorer, Scorer):
        return replace(scorer, classifier=classifier)
    return replace(scorer, scorers=tuple(replace(of_fold, classifier=classifier) for of_fold in scorer.scorers))


def _evaluated(
    image_set: LoadedSet,
    scored: Scored,
    scorers: dict[str, AnyScorer],
    classifier: Classifier,
    rules: EvaluationRules,
) -> EvaluatedSet:
    """Join the labels of readable images with their predictions."""
    classes = (classifier if image_set.classifier is None else image_set.classifier).classes
    known = match_labels(image_set, classes) if image_set.labels is None else image_set.labels
    if image_set.store is not None:  # a row for each
        labels = known
    else:
        label_of = dict(zip((item.id for item in image_set.items), known.tolist()))
        labels = np.array([label_of[item.id] for item in scored.items], dtype=np.int64)
    predicted = same_class(classes)[scored.predicted] if rules.by_name else scored.predicted
    correct = (labels >= 0) & (predicted == labels)
    some_count = rules.correct_only and image_set.group is not Group.OPEN
    counted = correct if some_count else np.broadcast_to(np.True_, correct.shape)
    return EvaluatedSet(image_set.name, image_set.group, scored, labels, correct, counted, scorers)


def _thresholds(sets: Sequence[EvaluatedSet], specs: Iterable[str], keep: float) -> dict[str, float | None]:
    """The thresholds of each score, set on all ID sets; empty if there are none."""
    result: dict[str, float | None] = {}
    for spec in specs:
        id_sets = [
            image_set.scored for image_set in sets if image_set.group is Group.ID and spec in image_set.scored.values
        ]
        for scored in id_sets:
            check_numbers(scored, spec)
        values = [scored.values[spec] for scored in id_sets]
        if sum(map(len, values)):
            result[spec] = threshold_at(np.sort(values[0] if len(values) == 1 else np.concatenate(values)), keep)
    return result
