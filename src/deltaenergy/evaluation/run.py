"""`evaluate`: encode every set once, score it with all scores, and measure."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from deltaenergy.classifiers.base import Classifier
from deltaenergy.core.labels import class_names, first_of_name
from deltaenergy.core.progress import Progress, stage
from deltaenergy.detector.calibration import check_numbers
from deltaenergy.detector.class_check import warn_of_chance
from deltaenergy.detector.opening import By, DetectorSource
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.evaluation.provenance import provenance_of
from deltaenergy.evaluation.results import EvaluatedSet, Evaluation, Group, accuracy_rows, detection_rows, kept_rows
from deltaenergy.evaluation.sets import (
    LoadedSet,
    grouped_sets,
    known_items,
    list_sets,
    load_sets,
    match_labels,
    no_labels,
    same_class,
)
from deltaenergy.evaluation.stored_items import StoredItems
from deltaenergy.scores.availability import Given, chosen_scores, given_by
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.registry import DEFAULT_SCORE
from deltaenergy.scoring import AnyScorer, Scored, bind_all, score_images
from deltaenergy.stats.thresholds import check_keep, threshold_at

if TYPE_CHECKING:
    from deltaenergy.detector.detector import Detector
    from deltaenergy.models.on import On

Scores: TypeAlias = str | Score | Scorer | Sequence[str | Score | Scorer]
LOG = logging.getLogger(__name__)

# Scores that learn from images do so from at most so many of a feature store, evenly spaced: these are held in memory.
MOST_LEARNED = 20_000


class NoOpenSet(UserWarning):
    """There are no images of none of the classes, so detection could not be measured."""


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

    Sets are given as `{name: images}`, or as a list of `(name, images)` or `ImageSet`; one alone also as its images.

    Args:
        by: a classifier, class names, or a detector or its folder, whose threshold is then used for its score.
        scores: one or several names, `Score` or `Scorer` objects, or `all`; those that learn from ID data are
            cross-fitted on the ID sets (see `deltaenergy.scoring.CrossFitted`), unless they are the detector's own. By
            default the detector's, or `delta-energy+words`.
        id_sets: images of the classes; class folders give their labels.
        shifted_sets: images of the same classes in other styles.
        open_sets: images of none of the classes.
        keep: the ID share that thresholds keep, and the rate of the FPR metrics.
        limit: at most this many images of each set, drawn with `seed`.
        seed: for `limit` and for the bootstrap.
        resamples: number of bootstrap resamples behind each interval.
        on: where a model is loaded, and images per batch.
    """
    source = DetectorSource.of(by, on, "evaluate")
    check_keep(keep)
    given = list_sets(grouped_sets(() if id_sets is None else id_sets, shifted_sets, open_sets, limit, "evaluate"))
    images = [one.images for one, _ in given]
    if source.is_detector:
        if scores is not None:
            chosen_scores(scores, Given())  # a misspelt name is told before the detector is loaded
        detector = source.detector()
        classifier = detector.classifier
        chosen, left_out = chosen_scores(detector.scorer if scores is None else scores, given_by(images, classifier))
    else:
        detector = None
        asked = source.score(None) if scores is None else scores
        chosen, left_out = chosen_scores(asked, source.given(images).without(labels=no_labels(given)))
        classifier = source.classifier(lambda: class_names(known_items(given)))
    if left_out is not None:
        LOG.info(left_out)
    if detector is not None and detector.calibration is None:
        detector = None
    used = _scorers(classifier, chosen, detector, lenient=left_out is not None)
    # Of all scores, a report shows the verdicts of the default one.
    primary = DEFAULT_SCORE if left_out is not None and DEFAULT_SCORE in used else None
    # Feature stores are streamed, unless scores are still to learn from several ID sets as one.
    alone = all(scorer.fitted for scorer in used.values()) or sum(group is Group.ID for _, group in given) == 1
    loaded = load_sets(given, limit, seed, classifier.model if alone else None)
    labelled = [replace(one, labels=match_labels(one, classifier.classes)) for one in loaded]
    with stage("Encoding images") as progress:
        found = evaluate_sets(
            classifier,
            list(used.values()),
            labelled,
            keep=keep,
            calibrated=detector,
            primary=primary,
            resamples=resamples,
            seed=seed,
            batch_size=source.on.batch_size,
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
    *,
    by_name: bool = True,
    correct_only: bool = False,
    keep: float = 0.95,
    calibrated: Detector | None = None,
    primary: str | None = None,
    pooled: bool = True,
    resamples: int = 1000,
    seed: int = 0,
    batch_size: int = 32,
    progress: Progress | None = None,
    provenance: Mapping[str, Any] | None = None,
    allow_empty: bool = False,
) -> Evaluation:
    """`evaluate` for sets whose images are listed and labelled.

    Classes of one name count as one if images are sorted `by_name`, which cannot tell them apart. With `correct_only`,
    closed images count for detection only if they are classified correctly. Scorers that have not seen ID images yet
    are cross-fitted on the ID sets. A `calibrated` detector's threshold is used for its score. A set of which no image
    can be read is an error, unless `allow_empty`. With `pooled`, sets of a group are also measured together.
    """
    found = _score_sets(classifier, scorers, sets, batch_size, progress)
    if not allow_empty:
        _check_readable(sets, found)
    evaluated = [_evaluated(one, scored, classifier, by_name, correct_only) for one, scored in zip(sets, found)]
    specs = [scorer.spec for scorer in scorers]
    thresholds, calibrations = _thresholds(evaluated, specs, keep), {}
    provenance = dict(provenance or {})
    if calibrated is not None and calibrated.score.spec in specs:
        known = calibrated.require_calibration()
        thresholds[calibrated.score.spec], calibrations[calibrated.score.spec] = known.threshold, known
        provenance["guarantee"] = str(known.guarantee)
    measured = Evaluation(
        classes=classifier.classes,
        sets=evaluated,
        scores={scorer.spec: _describe(scorer.score) for scorer in scorers},
        primary=primary or next(iter(specs), ""),
        keep=keep,
        thresholds=thresholds,
        accuracy=accuracy_rows(evaluated, pooled=pooled),
        detection=detection_rows(evaluated, specs, keep, resamples=resamples, seed=seed, pooled=pooled),
        kept=[],
        calibrations=calibrations,
        provenance=provenance,
    )
    return replace(measured, kept=kept_rows(measured))


def warn_of_unknown_classes(evaluation: Evaluation, *, who: str = "The model", stacklevel: int = 2) -> None:
    """Say so if the labelled ID images are named no better than by guessing."""
    known = [one for one in evaluation.sets if one.group is Group.ID]
    correct, told = (int(sum(getattr(one, rows).sum() for one in known)) for rows in ("correct", "labelled"))
    warn_of_chance(correct, told, len(set(first_of_name(evaluation.classes))), who=who, stacklevel=stacklevel + 1)


def warn_of_no_open_set(evaluation: Evaluation, *, stacklevel: int = 2) -> None:
    """Say so if detection could not be measured because there are no images of none of the classes."""
    if not evaluation.in_group(Group.OPEN):
        warnings.warn(
            "No open set, so detection was not measured. Add images of none of the classes (`open_sets`).",
            NoOpenSet,
            stacklevel=stacklevel + 1,
        )


def _scorers(
    classifier: Classifier, scores: Sequence[Score | Scorer], detector: Detector | None, *, lenient: bool
) -> dict[str, Scorer]:
    """Scorers by spec; the detector's own, with what it was fitted to, replaces an equal score.

    With `lenient`, one that fails to bind is left out, with a note.
    """
    own = {detector.score.spec: detector.scorer} if detector is not None else {}
    bound: dict[str, Scorer] = {}
    with stage("Preparing the scores") as progress:
        for number, score in enumerate(scores, start=1):
            try:
                bound |= {one.spec: one for one in bind_all(classifier, [own.get(score.spec, score)])}
            except DeltaEnergyError as error:
                if not lenient:
                    raise
                LOG.info("%s is left out: %s", score.spec, error)
            progress(number, len(scores))
    return bound


def _score_sets(
    classifier: Classifier,
    scorers: Sequence[Scorer],
    sets: Sequence[LoadedSet],
    batch_size: int,
    progress: Progress | None,
) -> list[Scored]:
    """What is found for each set. All ID sets are scored as one if scores are cross-fitted on them."""
    total, before = sum(map(len, sets)), 0

    def run(who: Classifier, used: Sequence[AnyScorer], images: Any, **options: Any) -> Scored:
        def move(done: int, _: int | None) -> None:
            if progress is not None:
                progress(before + done, total)

        return score_images(who, used, images, batch_size=batch_size, progress=move, **options)

    found: dict[int, Scored] = {}
    known = [i for i, one in enumerate(sets) if one.group is Group.ID and one.own_classes is None]
    used: Sequence[AnyScorer] = scorers
    if not all(scorer.fitted for scorer in scorers):
        id_sets = [sets[i] for i in known]
        if len(id_sets) == 1:
            (one,) = id_sets
            every = -(-len(one) // MOST_LEARNED) if isinstance(one.items, StoredItems) else 1
            keep = one.features is None
            together = run(
                classifier,
                scorers,
                one.to_score,
                fit=True,
                labels=_labels_of_rows(id_sets),
                learn_every=every or 1,
                keep_items=keep,
                expected=len(one),
            )
            found = {known[0]: together}
        else:
            together = run(classifier, scorers, _together(id_sets), fit=True, labels=_labels_of_rows(id_sets))
            found = dict(zip(known, _split(id_sets, together)))
        if not together.items:
            _check_readable(id_sets, [_named(one, found[i]) for i, one in zip(known, id_sets)])
        before = sum(map(len, id_sets))
        used = [together.scorers[scorer.spec] for scorer in scorers]
    for i, one in enumerate(sets):
        if i not in found:
            who = classifier if one.classifier is None else one.classifier
            # For another class list only accuracy counts; a variant of the classifier shares what was learned.
            mine = [] if one.own_classes is not None else [_bound_to(who, scorer) for scorer in used]
            found[i] = run(who, mine, one.to_score, keep_items=one.features is None, expected=len(one))
            before += len(one)
    return [_named(one, found[i]) for i, one in enumerate(sets)]


def _bound_to(classifier: Classifier, scorer: AnyScorer) -> AnyScorer:
    if isinstance(scorer, Scorer):
        return replace(scorer, classifier=classifier)
    return replace(scorer, scorers=tuple(replace(one, classifier=classifier) for one in scorer.scorers))


def _labels_of_rows(sets: Sequence[LoadedSet]) -> list[str | None] | None:
    """The label of each row of features in all sets; None if images are scored, or a store, which have their own."""
    if any(one.features is None or isinstance(one.items, StoredItems) for one in sets):
        return None
    return [item.label for one in sets for item in one.items]


def _together(sets: Sequence[LoadedSet]) -> Any:
    """All images, or all features, of several sets."""
    if all(one.features is None for one in sets):
        return [item for one in sets for item in one.items]
    if any(one.features is None for one in sets):
        raise InputError("Give images or features for the ID sets, not images for one and features for another.")
    return np.concatenate([np.asarray(one.features) for one in sets])


def _split(sets: Sequence[LoadedSet], scored: Scored) -> list[Scored]:
    """Undo `_together`. Unreadable images have no row, so that rows are told by their image's id."""
    results = []
    start = 0
    for one in sets:
        mine = {item.id for item in one.items}
        if one.features is None:
            rows = np.array([i for i, item in enumerate(scored.items) if item.id in mine], dtype=np.int64)
        else:
            rows = np.arange(start, start + len(one))
            start += len(one)
        unreadable = [image for image in scored.unreadable if image.id in mine]
        results.append(replace(scored.take(rows), unreadable=unreadable))
    return results


def _named(one: LoadedSet, scored: Scored) -> Scored:
    """Rows of features get the names of their images."""
    if one.features is not None:
        scored = replace(scored, items=one.items)
    return replace(scored, unreadable=[*one.unreadable, *scored.unreadable])


def _check_readable(sets: Sequence[LoadedSet], found: Sequence[Scored]) -> None:
    for one, scored in zip(sets, found):
        one.check_readable(scored.items, scored.unreadable)


def _evaluated(
    one: LoadedSet, scored: Scored, classifier: Classifier, by_name: bool, correct_only: bool
) -> EvaluatedSet:
    """Join the labels of the images that were read with what was predicted for them."""
    classes = (classifier if one.classifier is None else one.classifier).classes
    known = match_labels(one, classes) if one.labels is None else one.labels
    if one.features is not None:  # a row for each
        labels = known
    else:
        label_of = dict(zip((item.id for item in one.items), known.tolist()))
        labels = np.array([label_of[item.id] for item in scored.items], dtype=np.int64)
    predicted = same_class(classes)[scored.predicted] if by_name else scored.predicted
    correct = (labels >= 0) & (predicted == labels)
    counted = correct if correct_only and one.group is not Group.OPEN else np.broadcast_to(np.True_, correct.shape)
    return EvaluatedSet(one.name, one.group, scored, labels, correct, counted)


def _thresholds(sets: Sequence[EvaluatedSet], specs: Iterable[str], keep: float) -> dict[str, float | None]:
    """Of each score, set on all ID sets; none if there is no such set."""
    result: dict[str, float | None] = {}
    for spec in specs:
        id_sets = [one.scored for one in sets if one.group is Group.ID and spec in one.scored.values]
        for scored in id_sets:
            check_numbers(scored, spec)
        values = [scored.values[spec] for scored in id_sets]
        if sum(map(len, values)):
            result[spec] = threshold_at(np.sort(values[0] if len(values) == 1 else np.concatenate(values)), keep)
    return result


def _describe(score: Score) -> dict[str, str]:
    return {"summary": score.summary, "formula": score.formula, "paper": score.paper}
