"""The images on which the chosen score and a rival disagree most: what a choice between them is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.errors import InputError
from deltaenergy.evaluation.choosing.choice import Choice
from deltaenergy.evaluation.choose import Labelled
from deltaenergy.evaluation.disagreement import Disagreement, disagreements, least_alike, rank_correlation
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import cross_fit, deal_folds, score_inputs


@dataclass(frozen=True)
class ChoiceDisagreement:
    """The best score and its rival, how alike they order the images, and where they differ most.

    `images` are those of `names`, by row; all classes are on the class list here, so that every image is a known one.
    """

    best: str
    rival: str
    correlation: float
    images: list[Disagreement]
    names: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        rows = [{"image": self.names[one.row], "by_best": one.first, "by_rival": one.second} for one in self.images]
        return {"best": self.best, "rival": self.rival, "correlation": self.correlation, "images": rows}


def disagreement_of(classifier: Classifier, known: Labelled, choice: Choice, count: int = 8) -> ChoiceDisagreement:
    """The best score beside a rival: of those that may be as good, the least like it; else the second best."""
    if len(choice.ranking) < 2:
        raise InputError("A disagreement takes two candidate scores, and there is one.")
    rivals = [one.spec for one in choice.ranking[1:] if one.behind.low <= 0] or [choice.ranking[1].spec]
    with torch.inference_mode():
        inputs = ScoreInputs(classifier(Inputs(known.features)).similarities, known.features)
        scorers = [make_score(spec).bind(classifier) for spec in (choice.best, *rivals)]
        folds = deal_folds(known.truth.tolist())
        fitted = [scorer if scorer.fitted else cross_fit(scorer, inputs, folds) for scorer in scorers]
    values = score_inputs(fitted, inputs, known=True)
    rival = next(spec for spec in least_alike(values, [choice.best]) if spec != choice.best)
    first, second = values[choice.best], values[rival]
    names = [item.id for item in known.items] or [f"row {row}" for row in range(len(first))]
    found = [one for one in disagreements(first, second, count) if one.difference]
    return ChoiceDisagreement(choice.best, rival, rank_correlation(first, second), found, names)
