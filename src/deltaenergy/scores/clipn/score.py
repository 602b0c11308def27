"""CLIPN: a second text tower that says "no" (Wang et al., ICCV 2023).

    a_k = L z·t_k,   b_k = L z·n_k,   q_k = σ(a_k − b_k): the probability of "yes" for class k
    atd:  Σ_k softmax(a)_k q_k     (agreeing to differ; the paper's 1 − probability of the extra, unknown class)
    ctw:  q_k of the most likely k (competing to win)

t are the class texts, n the same texts through the "no" tower. The tower is a file: `training.train_no_tower`
makes one from images and texts, for any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Positive
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

Mode = Literal["atd", "ctw"]


@array_function
def clipn(
    similarities: torch.Tensor, no_similarities: Any, mode: Mode = "atd", logit_scale: Positive = 100.0
) -> torch.Tensor:
    """The score of each row (formula above) from cosines (N, K) with the class texts, and with their "no" texts."""
    no = as_rows(no_similarities, "no_similarities").to(similarities)
    if no.shape != similarities.shape:
        raise InputError(
            f"clipn: similarities and no_similarities must be of one shape, got {tuple(similarities.shape)} and "
            f"{tuple(no.shape)}."
        )
    yes_rather = torch.sigmoid(logit_scale * (similarities - no))
    if mode == "ctw":
        return yes_rather.gather(1, similarities.argmax(dim=1, keepdim=True))[:, 0]
    return (torch.softmax(logit_scale * similarities, dim=1) * yes_rather).sum(dim=1)


@register_score
@dataclass(frozen=True)
class Clipn(Score):
    """`clipn` as a Score. `no_tower` is a folder that `train_no_tower` wrote, or a file."""

    name = "clipn"
    summary = 'yes or no for every class, by a second text encoder that was trained to say "no"'
    formula = "Σ_k softmax(L s)_k σ(L (s_k − z·n_k))  (atd), or the σ of the top class (ctw)"
    paper = "Wang et al., ICCV 2023"
    needs = frozenset({Need.FEATURES, Need.TEXTS})
    no_tower: str = ""
    mode: Mode = "atd"

    @property
    def missing(self) -> str | None:
        if self.no_tower:
            return None
        return (
            "Score 'clipn' needs a \"no\" text encoder: train one with "
            "deltaenergy.scores.clipn.training.train_no_tower, and pass it as clipn(no_tower=FOLDER)."
        )

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        if self.missing is not None:
            raise InputError(self.missing)
        from deltaenergy.scores.clipn.tower import NoTower

        tower = NoTower.load(self.no_tower, classifier.model)
        return {"no_features": tower.class_features(classifier.classes, classifier.templates, progress)}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        features = scorer.compared_features(inputs)
        no = features @ scorer.state["no_features"].T.to(features)
        return clipn.kernel(inputs.similarities, no, self.mode, scorer.classifier.model.logit_scale)
