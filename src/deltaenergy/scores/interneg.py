"""InterNeg's negative texts: words farther from every class's *images* than the class name.

From labelled in-distribution images (Xu et al., CVPR 2026, the textual half):

    μ_k = mean image feature of class k, of unit length;   b_k = cos(t_k, μ_k), the class's own text
    keep the words with cos(w, μ_k) < b_k for all k;   rank by mean_k (b_k − cos(w, μ_k));   take the first 2,000,
    nouns and adjectives apart, in proportion to how many of each are kept

Then NegLabel's score with them, in 5 groups. NegLabel compares words with the classes' texts, while CLIP was trained to
compare texts with images, which is also how an image is scored.

The visual half of the paper is not implemented: it inverts confident unknowns of the test stream into further
negatives, so it learns from test images. A class without images sets no bound.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Count, Positive
from deltaenergy.errors import InputError
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.negatives.mining import WordPool
from deltaenergy.scores.neglabel import grouped_score
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

# Cosines of a block of candidates with all classes: 4 MB of float32.
BLOCK_ENTRIES = 1_048_576


def class_means(features: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The classes that have images, and their mean features of unit length, from features (N, D) and positions (N,)."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    present = torch.unique(labels)
    return present, torch.nn.functional.normalize(sums[present], dim=1)


def select(
    candidates: torch.Tensor,
    nouns: int,
    texts: torch.Tensor,
    means: torch.Tensor,
    count: int,
    *,
    every: bool = True,
) -> torch.Tensor:
    """Positions of at most `count` candidates (M, D) for class texts and image means (K, D), the farthest first.

    The first `nouns` candidates are nouns, the others adjectives; nouns come first in the result. Without `every`, all
    candidates are ranked, also those beyond a bound.
    """
    bounds = (texts * means).sum(dim=1)
    ranks = []
    for block in torch.split(candidates, max(1, BLOCK_ENTRIES // len(means))):
        margins = bounds - block @ means.T
        far = (margins > 0).all(dim=1) | (not every)
        ranks.append(margins.mean(dim=1).where(far, -torch.inf))
    rank = torch.cat(ranks)
    far_nouns, far_adjectives = (int(torch.isfinite(part).sum()) for part in (rank[:nouns], rank[nouns:]))
    adjectives = count * far_adjectives // max(1, far_nouns + far_adjectives)
    order = [part.argsort(descending=True, stable=True) for part in (rank[:nouns], rank[nouns:])]
    return torch.cat(
        [order[0][: min(count - adjectives, far_nouns)], nouns + order[1][: min(adjectives, far_adjectives)]]
    )


@register_score
@dataclass(frozen=True)
class InterNeg(WordPool, Score):
    """`neglabel` on words chosen with labelled images."""

    name = "interneg"
    summary = "neglabel's score on words farther from each class's images than the class name"
    formula = "mean_g σ(lse(s/T) − lse(s_g/T)), negatives with cos(w, μ_k) < cos(t_k, μ_k) for all k, farthest first"
    paper = "Xu et al., CVPR 2026 (textual half)"
    needs = frozenset({Need.FEATURES, Need.TEXTS, Need.ID_DATA, Need.LABELS})
    count: Count = 2000
    groups: Count = 5
    temperature: Positive = 0.01
    seed: int = 0

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        """Returns nothing yet; candidates are encoded and cached on disk now, with progress."""
        self.encode_words(classifier.model, progress)
        return {}

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        if inputs.labels is None:
            raise InputError(
                f"Score {self.spec!r} needs the classes of the known images. Pass a folder with one subfolder per "
                "class, or a table with a label column."
            )
        classifier, features = scorer.classifier, scorer.compared_features(inputs)
        labels = inputs.labels.to(features.device)
        present, means = class_means(features, labels, len(classifier.classes))
        if len(present) < len(classifier.classes):
            without = [name for k, name in enumerate(classifier.classes) if k not in set(present.tolist())]
            warnings.warn(
                f"{self.name}: {len(without)} of the {len(classifier.classes)} classes have no image to choose words "
                f"by, the first is {without[0]!r}.",
                stacklevel=2,
            )
        candidates = self.encode_words(classifier.model).to(features)
        texts = classifier.text_features.to(features)[present]
        nouns = len(self.pool.nouns)
        chosen = select(candidates, nouns, texts, means, self.count)
        if not len(chosen):
            warnings.warn(
                f"{self.name}: none of {len(candidates)} words is farther from every class's images than the class "
                "name, so the farthest words are used. Check the images' classes, or use neglabel.",
                stacklevel=2,
            )
            chosen = select(candidates, nouns, texts, means, self.count, every=False)
        shuffled = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(self.seed))
        return {"negatives": candidates[chosen[shuffled.to(chosen.device)]]}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return grouped_score(inputs, scorer, scorer.learned("negatives"), self.groups, self.temperature)
