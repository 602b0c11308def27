"""NegLabel: how much of the probability is on the classes, rather than on words that are none of them.

With negatives Y_neg (mined, see `deltaenergy.scores.negatives`) in G groups of equal size (Jiang et al., ICLR 2024):

    score = (1/G) Σ_g Σ_k e^{s_k/T} / ( Σ_k e^{s_k/T} + Σ_{n∈g} e^{s_n/T} ) = mean_g σ( lse(s/T) − lse(s_g/T) )

`neglabel:quick` uses ImageNet's 998 names instead of 70,794 words, without the classes, their synonyms and their kinds,
keeps half of them, and uses the log-odds lse(s/T) − lse(s_neg/T) of one group, which rank images as the share does but
do not round to 1.

The right-hand form needs one pass over the classes instead of one per group. `neglabel+delta-energy` puts ΔEnergy
on the same pool, without groups: ΔE(x; Y_in) − ΔE(x; Y_neg) (ΔEnergy, NeurIPS 2025).

The classes' similarities are the classifier's, so both also work with tuned classifiers. The paper prompts classes like
nouns: for its exact form build the classifier with `template="the nice {}"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from deltaenergy.core.arrays import round_to_block
from deltaenergy.core.classes import Templates
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Count, Positive, PositiveShare, Share
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.negatives.competing import imagenet_meanings, remove_own
from deltaenergy.scores.negatives.mining import MiningSettings, Negatives, WordPool, class_prompt_features, mine
from deltaenergy.scores.negatives.pools import Pool
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

# Similarities of one block of images with one block of negatives (float32) stay within about 1 MB, in cache.
BLOCK_ENTRIES = 262_144
IMAGES_PER_BLOCK = 128


@array_function
def neglabel(
    similarities: torch.Tensor,
    negative_similarities: Any,
    groups: Count = 100,
    temperature: Positive = 0.01,
    log_odds: bool = False,
) -> torch.Tensor:
    """NegLabel's score (formula above) from similarities with the classes (N, K) and with the negatives (N, M).

    Group g is the g-th run of ⌊M/G⌋ columns; the remainder is not used. With fewer negatives than groups, each is its
    own group. With `log_odds`, the mean of lse(s/T) − lse(s_g/T) instead of that of its sigmoid.
    """
    negatives = as_rows(negative_similarities, "negative_similarities", len(similarities)).to(similarities)
    groups = min(groups, negatives.shape[1])
    size = negatives.shape[1] // groups

    def score(rows: slice) -> torch.Tensor:
        positive = torch.logsumexp(similarities[rows] / temperature, dim=1)
        grouped = negatives[rows, : groups * size].reshape(-1, groups, size)
        return _sum_over_groups(positive, grouped, temperature, log_odds) / groups

    return in_blocks(score, len(similarities), max(1, BLOCK_ENTRIES // negatives.shape[1]))


def _sum_over_groups(
    positive: torch.Tensor, negatives: torch.Tensor, temperature: float, log_odds: bool
) -> torch.Tensor:
    """Σ_g σ(positive − lse(negatives_g / T)), or without the σ, for log-sums (N,) and cosines (N, groups, size)."""
    odds = positive[:, None] - torch.logsumexp(negatives / temperature, dim=2)
    return (odds if log_odds else torch.sigmoid(odds)).sum(dim=1)


@dataclass(frozen=True)
class MinedScore(WordPool, Score):
    """A score over negatives that are mined when it is bound to a classifier, and saved with the detector.

    `imagenet` uses ImageNet's names without the classes, their synonyms and their kinds, which the published rule may
    keep. Superclass words are separated by spaces. `class_templates` are only for mining; if empty, candidates are
    compared with the classifier's own text features.
    """

    needs = frozenset({Need.FEATURES, Need.TEXTS})
    imagenet: bool = False
    class_templates: Templates | Literal[""] = ""
    superclasses: str = ""
    quantile: Share = 0.95
    keep: PositiveShare = 0.15
    too_close: PositiveShare = 1.0
    seed: int = 0

    @property
    def mining(self) -> MiningSettings:
        return replace(
            super().mining,
            superclasses=tuple(self.superclasses.split()),
            quantile=self.quantile,
            keep=self.keep,
            too_close=self.too_close,
            seed=self.seed,
        )

    @property
    def pool(self) -> Pool:
        return Pool(tuple(imagenet_meanings())) if self.imagenet and not self.words else super().pool

    def mined(self, classifier: Classifier, progress: Progress | None) -> Negatives:
        """The words that are negatives of these classes, with their features."""
        pool = self.pool
        if self.class_templates:
            templates = self.class_templates.split("|")
            class_features = class_prompt_features(classifier.model, classifier.classes, templates)
        else:
            class_features = classifier.text_features
        own = remove_own(pool.words, classifier.classes) if self.imagenet else {}
        if own and len(own) == len(pool.words):
            raise InputError(
                f"{self.name}: all {len(own)} words are classes, their synonyms or their kinds. Use narrower classes, "
                "other words (words=FILE), or another score."
            )
        return mine(classifier.model, class_features, pool, self.mining, without=own, progress=progress)

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        return {"negatives": self.mined(classifier, progress).features}


@register_score
@dataclass(frozen=True)
class NegLabel(MinedScore):
    """`neglabel` as a Score, computed in blocks in bounded memory."""

    name = "neglabel"
    summary = "share of probability on the classes rather than on WordNet words far from them"
    formula = "mean_g σ(lse(s/T) − lse(s_g/T)) over G groups of mined negatives"
    paper = "Jiang et al., ICLR 2024"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"imagenet": True, "keep": 0.5, "groups": 1, "log_odds": True}
    }
    groups: Count = 100
    temperature: Positive = 0.01
    log_odds: bool = False

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        negatives = scorer.state["negatives"]
        return grouped_score(inputs, scorer, negatives, self.groups, self.temperature, log_odds=self.log_odds)


def grouped_score(
    inputs: ScoreInputs,
    scorer: Scorer,
    negatives: torch.Tensor,
    groups: int,
    temperature: float,
    *,
    log_odds: bool = False,
) -> torch.Tensor:
    """`neglabel` from features instead of similarities with the negatives (M, D), block by block."""
    features = scorer.compared_features(inputs)
    negatives = negatives.to(features)
    groups = min(groups, len(negatives))
    size = len(negatives) // groups
    grouped = negatives[: groups * size]
    positive = torch.logsumexp(inputs.similarities.to(features) / temperature, dim=1)

    def score(rows: slice) -> torch.Tensor:
        block, total = features[rows], torch.zeros_like(positive[rows])
        at_once = max(1, BLOCK_ENTRIES // max(1, len(block) * size))
        for part in torch.split(grouped, at_once * size):
            similarities = (block @ part.T).view(len(block), len(part) // size, size)
            total += _sum_over_groups(positive[rows], similarities, temperature, log_odds)
        return total / groups

    images_at_once = round_to_block(min(IMAGES_PER_BLOCK, BLOCK_ENTRIES // size))
    return in_blocks(score, len(features), images_at_once)


@register_score
@dataclass(frozen=True)
class NegLabelDeltaEnergy(MinedScore):
    """ΔEnergy over the classes minus ΔEnergy over all mined negatives."""

    name = "neglabel+delta-energy"
    summary = "ΔEnergy over the classes minus ΔEnergy over neglabel's negatives"
    formula = "ΔE(x; Y_in) − ΔE(x; Y_neg)"
    paper = "ΔEnergy, NeurIPS 2025, with the pool of Jiang et al., ICLR 2024"
    tau: Positive = 0.01
    c: Count = 2
    reset: float = 0.0

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        features = scorer.compared_features(inputs)
        negatives = scorer.state["negatives"].to(features)

        def over_negatives(rows: slice) -> torch.Tensor:
            return delta_energy.kernel(features[rows] @ negatives.T, self.tau, self.c, self.reset)

        over_classes = delta_energy.kernel(inputs.similarities, self.tau, self.c, self.reset)
        images_at_once = round_to_block(BLOCK_ENTRIES // len(negatives))
        return over_classes - in_blocks(over_negatives, len(features), images_at_once)


def in_blocks(function: Callable[[slice], torch.Tensor], rows: int, block: int) -> torch.Tensor:
    """`function` of consecutive slices of `rows`, joined; of the empty slice if there are no rows."""
    starts = range(0, rows, block) if rows else range(1)
    return torch.cat([function(slice(start, min(start + block, rows))) for start in starts])
