"""PLOT: several contexts per class, matched with an image's patches by optimal transport (Chen et al., ICLR 2023).

    s_k = Σ_pn T_pn u_p·t_kn,   T = argmax_T Σ T_pn u_p·t_kn + ε H(T), rows 1/P, columns 1/N,   L = CE(L · s_k, y)

u_p are the unit patch features, t_kn the texts of N learned contexts; no gradient flows through the plan T. With
`pooled` (as released for ImageNet) the image feature is also compared, s_k = ½ (z·t̄_k + Σ T u·t) with t̄_k the unit
mean of the texts before normalisation, and training is at 2L.

The paper's patches are those of a ResNet's attention pool. On a vision transformer patches take the value path of the
last block, which is our choice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.estimate import CostEstimate
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.classifiers.randomness import set_normal
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, Positive
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.training.recipe import Recipe

MAX_STEPS = 100
ROW_ERROR = 1e-6
# Similarities whose plans are computed together: about 100 MB with intermediates.
ENTRIES_AT_ONCE = 2**22


class TextsClassifier(Classifier, ABC):
    """Base of the classifiers with several texts per class.

    Attributes:
        class_prompts: in use, the unit texts (N, K, D) that the contexts give.
    """

    takes_other_classes = True
    class_prompts: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: Method) -> None:
        super().__init__(model, classes, method)
        self.tower = require_text(model, method.name)
        # The mean over texts is taken before normalisation.
        self.raw_tower = self.tower.derived(finish=torch.Tensor.float)

    @abstractmethod
    def raw_texts(self) -> torch.Tensor:
        """The texts (N, K, D) of the present contexts before they are finished, with gradients."""

    def all_texts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit texts (N, K, D), and the unit mean (K, D) of the raw texts: learned or cached."""
        if not self.training:
            return self.class_prompts, self.text_features
        raw = self.raw_texts()
        return self.tower.finish(raw), self.tower.finish(raw.mean(dim=0))

    def build_derived(self) -> None:
        """The texts as they are used."""
        with torch.no_grad():
            raw = self.raw_texts()
            self.class_prompts, self.text_features = self.tower.finish(raw), self.tower.finish(raw.mean(dim=0))


class PlotClassifier(TextsClassifier):
    """Patches are transported to the texts of every class."""

    method: Plot
    needs_to_predict = frozenset({Need.FEATURES, Need.PATCHES})

    def __init__(self, model: Model, classes: Sequence[str], method: Plot) -> None:
        super().__init__(model, classes, method)
        self.prompts = LearnedPrompts(self.raw_tower, self.classes, method.context_length)
        self.contexts = nn.Parameter(torch.zeros(method.prompts, method.context_length, self.tower.width))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        set_normal(generator, self.contexts)

    def raw_texts(self) -> torch.Tensor:
        """One text per context and class."""
        return self.prompts.each(self.contexts)

    def forward(self, x: Inputs) -> Outputs:
        """The value of the transport of patches to texts."""
        features, patches = x.need(Need.FEATURES), x.need(Need.PATCHES)
        texts, pooled = (part.to(patches) for part in self.all_texts())
        carried = transported(torch.einsum("bpd,nkd->bkpn", patches, texts), self.method.epsilon)
        if self.method.pooled:
            carried = (features @ pooled.T + carried) / 2
        return Outputs(carried, features, pooled)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy at L, or at 2L of half the sum."""
        factor = 2 if self.method.pooled else 1
        return {"ce": self.cross_entropy(factor * outputs.similarities, batch.labels)}


@register_method
@dataclass(frozen=True)
class Plot(Method):
    """`prompts` is N, the number of contexts; `epsilon` the weight of the plan's entropy."""

    name = "plot"
    summary = "several contexts, matched with an image's patches by optimal transport"
    formula = "CE(L·Σ_pn T_pn u_p·t_kn, y), T the transport plan with entropy ε"
    paper = "Chen et al., ICLR 2023"
    classifier = PlotClassifier
    needs_to_train = frozenset({Need.FEATURES, Need.PATCHES})
    recipe: ClassVar[Mapping[str, Any]] = {"epochs": 200, "batch_size": 128}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"epsilon": (0.05, 0.1)}
    prompts: Count = 4
    context_length: Count = 16
    epsilon: Positive = 0.1
    pooled: bool = False

    def estimate(
        self, model: Model, classes: Sequence[str], images: int, recipes: Sequence[Recipe]
    ) -> CostEstimate | None:
        """The cost of the similarities of all patches with all texts, if the number of patches is known."""
        vision = getattr(model, "vision", None)
        if vision is None:
            return None
        batch = min(images, recipes[0].batch_size)
        entries = batch * len(classes) * vision.patch_count * self.prompts
        return CostEstimate(
            # Similarities, plans, their products and gradients, four bytes each.
            {"similarities and plans": 16 * entries},
            f"the transport of {vision.patch_count} patches of {batch:,} images to {len(classes):,} classes",
            0,
            "Use smaller batches (batch_size in `recipe`), or fewer prompts.",
        )


def transported(similarities: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Σ_pn T_pn s_pn for similarities (B, K, P, N) -> (B, K). No gradient flows through T."""
    per_image = max(1, similarities[:1].numel())
    with torch.no_grad():
        parts = torch.split(similarities.detach(), max(1, ENTRIES_AT_ONCE // per_image))
        plans = torch.cat([transport_plan(part, epsilon) for part in parts])
    return (plans * similarities).sum(dim=(-2, -1))


def transport_plan(similarities: torch.Tensor, epsilon: float) -> torch.Tensor:
    """T for similarities (..., P, N), in at least single precision: columns exact, rows to 1e-6 if steps suffice.

    By Sinkhorn's iteration (Cuturi, NeurIPS 2013) on logarithms, where nothing underflows: in turn

        f_p = −log P − lse_n(s_pn/ε + g_n),   g_n = −log N − lse_p(s_pn/ε + f_p),   T = exp(s/ε + f + g)

    Every problem stops on its own when its rows are exact to 1e-6, or after 100 steps, the limit in PLOT's code, so no
    image depends on its batch. A few parts with very different cosines can need more: four parts and four texts whose
    cosines differ by 0.6 miss by up to 1e-3 at ε = 0.05. Many patches do not.
    """
    scaled = (similarities if similarities.dtype == torch.float64 else similarities.float()) / epsilon
    rows, columns = (math.log(count) for count in scaled.shape[-2:])

    def of_rows(g: torch.Tensor) -> torch.Tensor:
        return -rows - torch.logsumexp(scaled + g, dim=-1, keepdim=True)

    def of_columns(f: torch.Tensor) -> torch.Tensor:
        return -columns - torch.logsumexp(scaled + f, dim=-2, keepdim=True)

    f = of_rows(torch.zeros_like(scaled[..., :1, :]))
    g = of_columns(f)
    goes_on = torch.ones_like(scaled[..., :1, :1], dtype=torch.bool)
    for _ in range(MAX_STEPS - 1):
        better = of_rows(g)
        # With the current f and g a row sums to exp(f − better)/P.
        error = (torch.expm1(f - better).abs() * math.exp(-rows)).amax(dim=-2, keepdim=True)
        goes_on = goes_on & (error > ROW_ERROR)
        if not goes_on.any():
            break
        f = torch.where(goes_on, better, f)
        g = torch.where(goes_on, of_columns(f), g)
    return (scaled + f + g).exp()
