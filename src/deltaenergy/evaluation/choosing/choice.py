"""What `choose` found: candidates from best to worst, and what they were judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deltaenergy.core.display import HasRepr
from deltaenergy.data.items import Unreadable
from deltaenergy.evaluation.choosing.judging import Floats, Judged
from deltaenergy.stats.metrics import Estimate

NEAR_ONLY = (
    "Left-out classes resemble the kept ones, so this ranks scores for near unknowns only. It cannot tell how they do "
    "on pictures of a wholly other kind (far unknowns): check the choice with `deltaenergy evaluate` if you have some."
)
NO_PIXELS = "Far unknowns are made from pictures, and features have none: only near unknowns could be judged."
STAND_INS = (
    "Left-out classes stand for near unknowns, and shuffled, scrambled and tiled pictures for far ones. Real "
    "ones can differ from both: check the choice with `deltaenergy evaluate` if you have some."
)


class OnlyStandIns(UserWarning):
    """Scores were ranked without any real image of none of the classes."""


# Means that differ by rounding alone are equal.
DECIMALS = 9


@dataclass(frozen=True)
class Candidate:
    """How one score told unknown from known images, averaged over the folds.

    Attributes:
        spec: what `make_score` and `--score` take.
        auroc: what it is ranked by: the mean of `near` and `far`, or `near` alone.
        behind: how far its AUROC is below the best candidate's, on the same resamples; the best is 0 behind itself.
        fpr95: share of unknown images kept when 95 % of the others are, averaged in the same way.
        near: AUROC against images of left-out classes.
        far: AUROC against synthetic far unknowns, where there are any.

    Intervals are over resampled classes.
    """

    spec: str
    auroc: Estimate
    behind: Estimate
    fpr95: float
    near: Estimate
    far: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "score": self.spec,
            "auroc": self.auroc._asdict(),
            "behind": self.behind._asdict(),
            "fpr95": self.fpr95,
            "near": self.near._asdict(),
            "far": None if self.far is None else self.far._asdict(),
        }


@dataclass(frozen=True, repr=False)
class Choice(HasRepr):
    """Candidates from best to worst, and what they were judged on.

    `far_images` are the synthetic far unknowns; `far_wanted` says whether they were asked for.
    """

    ranking: list[Candidate]
    classes: int
    images: int
    folds: int
    seed: int
    unreadable: list[Unreadable] = field(default_factory=list)
    far_images: int = 0
    far_wanted: bool = False

    @property
    def best(self) -> str:
        """The spec of the best candidate."""
        return self.ranking[0].spec

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

    @property
    def caveat(self) -> str:
        """What the ranking cannot know."""
        if self.far_images:
            return STAND_INS
        return f"{NO_PIXELS} {NEAR_ONLY}" if self.far_wanted else NEAR_ONLY

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "best": self.best,
            "ranking": [candidate.to_dict() for candidate in self.ranking],
            "classes": self.classes,
            "images": self.images,
            "far_images": self.far_images,
            "folds": self.folds,
            "seed": self.seed,
            "unreadable": [{"path": image.id, "reason": image.reason} for image in self.unreadable],
            "caveat": self.caveat,
        }


def rank(specs: Sequence[str], near: Judged, far: Judged | None, confidence: float) -> list[Candidate]:
    """Candidates by the mean of near and far AUROC; of equal ones the one whose lower AUROC is higher comes first."""
    kinds = [near] if far is None else [near, far]
    auroc = np.mean([kind.auroc for kind in kinds], axis=0)
    worst = np.min([kind.auroc for kind in kinds], axis=0)
    fpr95 = np.mean([kind.fpr95 for kind in kinds], axis=0)
    drawn = np.mean([kind.drawn for kind in kinds], axis=0)
    order = np.lexsort((-worst.round(DECIMALS), -auroc.round(DECIMALS)))
    best = order[0]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    return [
        Candidate(
            specs[i],
            _estimate(auroc[i], drawn[i], tails),
            _estimate(auroc[best] - auroc[i], drawn[best] - drawn[i], tails),
            float(fpr95[i]),
            _estimate(near.auroc[i], near.drawn[i], tails),
            None if far is None else _estimate(far.auroc[i], far.drawn[i], tails),
        )
        for i in order
    ]


def _estimate(value: float, drawn: Floats, tails: Sequence[float]) -> Estimate:
    low, high = np.nanquantile(drawn, tails)
    return Estimate(float(value), float(low), float(high))
