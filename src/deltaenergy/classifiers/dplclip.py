"""DPLCLIP: a network that reads the context off the images of a domain (Zhang et al., Transactions of JSAI 2023).

    c_e = mean_{i∈e} MLP(r z_i),   MLP: D → 512 → 512 → M·W, after each of the first two: dropout 0.1, then relu
    s_ik = z_i · t_k(c_{e(i)}),   L = CE(L · s, y)

In training, the mean is over the batch's images of a domain, and each image is compared with the texts of its domain.
`serve` sets the context used afterwards:

    train   the mean over the training images, domains weighted alike: stored, and then a coop classifier (default)
    image   each image's own MLP(r z)
    batch   the mean over the batch, as released: results then depend on the batch

The released input is the image feature before normalisation, whose length is about 10 for CLIP: r is `input_scale`.
The released code joins the texts of all domains to E·K columns, and only the first domain's images find their class in
the column of their label (`as_released`); with one domain that is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs
from deltaenergy.classifiers.methods import Method, TrainViews, register_method, warn_of_one_domain
from deltaenergy.classifiers.randomness import dropout
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, Positive, Range
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.prompts import LearnedPrompts

HIDDEN = 512
INITIAL_BIAS = 0.01
# Images whose text features are computed together by serve=image; each has K of them.
IMAGES_AT_ONCE = 16


class DplClipClassifier(Classifier):
    """Cosines with the texts of a context that a network computes from images."""

    method: DplClip
    takes_other_classes = True
    context: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: DplClip) -> None:
        super().__init__(model, classes, method)
        tower = require_text(model, method.name)
        self.prompts = LearnedPrompts(tower, self.classes, method.context_length)
        sizes = (model.feature_dim, HIDDEN, HIDDEN, method.context_length * tower.width)
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.zeros(b, a)) for a, b in itertools.pairwise(sizes))
        self.b1, self.b2, self.b3 = (nn.Parameter(torch.zeros(size)) for size in sizes[1:])
        self.register_buffer("context", torch.zeros(method.context_length, tower.width))
        # Features and domains of the training images, from which the served context is made.
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Xavier-uniform weights, biases 0.01."""
        warn_of_one_domain(self.method.name, data, "it learns one context for all")
        for weight in (self.w1, self.w2, self.w3):
            bound = (6 / (weight.shape[0] + weight.shape[1])) ** 0.5
            weight.data.copy_((torch.rand(weight.shape, generator=generator) * 2 - 1) * bound)
        for bias in (self.b1, self.b2, self.b3):
            bias.data.fill_(INITIAL_BIAS)
        self._seen = data.mean_features(), data.domains

    def contexts(self, features: torch.Tensor) -> torch.Tensor:
        """The network's output for each image: (N, M, W)."""
        x = self.method.input_scale * features.to(self.w1)
        for weight, bias in ((self.w1, self.b1), (self.w2, self.b2)):
            x = x @ weight.T + bias
            if self.training:
                x = dropout(x, self.method.dropout, self.generator)
            x = torch.relu(x)
        return (x @ self.w3.T + self.b3).view(-1, *self.context.shape)

    def domain_contexts(self, features: torch.Tensor, domains: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean context of each domain that occurs (E, M, W), and each image's domain (N,)."""
        contexts = self.contexts(features)
        present, own = torch.unique(domains, return_inverse=True)
        return torch.stack([contexts[own == e].mean(dim=0) for e in range(len(present))]), own

    def texts(self) -> torch.Tensor:
        """The text features of the training images' context, computed while these are available."""
        if self._seen is not None:
            with torch.no_grad():
                self.context.copy_(self.domain_contexts(*self._seen)[0].mean(dim=0))
        return self.prompts(self.context)

    def end_stage(self) -> None:
        """Keep the context of the training images, and drop the images."""
        self.eval()
        self._seen = None

    def forward(self, x: Inputs) -> Outputs:
        """Cosines with the texts of the image's domain, or as `serve` says."""
        features = x.need(Need.FEATURES)
        if self.training:
            return self._train_step(features, x.need(Need.DOMAINS))
        texts = self.text_features.to(features)
        serve = self.method.serve if len(features) else "train"
        if serve == "batch":
            texts = self.prompts(self.contexts(features).mean(dim=0)).to(features)
        elif serve == "image":
            parts = [
                torch.einsum("bd,bkd->bk", block, self.prompts.each(self.contexts(block)).to(block))
                for block in torch.split(features, IMAGES_AT_ONCE)
            ]
            return Outputs(torch.cat(parts), features, texts)
        return Outputs(features @ texts.T, features, texts)

    def _train_step(self, features: torch.Tensor, domains: torch.Tensor) -> Outputs:
        contexts, own = self.domain_contexts(features, domains)
        texts = self.prompts.each(contexts)
        if self.method.as_released:
            joined = texts.flatten(0, 1)
            return Outputs(features @ joined.T, features, joined)
        return Outputs(torch.einsum("bd,bkd->bk", features, texts[own]), features, texts[own])


@register_method
@dataclass(frozen=True)
class DplClip(Method):
    """r is `input_scale`; `serve` is train, image or batch."""

    name = "dplclip"
    summary = "a network that makes the context from a domain's images"
    formula = "CE(L·z·t_k(c_e), y), c_e = mean_{i∈e} MLP(r z_i)"
    paper = "Zhang et al., Transactions of JSAI 2023"
    classifier = DplClipClassifier
    needs_to_train = frozenset({Need.FEATURES, Need.DOMAINS})
    takes_terms = True
    context_length: Count = 16
    dropout: Annotated[float, Range(0, 0.99)] = 0.1
    input_scale: Positive = 10.0
    serve: Literal["train", "image", "batch"] = "train"
    as_released: bool = False

    @property
    def batch_dependent(self) -> bool:
        """Only serve=batch depends on the batch."""
        return self.serve == "batch"
