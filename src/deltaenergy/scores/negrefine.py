"""NegRefine: NegLabel's score, raised if an image shows a class *and* a negative.

Ansari et al., ICCV 2025:

    score = neglabel + w · max_{p, n} σ( [cos(z, "p and n") − cos(z, n)] / T ),   w = 2, T = 0.01

over the 5 classes p and the 5 negatives n that are nearest to the image. If "dog and leash" fits better than "leash",
the leash is not a sign of an unknown image. Texts use CSP's noun templates, like the negatives.

The negatives are CSP's, but mined by the largest cosine with a class (quantile 1), without proper nouns and
subcategories of the classes, which CLIP also finds in known images. **The paper finds these words with a language
model; here WordNet is used**, by instance pointers and hyponyms of the classes (see `negatives.taxonomy`): this needs
no further model, but knows only WordNet's words. The paper's own example, "african daisy", is a flower in WordNet but
not a kind of "daisy", and stays.

The pairs are encoded on demand, because all pairs of K classes and M negatives would be millions: the text tower runs
whenever images are scored. That is up to 25 texts of 8 prompts per image; `noun_templates='the nice {}'` makes it 25
prompts. Each text is encoded separately, so its feature always has the same bits.
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

# Features of the last texts: 16 MB of 512 numbers each.
_kept = LruCache[tuple[str, str, tuple[str, ...], str], torch.Tensor](8192)
# Separates the negatives in the state; no text has this character.
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
    """NegLabel's score on refined negatives, plus the term for images that match several texts."""

    name = "negrefine"
    summary = "csp on negatives without names and kinds of the classes, fair to images that show several things"
    formula = 'neglabel + w·max_{p,n} σ([cos(z, "p and n") − cos(z, n)]/T) over the 5 nearest classes and negatives'
    paper = "Ansari et al., ICCV 2025; WordNet instead of its language model"
    needs = frozenset({Need.FEATURES, Need.TEXTS, Need.PAIRS})
    quantile: Share = 1.0
    weight: NonNegative = 2.0
    nearest: Count = 5

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        """The negatives of these classes and their words, which are later joined to classes."""
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
        """The second term of one image, from its nearest classes, nearest negatives and their cosines."""
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
    """The texts of the negatives, in order."""
    return bytes(scorer.state["words"].cpu().numpy()).decode("utf-8").split(_BETWEEN)
