"""TANL: words that the stream's unknown images activate and its known images do not (Zhang et al., CVPR 2026).

The activation of a word is its mean probability over images, by the softmax over classes and all words; two queues have
the last L known and L unknown images of the stream, by S and a threshold θ that splits the recent scores:

    a_w = α·[act_w(unknown queue) − act_w(known queue)] + (1 − α)·[the same of the current batch]
    S   = (1/M) Σ_{m=1..M} σ( lse(s/T) − lse_{j≤m}(s_{w_j}/T) )       over the M words of largest a, largest first
    known: S > θ + g(1 − θ);   unknown: S < θ − gθ;   θ of 0, 0.01, … 0.99 with the least variance within both sides

S from only the queues (α = 1) decides what enters them; the returned score also uses the current batch. At first the
known queue has the classes' texts and the unknown queue images of noise: Gaussian, uniform, Poisson, gamma and black or
white, three of each, preprocessed as images.

M 1,000, L 300, g 0.2 and α 0.95 are the settings with which an independent reproduction matches the paper's numbers
(four open sets of ImageNet: mean FPR95 9.89 against 9.81); the authors' released script has g 0.5 and α 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Count, Share
from deltaenergy.models.base import require_towers
from deltaenergy.scores.adaptive import ADAPTERS, Adapter, Memory, confident

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier

NOISE_SIDE, NOISE_OF_EACH = 224, 3
# How many recent scores decide the threshold.
RECENT_SCORES = 20_000
THRESHOLDS = 100


@ADAPTERS.register
@dataclass(frozen=True)
class Tanl(Adapter):
    """TANL's settings."""

    name = "tanl"
    summary = "neglabel on the words that unknown images of the stream respond to"
    formula = "mean_m σ(lse(s/T) − lse_{j≤m}(s_{w_j}/T)) over the M most activated words"
    paper = "Zhang et al., CVPR 2026"
    count: Count = 1000
    length: Count = 300
    gap: Share = 0.2
    history: Share = 0.95

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        model = require_towers(classifier.model, self.name)
        words = self.encode_words(model, progress)
        noise = torch.as_tensor(np.asarray(model.encode_images(noise_images(self.seed))))
        return {"words": words.to(model.device), "noise": noise.to(model.device)}

    def begin(self, classifier: Classifier, prepared: Mapping[str, torch.Tensor]) -> Memory:
        return Activations(self, classifier.text_features.float(), prepared["words"].float(), prepared["noise"].float())


class Activations(Memory):
    """The two queues of word probabilities, and the recent scores."""

    def __init__(self, settings: Tanl, texts: torch.Tensor, words: torch.Tensor, noise: torch.Tensor) -> None:
        self.settings, self.texts, self.words = settings, texts, words.to(texts)
        noise = noise.to(texts)
        # With more classes than places, a random part is kept.
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(settings.seed))
        text_cosines, noise_cosines = texts @ texts.T, noise @ texts.T
        self.known = self._probabilities(text_cosines, texts)[order.to(texts.device)][-settings.length :]
        self.unknown = self._probabilities(noise_cosines, noise)[-settings.length :]
        chosen = self._most_activated(self.unknown.mean(dim=0) - self.known.mean(dim=0))
        self.scores = torch.cat([self._score(text_cosines, texts, chosen), self._score(noise_cosines, noise, chosen)])

    def judge(self, similarities: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Choose words by the queues, then by queues and batch together; then add confident images to the queues."""
        settings, features = self.settings, features.to(self.texts)
        similarities = similarities.to(features)
        known, unknown = self.known.mean(dim=0), self.unknown.mean(dim=0)
        first = self._score(similarities, features, self._most_activated(unknown - known))
        self.scores = torch.cat([self.scores, first])[-RECENT_SCORES:]
        surely_known, surely_unknown = confident(first, parting(self.scores), settings.gap)
        probabilities = self._probabilities(similarities, features)

        def mixed(queue: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            if not rows.any():
                return queue
            return settings.history * queue + (1 - settings.history) * probabilities[rows].mean(dim=0)

        activation = mixed(unknown, surely_unknown) - mixed(known, surely_known)
        self.known = torch.cat([self.known, probabilities[surely_known]])[-settings.length :]
        self.unknown = torch.cat([self.unknown, probabilities[surely_unknown]])[-settings.length :]
        return self._score(similarities, features, self._most_activated(activation))

    def _probabilities(self, similarities: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Probabilities of the words (B, words) by the softmax over classes and words."""
        cosines = torch.cat([similarities, features @ self.words.T], dim=1)
        return torch.softmax(cosines / self.settings.temperature, dim=1)[:, similarities.shape[1] :]

    def _most_activated(self, activation: torch.Tensor) -> torch.Tensor:
        return activation.argsort(descending=True, stable=True)[: self.settings.count]

    def _score(self, similarities: torch.Tensor, features: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return cumulative_score(similarities, features @ self.words[chosen].T, self.settings.temperature)


def cumulative_score(similarities: torch.Tensor, negatives: torch.Tensor, temperature: float = 0.01) -> torch.Tensor:
    """(1/M) Σ_m σ(lse(s/T) − lse(s_1 … s_m / T)) for classes (B, K) and negatives (B, M), largest weight first."""
    positive = torch.logsumexp(similarities / temperature, dim=1, keepdim=True)
    return torch.sigmoid(positive - torch.logcumsumexp(negatives / temperature, dim=1)).mean(dim=1)


def parting(scores: torch.Tensor) -> float:
    """The threshold of 0, 0.01, … 0.99 that splits scores with the least variance within the sides; the middle of ties.

    Variances are weighted by the sides' shares (Otsu's criterion). 0.5 if all scores are on one side.
    """
    values = scores.double().cpu().numpy()
    within = np.full(THRESHOLDS, np.inf)
    for i in range(THRESHOLDS):
        above = values >= i / THRESHOLDS
        if 0 < above.sum() < len(values):
            share = above.mean()
            within[i] = share * values[above].var() + (1 - share) * values[~above].var()
    best = np.flatnonzero(within == within.min())
    return float(best[len(best) // 2] / THRESHOLDS)


def noise_images(seed: int) -> list[npt.NDArray[np.uint8]]:
    """Three images each of Gaussian, uniform, Poisson, gamma and black-or-white noise."""
    rng = np.random.default_rng(seed)
    shape = (NOISE_OF_EACH, NOISE_SIDE, NOISE_SIDE, 3)

    def stretched(noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray((noise - noise.min()) / (noise.max() - noise.min()))

    kinds = (
        stretched(rng.normal(size=shape)),
        rng.uniform(size=shape),
        stretched(rng.poisson(5.0, size=shape).astype(np.float64)),
        stretched(rng.gamma(2.0, 1.0, size=shape)),
        (rng.uniform(size=shape) >= 0.5).astype(np.float64),
    )
    return [np.round(255 * picture).astype(np.uint8) for kind in kinds for picture in kind]
