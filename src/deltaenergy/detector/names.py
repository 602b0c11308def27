"""A threshold from class names: no image is needed, and nothing is guaranteed.

    known if score ≥ a + b·log K − log W        K classes, W words that compete with them; models that were measured
    known if odds  ≥ ½·log(K/W)                 any other model: nothing is fitted

The score is `delta-energy+words`, and the odds are the same with weight 0. The results in the docs say what the rules
keep and reject; log K and log W are what more classes or words add to the odds by chance.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import InputError
from deltaenergy.scores.delta_energy_words import DeltaEnergyWords, words_of
from deltaenergy.scores.negatives.competing import FEW_WORDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.scores.base import Score, Scorer

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """The constants of a model, and what they keep and reject in percent, rounded down: the mean over class lists."""

    offset: float
    slope: float
    keeps: int
    rejects_far: int
    rejects_near: int


# By the name for `load_model`: a folder may contain any model. `python docs/tables/names.py` prints the shares.
MEASURED = {
    "openai/clip-vit-base-patch16": Measured(9.8, 0.5, keeps=94, rejects_far=96, rejects_near=60),
    "lite": Measured(4.0, 1.0, keeps=93, rejects_far=85, rejects_near=83),
}


@dataclass(frozen=True)
class NamesRule:
    """The threshold of a detector from class names, instead of a `Calibration`.

    It guarantees nothing: there are no p-values, and no false discovery rate is controlled.

    Attributes:
        threshold: images that score below it are rejected.
        classes: K.
        words: W.
        measured_on: the model whose constants it uses; None for the rule for any model.
    """

    threshold: float
    classes: int
    words: int
    measured_on: str | None

    holds = False
    keep = None
    slack = 0.0

    @property
    def guarantee(self) -> NamesRule:
        return self

    def rejects(self, values: Floats, named: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.bool_]:
        """Which scores are below the threshold, or NaN."""
        return ~(values >= self.threshold)

    def p_values(self, values: Floats, named: npt.NDArray[np.int64] | None = None) -> Floats:
        """NaN for each image: no p-value is valid."""
        return np.full(len(values), np.nan)

    def __str__(self) -> str:
        return f"Nothing is guaranteed: the threshold is set from class names only. {self.measured}"

    @property
    def measured(self) -> str:
        """What it keeps and rejects on average, if measured."""
        if self.measured_on is None:
            return "Its rule was not measured on this model."
        found = MEASURED[self.measured_on]
        return (
            f"In tests with {self.measured_on} it kept {found.keeps}% of known images and rejected "
            f"{found.rejects_far}% of far and {found.rejects_near}% of near unknown images, on average over class "
            "lists."
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields and the text, as JSON values."""
        return {**asdict(self), "text": str(self)}


def measured_name(classifier: Classifier) -> str | None:
    """The model whose constants apply to this classifier, or None."""
    name = classifier.base_model.name
    return name if name in MEASURED and classifier.method.name == "zero-shot" else None


def names_score(classifier: Classifier) -> Score:
    """The score of a detector from class names."""
    return DeltaEnergyWords() if measured_name(classifier) else DeltaEnergyWords(weight=0.0)


def check_names_score(classifier: Classifier, score: Score) -> None:
    """Raise `InputError` if class names set no threshold for this score and classifier."""
    if not isinstance(score, DeltaEnergyWords):
        raise InputError(
            f"Class names set a threshold only for {DeltaEnergyWords.name}, not for {score.spec}: calibrate the "
            "detector."
        )
    plain = DeltaEnergyWords()
    as_measured = (score.tau, score.temperature, score.weight) == (plain.tau, None, plain.weight)
    if score.weight and not (as_measured and measured_name(classifier)):
        raise InputError(
            f"Class names set no threshold for {score.spec} with {classifier.base_model.name!r}: it was not measured. "
            f"Use {names_score(classifier).spec}, or calibrate the detector."
        )


def rule_from_names(scorer: Scorer) -> NamesRule:
    """The threshold for the classes of a scorer; raises `InputError` if class names set none."""
    classifier, score = scorer.classifier, scorer.score
    check_names_score(classifier, score)
    classes, words = len(set(classifier.classes)), len(words_of(scorer).kept)
    measured = measured_name(classifier) if score.params["weight"] else None
    if measured is not None:
        found = MEASURED[measured]
        threshold = found.offset + found.slope * math.log(classes) - math.log(words)
    elif words >= FEW_WORDS:
        threshold = 0.5 * math.log(classes / words)
    else:
        raise InputError(
            f"Class names set no threshold here: {words} words compete with the classes; {FEW_WORDS} are needed. Use "
            "narrower classes, add words (words=+FILE), or calibrate the detector."
        )
    return NamesRule(threshold, classes, words, measured)
