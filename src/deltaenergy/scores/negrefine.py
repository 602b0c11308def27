"""NegRefine: NegLabel's score, lifted where an image shows a class *and* what a negative names.

Ansari et al., ICCV 2025:

    score = neglabel + w · max_{p, n} σ( [cos(z, "p and n") − cos(z, n)] / T ),   w = 2, T = 0.01

over the 5 classes p and the 5 negatives n that are nearest to the image. Where "dog and leash" fits better than "leash"
alone, the leash is no sign of an unknown image. Texts are made of CSP's noun templates, as the negatives are.

The negatives are CSP's, but mined by the largest cosine with a class (quantile 1), less proper nouns and subcategories
of the classes, which CLIP finds in known images too. **The paper asks a language model which words these are; here
WordNet says it**, by instance pointers and by hyponyms of the
classes (see `negatives.taxonomy`): a substitute that needs no further model, and that knows WordNet's words only. The
paper's own example, "african daisy", is a flower to WordNet but no kind of "daisy", and stays.

The pairs are encoded when an image asks for them, since all pairs of K classes and M negatives would be millions: the
model's text tower runs whenever images are scored. That is 25 texts of 8 prompts each for an image that shares none
with the ones before; `noun_templates='the nice {}'` makes it 25. Each text passes through the tower by itself: its
feature has the same bits whatever else is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.arrays import round_to_block
from deltaenergy.core.classes import fill
from deltaenergy.core.lru import LruCache
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Count, NonNegative, Share
from deltaenergy.errors import InputError
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.csp import CspPool
from deltaenergy.scores.negatives.mining import Negatives
from deltaenergy.scores.negatives.pools import encode_candidates
from deltaenergy.scores.negatives.taxonomy import proper_nouns, subcategories
from deltaenergy.scores.neglabel import BLOCK_ENTRIES, IMAGES_PER_BLOCK, NegLabel
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.models.base import Model

# Features of the texts that were asked for last: 16 MB of 512 numbers each.
_kept = LruCache[tuple[str, str, tuple[str, ...], str], torch.Tensor](8192)
# Between the negatives in the state; no text that a tower takes holds one.
_BETWEEN = "\0"


def refine(negatives: Negatives, classes: Sequence[str]) -> Negatives:
    """The negatives that are neither proper nouns nor the classes' own names, synonyms and subcategories."""
    unwanted = proper_nouns() | subcategories(classes)
    kept = [i for i, word in enumerate(negatives.words) if word.lower() not in unwanted]
    if not kept:
        raise InputError(
            f"negrefine: all {len(negatives.words)} negatives are proper nouns or kinds of the classes in WordNet, so "
            "none is left. Pass more candidates (words=FILE) or narrower classes, or use csp."
        )
    return replace(
        negatives,
        words=tuple(negatives.words[i] for i in kept),
        phrases=tuple(negatives.phrases[i] for i in kept),
        features=negatives.features[kept],
    )


def matches(pairs: torch.Tensor, negatives: torch.Tensor, temperature: float = 0.01) -> torch.Tensor:
    """The largest σ((cos(z, "p and n") − cos(z, n)) / T) of an image, by its cosines with pairs (P, N) and n (N,)."""
    return torch.sigmoid((pairs - negatives) / temperature).max()


@register_score
@dataclass(frozen=True)
class NegRefine(CspPool, NegLabel):
    """NegLabel's score on refined negatives, plus what images that match several texts are due."""

    name = "negrefine"
    summary = "csp on negatives without names and kinds of the classes, fair to images that show several things"
    formula = 'neglabel + w·max_{p,n} σ([cos(z, "p and n") − cos(z, n)]/T) over the 5 nearest classes and negatives'
    paper = "Ansari et al., ICCV 2025; WordNet instead of its language model"
    requires = frozenset({Need.FEATURES, Need.TEXTS, Need.PAIRS})
    quantile: Share = 1.0
    weight: NonNegative = 2.0
    nearest: Count = 5

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        """The negatives of these classes and their words, which are joined to classes later."""
        refined = refine(self.mined(classifier, progress), classifier.classes)
        text = _BETWEEN.join(refined.phrases).encode("utf-8")
        return {"negatives": refined.features, "words": torch.frombuffer(bytearray(text), dtype=torch.uint8)}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        base = super().compute(inputs, scorer)
        features = scorer.compared_features(inputs)
        negatives = scorer.state["negatives"].to(features)
        words = refined_words(scorer)
        size = round_to_block(min(IMAGES_PER_BLOCK, BLOCK_ENTRIES // len(negatives)))
        bonus = []
        for start in range(0, len(features), size):
            block = features[start : start + size]
            nearest = (block @ negatives.T).topk(min(self.nearest, len(negatives)), dim=1)
            similarities = inputs.similarities[start : start + size]
            classes = similarities.topk(min(self.nearest, similarities.shape[1]), dim=1).indices
            for row in range(len(block)):
                chosen = [words[i] for i in nearest.indices[row].tolist()]
                bonus.append(self._match(scorer, block[row], classes[row].tolist(), chosen, nearest.values[row]))
        return base + self.weight * torch.stack(bonus) if bonus else base

    def _match(
        self, scorer: Scorer, feature: torch.Tensor, classes: list[int], words: list[str], cosines: torch.Tensor
    ) -> torch.Tensor:
        """What one image is due, with its nearest classes, and its nearest negatives and their cosines."""
        names = scorer.classifier.classes
        texts = [f"{names[position]} and {word}" for position in classes for word in words]
        pairs = text_features(scorer.classifier.model, texts, self.mining.noun_templates).to(feature)
        return matches((pairs @ feature).view(len(classes), len(words)), cosines, self.temperature)


def text_features(model: Model, texts: Sequence[str], templates: tuple[str, ...]) -> torch.Tensor:
    """Unit features (len(texts), D): directions of the mean over the templates, on the model's device."""

    def feature(text: str) -> torch.Tensor:
        key = (model.fingerprint, str(model.dtype), templates, text)
        cached = _kept.get(key)
        if cached is None:  # two threads may encode one text, and get the same
            prompts = [fill(template, text) for template in templates]
            cached = _kept.put(key, encode_candidates(model, [prompts], resume=False)[0])
        return cached

    return torch.stack([feature(text) for text in texts]).to(model.device)


def refined_words(scorer: Scorer) -> list[str]:
    """What was prompted of each negative, in their order."""
    return bytes(scorer.state["words"].cpu().numpy()).decode("utf-8").split(_BETWEEN)
