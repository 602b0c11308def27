"""`evaluate`: encode every set once, score it with all scores, and measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.classifiers.base import Classifier
from deltaenergy.detector import threshold_at
from deltaenergy.errors import InputError, NotFittedError, did_you_mean
from deltaenergy.evaluation.provenance import provenance_of
from deltaenergy.evaluation.results import (
    AccuracyRow,
    DetectionRow,
    EvaluatedSet,
    Evaluation,
    Group,
    KeptRow,
    members,
    pools,
    values_of,
)
from deltaenergy.evaluation.sets import ImageSet, LoadedSet, check_sets, load_sets, match_labels, same_class
from deltaenergy.metrics import RankedScores, proportion_estimate
from deltaenergy.progress import Progress
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import Scored, score_images

if TYPE_CHECKING:
    from deltaenergy.detector import Detector

Sets = Iterable[ImageSet | tuple[Any, ...]]


def evaluate(
    classifier: Classifier,
    scores: Sequence[str | Score],
    id_sets: Sets,
    shifted_sets: Sets = (),
    open_sets: Sets = (),
    *,
    keep: float = 0.95,
    detector: Detector | None = None,
    primary: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    resamples: int = 1000,
    batch_size: int = 32,
    progress: Progress | None = None,
    command: str | None = None,
) -> Evaluation:
    """Measure a classifier and its scores on sets of images, each given as `(name, images)` or an `ImageSet`.

    Args:
        classifier: zero-shot or tuned.
        scores: names or `Score` objects; those that are fitted on ID data are fitted on the ID sets, which favours
            them a little, unless they are the `detector`'s own.
        id_sets: images of the classes; class folders give their labels.
        shifted_sets: images of the same classes in other styles.
        open_sets: images of none of the classes.
        keep: the ID share that thresholds keep, and the rate of the FPR metrics.
        detector: one that is calibrated already: its threshold is used for its score, in place of one that is set
            on the ID sets.
        primary: the score whose verdicts a report shows; the first if not given.
        limit: at most so many images of each set, drawn with `seed`.
        seed: for `limit` and for the bootstrap.
        resamples: number of bootstrap resamples behind each interval.
        batch_size: images per step of the image tower.
        progress: called with (images done, images in all sets).
        command: what the user typed, for the report.
    """
    if detector is not None and detector.threshold is None:
        raise NotFittedError("The detector has no threshold yet: call calibrate(in_distribution_images) first.")
    used = _unique_scores([make_score(score) for score in scores], detector)
    if primary is not None and primary not in used:
        raise InputError(f"primary {primary!r} is not among the scores.{did_you_mean(primary, used)}")
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit!r}.")
    if not 0 < keep <= 1:
        raise InputError(f"keep must be above 0 and at most 1, got {keep!r}.")
    rng = np.random.default_rng(seed)
    given = ((id_sets, Group.ID), (shifted_sets, Group.SHIFTED), (open_sets, Group.OPEN))
    loaded = [one for sets, group in given for one in load_sets(sets, group, limit, rng)]
    if not any(one.group is Group.ID for one in loaded):
        raise InputError("evaluate needs at least one ID set: images of the classes.")
    loaded = check_sets(loaded)
    labels = [match_labels(one, one.items, classifier.classes) for one in loaded]
    calibrated = None if detector is None else detector.score
    scored = _score_sets(classifier, list(used.values()), calibrated, loaded, batch_size, progress)
    sets = [_evaluated(one, found, known, classifier.classes) for one, found, known in zip(loaded, scored, labels)]
    thresholds = _thresholds(sets, used, keep, detector)
    return Evaluation(
        classes=classifier.classes,
        sets=sets,
        scores={spec: _describe(score) for spec, score in used.items()},
        primary=primary or next(iter(used)),
        keep=keep,
        thresholds=thresholds,
        given_thresholds=frozenset({detector.score.spec} & set(used) if detector is not None else ()),
        accuracy=_accuracy(sets),
        detection=_detection(sets, list(used), keep, resamples, seed),
        kept=_kept(sets, thresholds),
        provenance=provenance_of(classifier, seed=seed, limit=limit, resamples=resamples, command=command),
    )


def _unique_scores(scores: list[Score], detector: Detector | None) -> dict[str, Score]:
    """Scores by spec; the detector's own, with what it was fitted to, takes the place of an equal one."""
    if not scores:
        raise InputError("evaluate needs at least one score.")
    used = {score.spec: score for score in scores}
    if detector is not None and detector.score.spec in used:
        used[detector.score.spec] = detector.score
    return used


def _score_sets(
    classifier: Classifier,
    scores: list[Score],
    calibrated: Score | None,
    sets: list[LoadedSet],
    batch_size: int,
    progress: Progress | None,
) -> list[Scored]:
    """Score all ID sets as one, so that scores are fitted on all of them, then every other set."""
    # The score of a calibrated detector must not be fitted anew; one that needs no images works on the features.
    fitted = [score for score in scores if calibrated is score and not score.needs_images]
    others = [score for score in scores if score not in fitted]
    for score in scores:
        score.prepare(classifier)
    total, before = sum(map(len, sets)), 0

    def run(images: Any, *, fit: bool) -> Scored:
        def move(done: int, _: int | None) -> None:
            if progress is not None:
                progress(before + done, total)

        found = score_images(classifier, others, images, fit=fit, batch_size=batch_size, progress=move)
        if fitted:
            found.values.update(score_images(classifier, fitted, found.features).values)
        return found

    id_sets = [one for one in sets if one.group is Group.ID]
    results = _split(id_sets, run(_together(id_sets), fit=True))
    before = sum(map(len, id_sets))
    for one in sets[len(id_sets) :]:
        results.append(run(one.to_score, fit=False))
        before += len(one)
    for one, scored in zip(sets, results):
        if not scored.items:
            first = scored.unreadable[0]
            raise InputError(
                f"No image of the {one.group.value} set {one.name!r} could be read; the first is {first.id}: "
                f"{first.reason}"
            )
    return results


def _together(sets: list[LoadedSet]) -> Any:
    """All images, or all features, of several sets."""
    if all(one.features is None for one in sets):
        return [item for one in sets for item in one.items]
    if any(one.features is None for one in sets):
        raise InputError("Give images or features for the ID sets, not images for one and features for another.")
    return np.concatenate([np.asarray(one.features) for one in sets])


def _split(sets: list[LoadedSet], scored: Scored) -> list[Scored]:
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
        results.append(
            Scored(
                items=[scored.items[row] for row in rows],
                unreadable=[image for image in scored.unreadable if image.id in mine],
                features=scored.features[rows],
                predicted=scored.predicted[rows],
                confidence=scored.confidence[rows],
                values={spec: values[rows] for spec, values in scored.values.items()},
            )
        )
    return results


def _evaluated(one: LoadedSet, scored: Scored, labels: Any, classes: Sequence[str]) -> EvaluatedSet:
    """Join the labels of the images that were read with what was predicted for them."""
    lost = {image.id for image in scored.unreadable}
    read = [item.id not in lost for item in one.items]
    scored = replace(scored, items=[item for item, was_read in zip(one.items, read) if was_read])
    labels = labels[read]
    correct = (labels >= 0) & (same_class(classes)[scored.predicted] == labels)
    return EvaluatedSet(one.name, one.group, scored, labels, correct)


def _thresholds(
    sets: list[EvaluatedSet], scores: Iterable[str], keep: float, detector: Detector | None
) -> dict[str, float]:
    id_sets = [one for one in sets if one.group is Group.ID]
    result = {}
    for spec in scores:
        if detector is not None and detector.threshold is not None and detector.score.spec == spec:
            result[spec] = detector.threshold
        else:
            result[spec] = threshold_at(np.sort(np.concatenate([one.scored.values[spec] for one in id_sets])), keep)
    return result


def _accuracy(sets: list[EvaluatedSet]) -> list[AccuracyRow]:
    rows = []
    for group in (Group.ID, Group.SHIFTED):
        names = [one.name for one in sets if one.group is group]
        for name in dict.fromkeys([*names, *pools(sets, group)]):
            chosen = members(sets, name)
            labelled = sum(int(one.labelled.sum()) for one in chosen)
            if labelled:
                right = sum(int(one.correct.sum()) for one in chosen)
                rows.append(AccuracyRow(name, group, labelled, proportion_estimate(right, labelled)))
    return rows


def _detection(
    sets: list[EvaluatedSet], scores: Sequence[str], keep: float, resamples: int, seed: int
) -> list[DetectionRow]:
    rows = []
    for group in (Group.ID, Group.SHIFTED):
        for closed in pools(sets, group):
            for open_name in pools(sets, Group.OPEN):
                for spec in scores:
                    try:
                        ranked = RankedScores(values_of(sets, closed, spec), values_of(sets, open_name, spec))
                    except InputError as error:
                        raise InputError(f"Score {spec!r}, {closed!r} against {open_name!r}: {error}") from error
                    metrics = ranked.estimates(keep, resamples=resamples, seed=seed)
                    rows.append(DetectionRow(spec, closed, group, open_name, ranked.n_id, ranked.n_ood, metrics))
    return rows


def _kept(sets: list[EvaluatedSet], thresholds: Mapping[str, float]) -> list[KeptRow]:
    rows = []
    for spec, threshold in thresholds.items():
        for one in sets:
            kept = int((one.scored.values[spec] >= threshold).sum())
            rows.append(KeptRow(spec, one.name, one.group, len(one), proportion_estimate(kept, len(one))))
    return rows


def _describe(score: Score) -> dict[str, str]:
    return {"summary": score.summary, "formula": score.formula, "paper": score.paper}
