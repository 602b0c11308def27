"""GalLoP: several prompts for the whole image, and several for its best patches (Lafon et al., ECCV 2024).

    g_km = z·t^g_km,   l_pkm = u'_p·t^l_km,   u'_p = norm(Proj(V x_p)),   m = 1..4
    l̄_km = mean of the k_m largest l_pkm over the patches, for each class and prompt,   k = 5, 10, 15, 20
    L = CE(L · mean of the kept g_km) + mean_m CE(L · l̄_km),   s = ½ (mean_m g + mean_m l̄)

t^g and t^l are texts of four learned contexts each, initialised as words; V, initialised as the identity, maps patch
states x_p before the model's projection (`projection=hidden`), or unit patch features (`feature`, the only option for a
tower that is not a vision transformer). In training each image uses one global prompt, drawn each time (prompt
dropout); prompts start equal, and only dropout and k make them differ. The score is `gallop`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.classifiers.prompt import initial_context
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, Share, Words
from deltaenergy.models.base import Model, require_text, require_towers, require_vision
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.text import unit


@dataclass(frozen=True)
class GallopOutputs(Outputs):
    """`whole` are g as (N, 4, K), `parts` are l̄ as (N, 4, K)."""

    whole: torch.Tensor = field(kw_only=True)
    parts: torch.Tensor = field(kw_only=True)


class GallopClassifier(Classifier):
    """Global and local prompts, and the map V of the patches."""

    method: Gallop
    own_score = "gallop"
    takes_other_classes = True
    needs_to_predict = frozenset({Need.FEATURES, Need.PATCHES})
    global_features: torch.Tensor
    local_features: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: Gallop) -> None:
        super().__init__(model, classes, method)
        self.tower, towers = require_text(model, method.name), require_towers(model, method.name)
        if method.projection == "hidden":
            require_vision(model, f"{method.name}(projection=hidden)")
        self.hidden = towers.vision if method.projection != "feature" else None
        count, length = len(method.top_k), len(self.tower.words([method.context_init])[0])
        self.prompts = LearnedPrompts(self.tower, self.classes, length, full_stop=False)
        self.global_contexts = nn.Parameter(torch.zeros(count, length, self.tower.width))
        self.local_contexts = nn.Parameter(torch.zeros(count, length, self.tower.width))
        side = model.feature_dim if self.hidden is None else self.hidden.width
        self.patch_map = nn.Parameter(torch.zeros(side, side))
        for name in ("global_features", "local_features"):
            self.register_buffer(name, torch.zeros(count, len(self.classes), model.feature_dim))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """All prompts start as the same words, V as the identity."""
        for contexts in (self.global_contexts, self.local_contexts):
            contexts.data.copy_(initial_context(self.tower, tuple(contexts.shape), self.method.context_init, generator))
        self.patch_map.data.copy_(torch.eye(len(self.patch_map)))

    def texts(self) -> torch.Tensor:
        """The direction of the mean global text, for code that needs one text per class."""
        return unit(self.prompts.each(self.global_contexts).mean(dim=0))

    def keep_texts(self) -> None:
        super().keep_texts()
        self.global_features = self.prompts.each(self.global_contexts)
        self.local_features = self.prompts.each(self.local_contexts)

    def build_derived(self) -> None:
        """V on patch states is part of the image tower, so the model differs from the plain one."""
        if self.hidden is not None:
            digest = hashlib.blake2b(self.patch_map.detach().cpu().numpy().tobytes(), digest_size=16).hexdigest()
            mapped = self.hidden.with_patch_map(self.patch_map.detach().clone())
            self.model = self.base_model.derived(f"patch-map-{digest}", vision=mapped)

    def _mapped(self, x: Inputs) -> torch.Tensor:
        """u'_p (N, P, D): from the frozen model's states while V is learned, else from patches of `self.model`."""
        if x.states is None and not self.training:
            patches = x.need(Need.PATCHES)
            return patches if self.hidden is not None else unit(patches @ self.patch_map.T.to(patches))
        states = x.need(Need.STATES)
        if self.hidden is not None:
            return self.hidden.project(states @ self.patch_map.T)
        vision = require_towers(self.base_model, self.method.name).vision
        # Without patch states, the states are the patch features.
        return unit((states if vision is None else vision.project(states)) @ self.patch_map.T)

    def forward(self, x: Inputs) -> Outputs:
        """½ (mean_m g + mean_m l̄)."""
        z, patches = x.need(Need.FEATURES), self._mapped(x)
        if self.training:
            whole, parts = self.prompts.each(self.global_contexts), self.prompts.each(self.local_contexts)
        else:
            whole, parts = self.global_features.to(z), self.local_features.to(z)
        # One prompt at a time: similarities of all patches with all classes are many.
        pooled = [top_mean(patches @ text.T, k) for text, k in zip(parts, self.method.top_k)]
        compared, best = torch.einsum("nd,mkd->nmk", z, whole), torch.stack(pooled, dim=1)
        similarities = (compared.mean(dim=1) + best.mean(dim=1)) / 2
        return GallopOutputs(similarities, z, self.text_features.to(z), whole=compared, parts=best)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy of the kept global prompts, and of every local prompt."""
        assert isinstance(outputs, GallopOutputs)
        count = outputs.whole.shape[1]
        kept = max(count - int(self.method.dropout * count), 1)
        drawn = torch.randint(count, (len(batch.labels), kept), generator=self.generator).to(batch.labels.device)
        chosen = outputs.whole.gather(1, drawn[:, :, None].expand(-1, -1, len(self.classes))).mean(dim=1)
        local = [self.cross_entropy(one, batch.labels) for one in outputs.parts.unbind(dim=1)]
        return {"global": self.cross_entropy(chosen, batch.labels), "local": torch.stack(local).mean()}

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        """mean_m l_p: cosines of the patches with the mean local text, which is shorter than 1."""
        mapped = patches if self.hidden is not None else unit(patches @ self.patch_map.T.to(patches))
        return mapped @ self.local_features.mean(dim=0).T.to(patches)


def top_mean(similarities: torch.Tensor, k: int) -> torch.Tensor:
    """The mean of the k largest entries (or of all, if they are fewer) over the patches: (N, P, K) -> (N, K)."""
    return similarities.topk(min(k, similarities.shape[1]), dim=1).values.mean(dim=1)


@register_method
@dataclass(frozen=True)
class Gallop(Method):
    """One global and one local prompt for each entry of `top_k`; a share `dropout` of the global prompts is dropped."""

    name = "gallop"
    summary = "several prompts for the whole image and several for its best patches"
    formula = "CE(L·mean of kept z·t^g_m) + mean_m CE(L·top-k_m mean of u'_p·t^l_m)"
    paper = "Lafon et al., ECCV 2024"
    tested_with = "gallop"
    classifier = GallopClassifier
    needs_to_train = frozenset({Need.FEATURES, Need.STATES})
    # Patches of the frozen model are without V.
    needs_to_validate = needs_to_train
    recipe: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.01, "warmup_epochs": 0}
    top_k: tuple[Count, ...] = (5, 10, 15, 20)
    dropout: Share = 0.75
    projection: Literal["auto", "hidden", "feature"] = "auto"
    context_init: Words = "a photo of a"
