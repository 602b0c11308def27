"""Choose a score and its temperature from in-distribution data alone.

The classes are dealt at random into folds. With one fold's classes taken off the class list, its images are near
unknowns whose truth is known, and every candidate score is judged by how well it tells them from the images of the
others. Where it is asked for, far unknowns are made from the images themselves (`synthetic.py`). A candidate's rank is
then the mean of its AUROC against the one kind and against the other; of equal means, the one whose lower AUROC is
higher comes first.

Images are encoded once and compared with all classes once; a fold only removes columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.core.labels import class_indices, first_of_name
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.class_check import check_predictions
from deltaenergy.errors import InputError
from deltaenergy.evaluation.choosing.choice import Choice, OnlyStandIns, rank
from deltaenergy.evaluation.leave_out import Floats, Images, Ints, Judged, deal, judge, resample_classes
from deltaenergy.evaluation.choosing.synthetic import synthetic_unknowns
from deltaenergy.models.base import require_towers
from deltaenergy.models.features import is_feature_array
from deltaenergy.scores.availability import Given, Lack, check_runnable, given_by, runnable_scores
from deltaenergy.scores.base import Score, ScoreInputs
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import OF_IMAGES, bind_all, score_images
from deltaenergy.source import load_images

# Settings that are candidates beside every score of the registry that can run on features. Each τ stands with the c
# that it is best known with; `deltaenergy methods` says what the names mean.
CANDIDATES = (
    "delta-energy",
    "delta-energy(tau=0.02)",
    "delta-energy(tau=0.05,c=1)",
    "delta-energy(tau=0.1,c=1)",
    "delta-energy(tau=1,c=1)",
    "delta-energy(tau=1)",
    "delta-energy:robust",
    "multi-delta-energy",
    "mcm",
    "msp",
    "max-logit",
    "energy",
    "entropy",
)
# What a candidate may need; whatever else there is to need, choose does not give.
TO_CHOOSE_WITH = frozenset({Need.FEATURES, Need.TEXTS, Need.ID_DATA})
FEATURES_ALONE = Lack("choose compares scores of features alone", "choose compares scores of features alone.")


@dataclass(frozen=True)
class Labelled:
    """Unit features on the model's device, the position of each image's class, the images, and those not read."""

    features: torch.Tensor
    truth: Ints
    items: list[ImageItem]
    unreadable: list[Unreadable]


@dataclass(frozen=True)
class FarUnknowns:
    """Unit features of synthetic far unknowns, and the position of the class of the image that each is made from."""

    features: torch.Tensor
    truth: Ints


def choose(
    classifier: Classifier,
    images: Any,
    scores: Iterable[str | Score] | None = None,
    *,
    labels: Sequence[str] | None = None,
    far: bool = False,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
    confidence: float = 0.95,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Choice:
    """Rank scores by how well they detect classes left off the class list and, with `far`, pictures of nothing.

    Args:
        classifier: knows all classes.
        images: in-distribution images whose class is known (a folder with one folder per class, a table with labels),
            or unit features with `labels`.
        scores: candidates; those that look at patches or pixels cannot take part. By default `candidate_scores`.
        labels: class name of each row of features.
        far: judge on synthetic far unknowns too, where the images have pixels.
        folds: into how many parts the classes are dealt; each is left out once. At most one per class.
        seed: of the deal, the resamples and the far unknowns.
        resamples: how many the intervals come from; classes are resampled with all their images.
        confidence: of the intervals.
        batch_size: images per step of the image tower.
        progress: told how many images are encoded.
    """
    candidates = _candidates(classifier, scores)
    known = labelled_features(classifier, images, labels, batch_size, progress)
    made = far_unknowns(classifier, known, seed, batch_size, progress) if far else None
    return choose_from_features(
        classifier,
        known.features,
        known.truth,
        candidates,
        far=made,
        far_wanted=far,
        folds=folds,
        seed=seed,
        resamples=resamples,
        confidence=confidence,
        unreadable=known.unreadable,
    )


def choose_from_features(
    classifier: Classifier,
    features: torch.Tensor,
    truth: Ints,
    scores: Iterable[str | Score] | None = None,
    *,
    far: FarUnknowns | None = None,
    far_wanted: bool = False,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
    confidence: float = 0.95,
    unreadable: Sequence[Unreadable] = (),
    progress: Progress | None = None,
) -> Choice:
    """`choose` from unit features (N, D) and the position of each image's class in the class list.

    `progress` is told how many folds are judged.
    """
    candidates = _candidates(classifier, scores)
    # A name that stands twice is one class: its columns come and go together.
    name_of = np.array(first_of_name(classifier.classes))
    seen, member = np.unique(name_of[truth], return_inverse=True)
    parts = deal(len(seen), folds, seed)
    resampled = resample_classes(parts, resamples, seed)
    made = None if far is None else Images(_inputs(classifier, far.features), np.searchsorted(seen, name_of[far.truth]))
    whole = Images(_inputs(classifier, features), member)
    check_predictions(classifier.classes, truth, whole.inputs.similarities.argmax(dim=1).cpu().numpy(), stacklevel=3)
    judged = []
    for number, left_out in enumerate(parts, start=1):
        removed = np.isin(name_of, seen[left_out])
        judged.append(_judge_fold(classifier, whole, made, removed, np.isin(member, left_out), candidates, resampled))
        if progress is not None:
            progress(number, len(parts))
    kinds = [Judged.mean(kind) for kind in zip(*judged)]
    choice = Choice(
        rank([score.spec for score in candidates], kinds[0], kinds[1] if made else None, confidence),
        classes=len(seen),
        images=len(truth),
        folds=len(parts),
        seed=seed,
        unreadable=list(unreadable),
        far_images=0 if far is None else len(far.truth),
        far_wanted=far_wanted,
    )
    warnings.warn(choice.caveat, OnlyStandIns, stacklevel=2)
    return choice


def _inputs(classifier: Classifier, features: torch.Tensor) -> ScoreInputs:
    with torch.inference_mode():
        return ScoreInputs(classifier(Inputs(features)).similarities, features)


def _judge_fold(
    classifier: Classifier,
    whole: Images,
    far: Images | None,
    removed: np.ndarray[Any, np.dtype[np.bool_]],
    unknown: np.ndarray[Any, np.dtype[np.bool_]],
    candidates: Sequence[Score],
    resampled: Floats,
) -> list[Judged]:
    """Near, then far if there are such, with the columns `removed`, whose images are `unknown`."""
    columns = np.flatnonzero(~removed).tolist()

    def part(images: Images, rows: Ints) -> Images:
        taken = images.inputs.take(rows.tolist())
        return Images(ScoreInputs(taken.similarities[:, columns], taken.features), images.member[rows])

    known, near = part(whole, np.flatnonzero(~unknown)), part(whole, np.flatnonzero(unknown))
    others = [near] if far is None else [near, part(far, np.arange(len(far.member)))]
    with torch.inference_mode():
        # Bound and fitted anew: nothing learned in another fold.
        return judge(bind_all(ClassSubset(classifier, columns), candidates), known, others, resampled)


def labelled_features(
    classifier: Classifier,
    images: Any,
    labels: Sequence[str] | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Labelled:
    """Encode images whose class is known; every label is checked before this long work."""
    if is_feature_array(images):
        if labels is None:
            raise InputError("choose needs the class of every row of features: give labels.")
        if len(labels) != len(images):
            raise InputError(f"labels has {len(labels)} entries for {len(images)} rows of features.")
        items = [ImageItem(f"row {i}", b"", label) for i, label in enumerate(labels)]
    elif labels is not None:
        raise InputError("labels belong to features; images bring their own (a folder per class, a table).")
    else:
        images = items = load_images(images)
    _check_features_suffice(classifier)
    truth = class_indices(items, classifier.classes, "In-distribution images")
    position = dict(zip((item.id for item in items), truth))
    found = score_images(classifier, [], images, keep_features=True, batch_size=batch_size, progress=progress)
    assert found.features is not None
    features = torch.from_numpy(found.features).to(classifier.model.device)
    rows = np.array([position[item.id] for item in found.items], dtype=np.int64)
    pictures = [] if is_feature_array(images) else list(found.items)
    return Labelled(features, rows, pictures, found.unreadable)


def far_unknowns(
    classifier: Classifier,
    known: Labelled,
    seed: int = 0,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> FarUnknowns | None:
    """Far unknowns made from the images and encoded once; None if the images have no pixels."""
    if not known.items or Need.PIXELS in given_by([known.items], classifier).lacks:
        return None
    model = require_towers(classifier.model, "choose")
    made, origin = synthetic_unknowns(known.items, model.preprocessing, seed)
    place = dict(zip((item.id for item in made), known.truth[origin]))
    encoded = model.encode(made, batch_size=batch_size, progress=progress)
    truth = np.array([place[item.id] for item in encoded.items], dtype=np.int64)
    return FarUnknowns(torch.from_numpy(encoded.features).to(model.device), truth) if len(truth) else None


def given_to_choose(images: Iterable[Any] = (), classifier: Classifier | None = None) -> Given:
    """What choose has for scores: features, whatever the images are."""
    others = {need: FEATURES_ALONE for need in Need if need not in TO_CHOOSE_WITH}
    given = given_by(images, classifier)
    return Given({**given.lacks, **others}, given.method)


def candidate_scores(given: Given) -> tuple[list[Score], str | None]:
    """`CANDIDATES` and every score and named setting that is cheap and can run; and one line on the others."""
    usable, left_out = runnable_scores(given)
    unique = {score.spec: score for score in (*map(make_score, CANDIDATES), *usable)}
    return list(unique.values()), left_out


def _candidates(classifier: Classifier, scores: Iterable[str | Score] | None) -> list[Score]:
    given = given_to_choose(classifier=classifier)
    if scores is None:
        return candidate_scores(given)[0]
    named = [make_score(score) for score in scores]
    if not named:
        raise InputError("choose needs at least one candidate score.")
    check_runnable(named, given)
    return named


def _check_features_suffice(classifier: Classifier) -> None:
    if classifier.needs_to_predict & OF_IMAGES:
        needs = ", ".join(sorted(need.value for need in classifier.needs_to_predict & OF_IMAGES))
        raise InputError(
            f"A classifier by {classifier.method.name} needs {needs}: choose compares scores of features alone."
        )
