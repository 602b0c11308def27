"""Choose a score and its temperature from in-distribution data alone, by leaving classes out in turn.

The classes are dealt at random into folds. With one fold's classes taken off the class list, its images are unknowns
whose truth is known, and every candidate score is judged by how well it tells them from the images of the others.
Images are encoded once and compared with all classes once; a fold only removes columns.

What this cannot know: left-out classes resemble the kept ones (near-OOD). Pictures of a wholly other kind (far-OOD)
are not among them, and the score that is best for near unknowns can be poor for far ones (docs/scores.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.data.inputs import load_images
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError
from deltaenergy.labels import class_indices, first_of_name
from deltaenergy.metrics import Estimate, RankedScores
from deltaenergy.models.features import is_feature_array
from deltaenergy.progress import Progress
from deltaenergy.scores.base import Score, ScoreInputs
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import bind_all, score_images, score_inputs

# Each τ stands with the c that it is best known with; `deltaenergy methods` says what the names mean.
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
CAVEAT = (
    "Left-out classes resemble the kept ones, so this ranks scores for near unknowns only. It cannot tell how they do "
    "on pictures of a wholly other kind (far-OOD): check the choice with `deltaenergy evaluate` if you have some."
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidate:
    """How one score told left-out from kept classes, averaged over the folds.

    Attributes:
        spec: what `make_score` and `--score` take.
        auroc: with the interval over resampled classes.
        behind: how far its AUROC is below the best candidate's, on the same resamples; the best is 0 behind itself.
        fpr95: share of left-out images kept when 95 % of the others are.
    """

    spec: str
    auroc: Estimate
    behind: Estimate
    fpr95: float


@dataclass(frozen=True)
class Choice:
    """Candidates from best to worst, and what they were judged on."""

    ranking: list[Candidate]
    classes: int
    images: int
    folds: int
    seed: int
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def best(self) -> str:
        """The spec of the best candidate."""
        return self.ranking[0].spec

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "best": self.best,
            "ranking": [
                {
                    "score": candidate.spec,
                    "auroc": candidate.auroc._asdict(),
                    "behind": candidate.behind._asdict(),
                    "fpr95": candidate.fpr95,
                }
                for candidate in self.ranking
            ],
            "classes": self.classes,
            "images": self.images,
            "folds": self.folds,
            "seed": self.seed,
            "unreadable": [{"path": image.id, "reason": image.reason} for image in self.unreadable],
            "caveat": CAVEAT,
        }


def choose(
    classifier: Classifier,
    images: Any,
    scores: Iterable[str | Score] = CANDIDATES,
    *,
    labels: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
    confidence: float = 0.95,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Choice:
    """Rank scores by how well they detect classes left off the class list.

    Args:
        classifier: knows all classes.
        images: in-distribution images whose class is known (a folder with one folder per class, a table with labels),
            or unit features with `labels`.
        scores: candidates; those that look at patches or pixels cannot take part.
        labels: class name of each row of features.
        folds: into how many parts the classes are dealt; each is left out once. At most one per class.
        seed: of the deal and of the resamples.
        resamples: how many the intervals come from; classes are resampled with all their images.
        confidence: of the intervals.
        batch_size: images per step of the image tower.
        progress: told how many images are encoded.
    """
    features, truth, unreadable = labelled_features(classifier, images, labels, batch_size, progress)
    return choose_from_features(
        classifier,
        features,
        truth,
        scores,
        folds=folds,
        seed=seed,
        resamples=resamples,
        confidence=confidence,
        unreadable=unreadable,
    )


def choose_from_features(
    classifier: Classifier,
    features: torch.Tensor,
    truth: Ints,
    scores: Iterable[str | Score] = CANDIDATES,
    *,
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
    candidates = [_feature_space(make_score(score)) for score in scores]
    if not candidates:
        raise InputError("choose needs at least one candidate score.")
    # A name that stands twice is one class: its columns come and go together.
    name_of = np.array(first_of_name(classifier.classes))
    seen, member = np.unique(name_of[truth], return_inverse=True)
    deal = _deal(len(seen), folds, seed)
    resampled = _resample_classes(deal, resamples, seed)
    with torch.inference_mode():
        similarities = classifier(Inputs(features)).similarities
        judged = []
        for number, left_out in enumerate(deal, start=1):
            removed, unknown = np.isin(name_of, seen[left_out]), np.isin(member, left_out)
            judged.append(
                _judge_fold(classifier, features, similarities, removed, unknown, member, candidates, resampled)
            )
            if progress is not None:
                progress(number, len(deal))
    auroc, fpr95 = (np.mean([fold[i] for fold in judged], axis=0) for i in (0, 1))
    # A resample that holds none of a fold's classes speaks for the other folds only.
    drawn = np.nanmean([fold[2] for fold in judged], axis=0)
    order = np.argsort(-auroc, kind="stable")
    best = order[0]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    ranking = [
        Candidate(
            candidates[i].spec,
            _estimate(auroc[i], drawn[i], tails),
            _estimate(auroc[best] - auroc[i], drawn[best] - drawn[i], tails),
            float(fpr95[i]),
        )
        for i in order
    ]
    return Choice(ranking, len(seen), len(truth), len(deal), seed, list(unreadable))


def labelled_features(
    classifier: Classifier,
    images: Any,
    labels: Sequence[str] | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> tuple[torch.Tensor, Ints, list[Unreadable]]:
    """Unit features on the model's device, the position of each image's class, and what could not be read."""
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
    # Every label is checked before the long work of encoding.
    truth = class_indices(items, classifier.classes, "In-distribution images")
    position = dict(zip((item.id for item in items), truth))
    found = score_images(classifier, [], images, keep_features=True, batch_size=batch_size, progress=progress)
    assert found.features is not None
    features = torch.from_numpy(found.features).to(classifier.model.device)
    return features, np.array([position[item.id] for item in found.items], dtype=np.int64), found.unreadable


def _feature_space(score: Score) -> Score:
    if score.needs_images:
        needs = ", ".join(sorted(need.value for need in score.needs))
        raise InputError(f"Score {score.spec!r} needs {needs}: choose compares scores of features alone.")
    return score


def _deal(classes: int, folds: int, seed: int) -> list[Ints]:
    """The positions 0 … classes − 1, dealt at random into folds of nearly equal size."""
    if classes < 2:
        raise InputError(f"choose needs images of at least two classes, and found {classes}.")
    if folds < 2:
        raise InputError(f"folds must be at least 2, got {folds!r}: with one fold no class would be kept.")
    shuffled = np.random.default_rng([seed, 0]).permutation(classes)
    return [np.sort(part) for part in np.array_split(shuffled, min(folds, classes))]


def _resample_classes(deal: Sequence[Ints], resamples: int, seed: int) -> Floats:
    """How often each class is in each bootstrap resample (resamples, classes).

    A resample whose classes are all of one fold compares nothing with anything, and is drawn again.
    """
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples!r}.")
    classes = sum(map(len, deal))
    fold_of = np.empty(classes, dtype=np.int64)
    for number, part in enumerate(deal):
        fold_of[part] = number
    rng = np.random.default_rng([seed, 1])
    drawn = np.zeros((resamples, classes), dtype=np.int64)
    again = np.arange(resamples)
    while len(again):
        drawn[again] = rng.multinomial(classes, np.full(classes, 1 / classes), size=len(again))
        by_fold = np.stack([drawn[:, fold_of == number].any(axis=1) for number in range(len(deal))])
        again = np.flatnonzero(by_fold.sum(axis=0) < 2)
    return drawn.astype(np.float64)


def _judge_fold(
    classifier: Classifier,
    features: torch.Tensor,
    similarities: torch.Tensor,
    removed: npt.NDArray[np.bool_],
    unknown: npt.NDArray[np.bool_],
    member: Ints,
    candidates: Sequence[Score],
    resampled: Floats,
) -> tuple[Floats, Floats, Floats]:
    """AUROC and FPR95 of each candidate with the columns `removed`, and AUROC (candidates, resamples).

    `unknown` are then the images of left-out classes, and `member` says of which class, in `resampled`, each is.
    """
    columns = np.flatnonzero(~removed).tolist()
    subset = ClassSubset(classifier, columns)
    known, others = (
        ScoreInputs(similarities[torch.from_numpy(rows)][:, columns], features[torch.from_numpy(rows)])
        for rows in (~unknown, unknown)
    )
    # Bound and fitted anew: nothing learned in another fold.
    scorers = [scorer if scorer.fitted else scorer.fit(known) for scorer in bind_all(subset, candidates)]
    known_values, unknown_values = score_inputs(scorers, known), score_inputs(scorers, others)
    aurocs, fprs, draws = [], [], []
    for spec in (scorer.spec for scorer in scorers):
        ranked = RankedScores(known_values[spec], unknown_values[spec])
        aurocs.append(ranked.auroc())
        fprs.append(ranked.fpr())
        draws.append(
            _resampled_auroc(known_values[spec], member[~unknown], unknown_values[spec], member[unknown], resampled)
        )
    return np.array(aurocs), np.array(fprs), np.array(draws)


def _resampled_auroc(
    known_values: Floats, known_class: Ints, unknown_values: Floats, unknown_class: Ints, resampled: Floats
) -> Floats:
    """AUROC of each resample of classes; NaN where it holds no kept or no left-out class.

    wins[k, u] counts, over pairs of an image of class k and one of left-out class u, how often the first scores
    higher (ties ½). Any weighting of classes is a weighted sum of this matrix, so that resampling them costs no
    further look at the images.
    """
    known, row = np.unique(known_class, return_inverse=True)
    unknown, column = np.unique(unknown_class, return_inverse=True)
    levels = np.unique(np.concatenate([known_values, unknown_values]))
    counts = np.zeros((len(levels), len(unknown)))
    np.add.at(counts, (np.searchsorted(levels, unknown_values), column), 1.0)
    below = counts.cumsum(axis=0) - counts / 2
    wins = np.zeros((len(known), len(unknown)))
    np.add.at(wins, row, below[np.searchsorted(levels, known_values)])
    known_weight, unknown_weight = resampled[:, known], resampled[:, unknown]
    pairs = (known_weight @ np.bincount(row)) * (unknown_weight @ np.bincount(column))
    won = ((known_weight @ wins) * unknown_weight).sum(axis=1)
    return np.asarray(np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))


def _estimate(value: float, drawn: Floats, tails: Sequence[float]) -> Estimate:
    low, high = np.quantile(drawn, tails)
    return Estimate(float(value), float(low), float(high))
