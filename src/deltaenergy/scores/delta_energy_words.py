"""delta-energy+words: the classes against other words, and the best class against all other names (this project's own).

    odds  = lse(s/T) − lse(w/T)                                s: cosines with the K classes, w: with words
    C     = s₁/τ − log mean over all other names of e^{cos/τ}     s₁ = max s; the other classes and the words
    score = odds + b·C,   T = 1 / logit scale, τ = 0.1, b = 8

C is ΔEnergy's contrast at τ with c = 1, made independent of K by the mean; it exists for one class. Nothing is fitted:
b is the ratio of the deviations of both terms over known images, which hardly depends on the classes. It was measured
on CLIP ViT-B/16 and on `lite` (docs/results/default-score.md); other models use the same constants, unmeasured.

The words are ImageNet's names and a hundred everyday nouns without the classes, their synonyms and their kinds
(`negatives.competing`), in the classifier's own template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from deltaenergy.core.arrays import round_to_block
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import NonNegative, Positive
from deltaenergy.scores.arrays import array_function, as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.negatives.competing import CompetingWords, candidates, competing_words
from deltaenergy.scores.neglabel import BLOCK_ENTRIES, in_blocks
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier


@array_function
def delta_energy_words(
    similarities: torch.Tensor,
    word_similarities: Any,
    tau: Positive = 0.1,
    temperature: Positive = 0.01,
    weight: NonNegative = 8.0,
) -> torch.Tensor:
    """The score (formula above) from cosines with the classes (N, K) and with the words (N, W)."""
    words = as_rows(word_similarities, "word_similarities", len(similarities)).to(similarities)
    odds = torch.logsumexp(similarities / temperature, dim=1) - torch.logsumexp(words / temperature, dim=1)
    best = similarities.max(dim=1, keepdim=True)
    others = torch.cat([similarities.scatter(1, best.indices, -torch.inf), words], dim=1) / tau
    count = similarities.new_tensor(others.shape[1] - 1)
    contrast = best.values[:, 0] / tau - (torch.logsumexp(others, dim=1) - count.log())
    return odds + weight * contrast


@register_score
@dataclass(frozen=True)
class DeltaEnergyWords(Score):
    """`delta_energy_words` as a Score that chooses its words for the classes and is not fitted.

    `words` replaces the pool: a text file with one word per line, or words with commas ("pizza,beach"); with a leading
    plus ("+pizza,beach") it extends the pool. `temperature` is 1 / logit scale of the model by default.
    """

    name = "delta-energy+words"
    summary = "log-odds of the classes against other names, plus the contrast of the best class with all"
    formula = "lse(s/T) − lse(w/T) + b·(s₁/τ − log mean over all other names of e^{cos/τ})"
    paper = "this project; b and τ measured on CLIP ViT-B/16 and lite, unmeasured on other models"
    needs = frozenset({Need.FEATURES, Need.TEXTS})
    words: str = ""
    tau: Positive = 0.1
    temperature: Positive | None = None
    weight: NonNegative = 8.0

    @property
    def prompts(self) -> int:
        """One prompt per candidate; classifiers with several templates encode each in all of them."""
        return len(candidates(self.words))

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        words, features = competing_words(classifier, self.words, progress)
        return {"negatives": features, "words": words.pack()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,), a block of images at a time."""
        features = scorer.compared_features(inputs)
        similarities, words = inputs.similarities.to(features), scorer.state["negatives"].to(features)
        temperature = self.temperature or 1 / scorer.classifier.model.logit_scale

        def score(rows: slice) -> torch.Tensor:
            compared = features[rows] @ words.T
            return delta_energy_words.kernel(similarities[rows], compared, self.tau, temperature, self.weight)

        return in_blocks(score, len(features), round_to_block(BLOCK_ENTRIES // (len(words) + similarities.shape[1])))


def words_of(scorer: Scorer) -> CompetingWords:
    """The words that compete with the classes of a scorer of this kind, and those that were removed."""
    return CompetingWords.unpack(scorer.state["words"])
