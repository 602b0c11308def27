"""delta-energy+words: how much one class stands out, and how much rather a class than a word (this project's own).

    score = z(ΔE_{τ,c}) + w · z( lse(s/T) − lse(s_words/T) ),   z(v) = (v − μ_v) / σ_v over ID images

ΔEnergy at τ = 0.1, c = 1 compares the classes with one another; the log-odds compare all of them with words that are
none of them (`neglabel:quick`: 500 of 1,000 frequent nouns). Where the words cover the kind of an unknown they tell it
from the classes; where they do not, ΔEnergy still does. In standard units neither drowns the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.needs import Need
from deltaenergy.scores._standard import check_moments, moments
from deltaenergy.scores.arrays import array_function, check_finite, even
from deltaenergy.scores.base import ScoreInputs, Scorer, check_positive
from deltaenergy.scores.delta_energy import check_parameters, delta_energy
from deltaenergy.scores.neglabel import BLOCK_ENTRIES, QUICK_POOL, MinedScore, in_blocks, neglabel
from deltaenergy.scores.registry import register_score
from deltaenergy.specs import check_range


@array_function
def delta_energy_words(
    similarities: torch.Tensor,
    negative_similarities: Any,
    means: Sequence[float],
    deviations: Sequence[float],
    tau: float = 0.1,
    c: int = 1,
    temperature: float = 0.01,
    weight: float = 1.0,
) -> torch.Tensor:
    """The score (formula above) from similarities with the classes (N, K) and with the words (N, M).

    `means` and `deviations` hold those of ΔE and of the log-odds, in this order.
    """
    check_range("delta-energy+words: weight", weight, 0)
    check_moments("delta-energy+words", means, deviations, 2)
    contrast = torch.as_tensor(delta_energy(similarities, tau, c))
    odds = torch.as_tensor(neglabel(similarities, negative_similarities, 1, temperature, log_odds=True))
    return (contrast - means[0]) / deviations[0] + weight * (odds - means[1]) / deviations[1]


@register_score
@dataclass(frozen=True)
class DeltaEnergyWords(MinedScore):
    """`delta_energy_words` as a Score that mines its words for the classes, and learns μ and σ from ID images."""

    name = "delta-energy+words"
    summary = "ΔEnergy and the log-odds of the classes against frequent words, each standardised on ID data"
    formula = "z(ΔE_{τ,c}) + w · z(lse(s/T) − lse(s_words/T)), z standardised on ID data"
    paper = "this project"
    requires = frozenset({Need.FEATURES, Need.TEXTS, Need.ID_DATA})
    frequent: int = QUICK_POOL["frequent"]
    exclude: str = QUICK_POOL["exclude"]
    keep: float = QUICK_POOL["keep"]
    tau: float = 0.1
    c: int = 1
    temperature: float = 0.01
    weight: float = 1.0

    def check(self) -> None:
        """τ and c as delta-energy wants them, T > 0, w ≥ 0."""
        super().check()
        check_parameters(self.tau, self.c)
        check_positive(self.name, temperature=self.temperature)
        check_range(f"{self.name}: weight", self.weight, 0)

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """Mean and deviation of both terms."""
        contrast = torch.as_tensor(delta_energy(inputs.similarities, self.tau, self.c))

        def odds(similarities: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(neglabel(similarities, words, 1, self.temperature, log_odds=True))

        return moments([contrast, _with_words(odds, inputs, scorer)])

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        means, deviations = scorer.learned("means").tolist(), scorer.learned("deviations").tolist()

        def score(similarities: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            settings = (self.tau, self.c, self.temperature, self.weight)
            return torch.as_tensor(delta_energy_words(similarities, words, means, deviations, *settings))

        return _with_words(score, inputs, scorer)


def _with_words(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inputs: ScoreInputs, scorer: Scorer
) -> torch.Tensor:
    """`function` of the similarities with classes and words, a block of images at a time."""
    features = scorer.compared_features(inputs)
    similarities, words = inputs.similarities.to(features), scorer.state["negatives"].to(features)
    check_finite(similarities.sum(), similarities, "similarities")
    check_finite(features.sum(), features, "features")
    images_at_once = even(BLOCK_ENTRIES // len(words))
    return in_blocks(lambda rows: function(similarities[rows], features[rows] @ words.T), len(features), images_at_once)
