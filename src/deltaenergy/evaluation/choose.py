"""Choose a score and its temperature from known images only.

The classes are split at random into folds. Each fold's classes are removed from the class list in turn, so its images
are unknowns, and candidate scores are ranked by how well they separate these from the other images: by AUROC, the mean
over the folds.

Images are encoded once and compared with all classes once; a fold only removes columns.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.core.classes import class_indices, class_names, first_of_name
from deltaenergy.core.needs import OF_IMAGES, Lack, Need
from deltaenergy.core.progress import Progress, stage
from deltaenergy.core.text import HasRepr
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.class_check import warn_of_guesses
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import By, DetectorSource
from deltaenergy.errors import InputError
from deltaenergy.evaluation import leave_out
from deltaenergy.evaluation.disagreement import ScoreDisagreement, disagreement_with
from deltaenergy.evaluation.leave_out import Floats, Ints
from deltaenergy.models.on import On
from deltaenergy.scores.availability import Given, check_runnable, chosen_scores, runnable_scores
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import KnownImages, bind, cross_fit, score_images, score_inputs
from deltaenergy.source import Source, items_of, list_images, load_images
from deltaenergy.stats.metrics import Estimate, RankedScores

# Candidates in addition to every registered score that can run on features. Each τ is paired with its usual c.
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
# What a candidate may need.
TO_CHOOSE_WITH = frozenset({Need.FEATURES, Need.TEXTS, Need.ID_DATA})
FEATURES_ALONE = Lack(
    "choose uses only features",
    "choose uses only features.",
)
NEAR_ONLY = (
    "Left-out classes resemble the others, so this ranks scores for near unknowns only. For images of a wholly "
    "different kind (far unknowns), check the choice with `deltaenergy evaluate`."
)
LOG = logging.getLogger(__name__)
# Means that differ only by rounding are equal.
DECIMALS = 9


class OnlyStandIns(UserWarning):
    """Scores were ranked without any real image of none of the classes."""


@dataclass(frozen=True)
class Candidate:
    """How well one score separates images of left-out classes from the others, averaged over the folds.

    Attributes:
        spec: for `make_score` and `--score`.
        auroc: what candidates are ranked by.
        behind: how far its AUROC is below the best candidate's, on the same resamples; the best is 0 behind itself.
        fpr95: share of unknown images kept when 95% of the others are.

    Intervals are over resampled classes.
    """

    spec: str
    auroc: Estimate
    behind: Estimate
    fpr95: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "score": self.spec,
            "auroc": self.auroc._asdict(),
            "behind": self.behind._asdict(),
            "fpr95": self.fpr95,
        }


@dataclass(frozen=True, repr=False)
class Choice(HasRepr):
    """Candidates from best to worst, and the images they were ranked on: their features and true classes."""

    ranking: list[Candidate]
    classes: int
    images: int
    folds: int
    seed: int
    classifier: Classifier = field(compare=False)
    features: torch.Tensor = field(compare=False)
    truth: Ints = field(compare=False)
    unreadable: list[Unreadable] = field(default_factory=list)

    def detector(self, keep: float = 0.95) -> Detector:
        """A detector with the best score, calibrated on the same images."""
        return Detector(self.classifier, self.best).calibrate(self.features, keep)

    def disagreement(self, count: int = 8) -> ScoreDisagreement:
        """The best score and a rival: of those that may be as good, the most different; else the second best.

        All classes are on the class list here, so every image is known.
        """
        if len(self.ranking) < 2:
            raise InputError("A disagreement needs two candidate scores, got one.")
        rivals = [candidate.spec for candidate in self.ranking[1:] if candidate.behind.low <= 0]
        inputs = _inputs(self.classifier, self.features)
        scores = [make_score(spec) for spec in (self.best, *(rivals or [self.ranking[1].spec]))]
        with torch.inference_mode():
            scorers = bind(self.classifier, scores)
        fitted = cross_fit(scorers, KnownImages(inputs, self.truth.tolist()))
        return disagreement_with(self.best, score_inputs(fitted, inputs, known=True), count)

    @property
    def best(self) -> str:
        return self.ranking[0].spec

    @property
    def caveat(self) -> str:
        """The limits of the ranking."""
        return NEAR_ONLY

    def _repr_fields(self) -> dict[str, object]:
        first = self.ranking[0].auroc
        facts: dict[str, object] = {
            "best": f"{self.best}, AUROC {first.value:.1%} ({first.low:.1%} to {first.high:.1%})",
            "candidates": len(self.ranking),
            "images": f"{self.images} of {self.classes} classes",
        }
        if len(self.ranking) > 1:
            facts["next"] = f"{self.ranking[1].spec}, {self.ranking[1].behind.value:.1%} behind"
        if self.unreadable:
            facts["unreadable"] = len(self.unreadable)
        return facts

    def to_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "ranking": [candidate.to_dict() for candidate in self.ranking],
            "classes": self.classes,
            "images": self.images,
            "folds": self.folds,
            "seed": self.seed,
            "unreadable": [{"path": image.id, "reason": image.reason} for image in self.unreadable],
            "caveat": self.caveat,
        }


def choose(
    by: By,
    images: Any,
    scores: str | Iterable[str | Score] | None = None,
    *,
    labels: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
    on: str | On = "auto",
) -> Choice:
    """Rank scores by how well they detect classes that are left out of the class list.

    Args:
        by: a classifier with all classes, class names, or a detector or its folder (for its classifier).
        images: known images whose class is known (a folder with one folder per class, a table with labels), or unit
            features with `labels`.
        scores: candidates, or `all`; scores that need patches or pixels are refused. Default: `candidate_scores`.
        labels: class name of each row of features.
        folds: number of parts of the classes; each is left out once. At most one per class.
        seed: of the split and the resamples.
        resamples: number of bootstrap resamples behind each interval; classes are resampled with all their images.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "choose")
    known_images = list_images(images, labels=labels, hold=True)
    given = features_only(source.given([known_images]))
    if scores is None:
        candidates, left_out = candidate_scores(given)
    else:
        chosen, left_out = chosen_scores(scores, given)
        candidates = [make_score(score.score if isinstance(score, Scorer) else score) for score in chosen]
    if left_out is not None:
        LOG.info(left_out)
    classifier = source.classifier(lambda: class_names(items_of(known_images)))
    check_runnable(candidates, features_only(Given.of([known_images], classifier)))
    with stage("Encoding images") as progress:
        features, truth, unreadable = labelled_features(classifier, known_images, source.on.batch_size, progress)
    choice = choose_from_features(classifier, features, truth, candidates, folds=folds, seed=seed, resamples=resamples)
    return replace(choice, unreadable=unreadable)


def choose_from_features(
    classifier: Classifier,
    features: torch.Tensor,
    truth: Ints,
    scores: Sequence[str | Score],
    *,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
) -> Choice:
    """`choose` from unit features (N, D) and the position of each image's class in the class list."""
    candidates = [make_score(score) for score in scores]
    # Duplicate names are one class: their columns are removed together.
    name_of = np.array(first_of_name(classifier.classes))
    seen, member = np.unique(name_of[truth], return_inverse=True)
    if len(seen) < 2:
        raise InputError(f"choose needs images of at least two classes, found {len(seen)}.")
    if folds < 2:
        raise InputError(f"folds must be at least 2, got {folds!r}.")
    parts = leave_out.folds(len(seen), folds, seed)
    resampled = leave_out.resample_classes(parts, resamples, seed)
    inputs = _inputs(classifier, features)
    warn_of_guesses(classifier.classes, truth, inputs.similarities.argmax(dim=1).cpu().numpy(), stacklevel=3)
    # Of each fold and candidate: AUROC, FPR95, and the AUROC of each resample.
    aurocs, fprs, drawn = [], [], []
    with stage("Leaving classes out") as progress:
        for number, left_out in enumerate(parts, start=1):
            columns = np.flatnonzero(~np.isin(name_of, seen[left_out])).tolist()
            unknown = np.isin(member, left_out)
            sides = [
                ScoreInputs(taken.similarities[:, columns], taken.features)
                for taken in (inputs.take(np.flatnonzero(side).tolist()) for side in (~unknown, unknown))
            ]
            members = member[~unknown], member[unknown]
            with torch.inference_mode():
                # Bound and fitted again: nothing learned in another fold.
                scorers = bind(ClassSubset(classifier, columns), candidates)
                values = [leave_out.score_both(scorer, sides[0], members[0], sides[1]) for scorer in scorers]
            ranked = [RankedScores(*both) for both in values]
            aurocs.append([ranks.auroc() for ranks in ranked])
            fprs.append([ranks.fpr() for ranks in ranked])
            wins = [leave_out.wins_by_class(known, members[0], other, members[1], len(seen)) for known, other in values]
            drawn.append([leave_out.resampled_auroc(won, *members, resampled) for won in wins])
            progress(number, len(parts))
    choice = Choice(
        # A resample with none of a fold's classes counts only for the other folds.
        rank(
            [score.spec for score in candidates],
            np.mean(aurocs, axis=0),
            np.mean(fprs, axis=0),
            np.nanmean(drawn, axis=0),
        ),
        classes=len(seen),
        images=len(truth),
        folds=len(parts),
        seed=seed,
        classifier=classifier,
        features=features,
        truth=truth,
    )
    warnings.warn(choice.caveat, OnlyStandIns, stacklevel=2)
    return choice


def rank(
    specs: Sequence[str], auroc: Floats, fpr95: Floats, drawn: Floats, confidence: float = 0.95
) -> list[Candidate]:
    """Candidates by AUROC, the earlier one of two that are equal; `drawn` are the AUROCs of resamples."""
    order = np.argsort(-auroc.round(DECIMALS), kind="stable")
    best = order[0]

    def estimate(value: float, drawn: Floats) -> Estimate:
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Estimate(float(value), float(low), float(high))

    return [
        Candidate(
            specs[i],
            estimate(auroc[i], drawn[i]),
            estimate(auroc[best] - auroc[i], drawn[best] - drawn[i]),
            float(fpr95[i]),
        )
        for i in order
    ]


def _inputs(classifier: Classifier, features: torch.Tensor) -> ScoreInputs:
    with torch.inference_mode():
        return ScoreInputs(classifier(Inputs(features)).similarities, features)


def labelled_features(
    classifier: Classifier, source: Source, batch_size: int = 32, progress: Progress | None = None
) -> tuple[torch.Tensor, Ints, list[Unreadable]]:
    """Unit features and classes of the readable images; every label is checked before the long work of encoding."""
    items = load_images(source)
    if needs := classifier.needs_to_predict & OF_IMAGES:
        raise InputError(
            f"A classifier by {classifier.method.name} needs {', '.join(sorted(need.value for need in needs))}: choose "
            "uses only features."
        )
    truth = class_indices(items, classifier.classes, "In-distribution images")
    position = dict(zip((item.id for item in items), truth))
    scored = score_images(classifier, [], source, keep_features=True, batch_size=batch_size, progress=progress)
    assert scored.features is not None
    features = torch.from_numpy(scored.features).to(classifier.model.device)
    return features, np.array([position[item.id] for item in scored.items], dtype=np.int64), scored.unreadable


def features_only(given: Given) -> Given:
    """The inputs for scores: only features."""
    others = {need: FEATURES_ALONE for need in Need if need not in TO_CHOOSE_WITH}
    return Given({**given.lacks, **others}, given.method)


def candidate_scores(given: Given) -> tuple[list[Score], str | None]:
    """`CANDIDATES`, every cheap score and named setting that can run, and one line on the others."""
    usable, left_out = runnable_scores(given)
    unique = {score.spec: score for score in (*map(make_score, CANDIDATES), *usable)}
    return list(unique.values()), left_out
