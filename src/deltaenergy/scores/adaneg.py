"""AdaNeg: confident images become proxies next to the texts (Zhang & Zhang, NeurIPS 2024).

Each class and each of NegLabel's negatives has a memory of `length` places, the first of which has its text. With S_nl
NegLabel's score (5 groups), an image goes to its nearest class if S_nl > θ + g(1 − θ), to its nearest negative if S_nl
< θ − gθ (θ = g = 0.5: above 0.75, below 0.25). A full memory drops its image of highest entropy, of the softmax over
the classes or over the negatives, for one of lower. A label's proxy is the direction of its memory:

    task      Σ_i f_i                              sample    Σ_i e^{−β(1 − cos(z, f_i))} f_i, for each image z

    score = S(z; proxies) + λ·S_nl(z),   λ = 0.1,   S = NegLabel's score with proxies instead of texts

A batch enters the memory before it is scored. Settings and rules are those of the authors' released code, without two
of its bugs: entropies are computed in half precision, where they are NaN, so nothing is ever replaced; and β, set to
5.5, is rounded down to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch.nn.functional import normalize

from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Count, Positive, PositiveShare, Range, Share
from deltaenergy.scores.adaptive import ADAPTERS, Adapter, Memory, confident
from deltaenergy.scores.neglabel import NegLabel, neglabel

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier


@ADAPTERS.register
@dataclass(frozen=True)
class AdaNeg(Adapter):
    """AdaNeg's settings."""

    name = "adaneg"
    summary = "neglabel with proxies from confident images of the stream, next to the texts"
    formula = "S(z; proxies) + λ·neglabel, proxies = directions of label text + cached images"
    paper = "Zhang & Zhang, NeurIPS 2024"
    quantile: Share = 0.95
    keep: PositiveShare = 0.15
    groups: Count = 5
    length: Annotated[int, Range(2)] = 10
    threshold: Share = 0.5
    gap: Share = 0.5
    weight: Positive = 0.1
    proxies: Literal["task", "sample"] = "task"
    sharpness: Positive = 5.5

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        names = ("words", "exclude", "noun_templates", "adjective_templates", "quantile", "keep", "seed")
        mining = NegLabel(**{name: self.params[name] for name in names})
        return {"negatives": mining.mined(classifier, progress).features}

    def begin(self, classifier: Classifier, prepared: Mapping[str, torch.Tensor]) -> Memory:
        return Proxies(self, classifier.text_features.float(), prepared["negatives"].float())


class Proxies(Memory):
    """The labels' texts and cached images. Row r < K is class r, the others are negatives."""

    def __init__(self, settings: AdaNeg, texts: torch.Tensor, negatives: torch.Tensor) -> None:
        self.settings = settings
        self.classes = len(texts)
        self.texts = torch.cat([texts, negatives.to(texts)])
        # Only labels with cached images: a memory of ten thousand labels is mostly empty.
        self.cached: dict[int, list[tuple[float, torch.Tensor]]] = {}

    def judge(self, similarities: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Add confident images to the memory, then score all."""
        settings, features = self.settings, features.to(self.texts)
        known, unknown = similarities.to(features), features @ self.texts[self.classes :].T
        static = self._score(known, unknown)
        surely_known, surely_unknown = confident(static, settings.threshold, settings.gap)
        for first, cosines, rows in ((0, known, surely_known), (self.classes, unknown, surely_unknown)):
            entropy = entropies(cosines, settings.temperature)
            for row in rows.nonzero()[:, 0].tolist():
                self._store(first + int(cosines[row].argmax()), float(entropy[row]), features[row])
        adapted = self._adapted(features)
        return self._score(adapted[:, : self.classes], adapted[:, self.classes :]) + settings.weight * static

    def _score(self, known: torch.Tensor, unknown: torch.Tensor) -> torch.Tensor:
        return neglabel(known, unknown, self.settings.groups, self.settings.temperature)

    def _store(self, label: int, entropy: float, feature: torch.Tensor) -> None:
        images = self.cached.setdefault(label, [])
        if len(images) < self.settings.length - 1:  # one place is the text's
            images.append((entropy, feature))
            return
        worst = max(range(len(images)), key=lambda i: images[i][0])
        if entropy < images[worst][0]:
            images[worst] = (entropy, feature)

    def _adapted(self, features: torch.Tensor) -> torch.Tensor:
        """Cosines (B, K + M) with the proxies; a label without images uses its text."""
        cosines = features @ self.texts.T
        for label, images in self.cached.items():
            held = torch.stack([self.texts[label], *(feature for _, feature in images)])
            if self.settings.proxies == "task":
                cosines[:, label] = features @ normalize(held.sum(dim=0), dim=0)
            else:
                weights = torch.exp(self.settings.sharpness * (features @ held.T - 1))
                cosines[:, label] = (features * normalize(weights @ held, dim=1)).sum(dim=1)
        return cosines


def entropies(cosines: torch.Tensor, temperature: float) -> torch.Tensor:
    """Entropies (B,) of the softmax of cosines (B, L) at a temperature."""
    log_p = torch.log_softmax(cosines / temperature, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)
