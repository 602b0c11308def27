"""The negative words of a score, and those that speak loudest for an image.

    share of w = e^{s_w/T} / ( Σ_k e^{s_k/T} + Σ_w e^{s_w/T} ),   T the score's own temperature

It is the probability of the word among all classes and words, which is what scores with negative labels weigh against
the classes (NegLabel, ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.delta_energy_words import DeltaEnergyWords, words_of
from deltaenergy.scores.neglabel import MinedScore
from deltaenergy.scores.negrefine import NegRefine, refined_words

# Features of one word agree that closely, however they were computed.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class LoudWord:
    """A negative word, the image's similarity with it, and its probability among all classes and words."""

    word: str
    similarity: float
    share: float


def negative_words(scorer: Scorer) -> tuple[str, ...] | None:
    """The words behind a score's negatives, in their order; None for a score without negative labels.

    They are mined again, from what is kept on disk where that is still there, and compared with the saved features.
    """
    score = scorer.score
    if "negatives" not in scorer.state:
        return None
    if scorer.classifier.needs_to_predict - {Need.FEATURES}:
        raise InputError(f"a classifier by {scorer.classifier.method.name} looks at more than features.")
    if isinstance(score, NegRefine):
        return tuple(refined_words(scorer))
    if isinstance(score, DeltaEnergyWords):
        return words_of(scorer).kept
    if not isinstance(score, MinedScore):
        raise InputError(f"{score.name} does not keep which words it chose.")
    mined, saved = score.mined(scorer.classifier, None), scorer.state["negatives"]
    if mined.features.shape != saved.shape or not torch.allclose(mined.features.to(saved), saved, atol=_ROUNDING):
        raise InputError(f"the words that {score.name} mines today are not those that this detector was saved with.")
    return mined.phrases or mined.words


def loudest_words(scorer: Scorer, words: Sequence[str], inputs: ScoreInputs, count: int) -> list[tuple[LoudWord, ...]]:
    """The `count` words of largest share for each image, the loudest first."""
    features = scorer.compared_features(inputs)
    similarities = features @ scorer.state["negatives"].to(features).T
    temperature = getattr(scorer.score, "temperature", getattr(scorer.score, "tau", 0.01))
    temperature = temperature or 1 / scorer.classifier.model.logit_scale
    logits = torch.cat([inputs.similarities.to(similarities), similarities], dim=1).double() / temperature
    shares = torch.softmax(logits, dim=1)[:, inputs.similarities.shape[1] :]
    top = similarities.topk(min(count, len(words)), dim=1).indices
    return [
        tuple(LoudWord(words[j], float(similarities[i, j]), float(shares[i, j])) for j in row)
        for i, row in enumerate(top.tolist())
    ]
