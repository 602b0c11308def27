"""ID-like: learn outlier prompts from the crops of the training images that look least like their class
(Bai et al., CVPR 2024).

    t_k = text([start] v [name_k] . [end]),   o_j = text([start] u [w_j] . [end]),   v, u contexts, w 100 learned words
    L = CE_{K+100}(ID crops) + 0.3 mean log p_in(outlier crops) + 0.2 mean_{p<q} relu(cos(o_p, o_q))

with p_in = Σ_{k≤K} p_k.

Of the random crops of an image, the 32 most similar to `a photo of a {label}.` are ID crops and the 32 least similar
are outliers; p is the softmax of L times the cosines with all K + 100 texts. A step uses all crops of one image. The
middle term is unbounded below, and its gradient never vanishes; `outlier_loss=nll` is −log p_out instead.

Crops are drawn and selected once for all epochs; the released code draws 256 new crops per image and epoch, which is
1.6 million tower runs per epoch for 400 classes with 16 shots. They are resized with bicubic interpolation, as CLIP was
trained; the released code uses torchvision's bilinear default. The score is `id-like`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.estimate import CostEstimate, tower_operations
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.classifiers.randomness import set_normal
from deltaenergy.classifiers.zero_shot import class_features
from deltaenergy.core.classes import DEFAULT_TEMPLATE
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, CountOrZero, NonNegative
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.training.recipe import Recipe


class IdLikeClassifier(Classifier):
    """Cosines with the class texts and with the outlier texts."""

    method: IdLike
    own_score = "id-like"
    takes_other_classes = True
    outlier_features: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: IdLike) -> None:
        super().__init__(model, classes, method)
        self.tower = tower = require_text(model, method.name)
        self.prompts = LearnedPrompts(tower, self.classes, method.context_length)
        self.outlier_prompts = LearnedPrompts(tower, max(1, method.outliers), method.context_length)
        self.context = nn.Parameter(torch.zeros(method.context_length, tower.width))
        self.outlier_context = nn.Parameter(torch.zeros(method.context_length, tower.width))
        self.words = nn.Parameter(torch.zeros(method.outliers, 1, tower.width))
        self.register_buffer("outlier_features", torch.zeros(method.outliers, model.feature_dim))
        # The selected crops (images, 32, D), while it is trained.
        self._known = self._strange = torch.zeros(0)
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Random contexts and words; the crops are selected."""
        set_normal(generator, self.context, self.outlier_context, self.words)
        views = getattr(data, "features", None)
        if views is None:
            raise InputError("id-like selects crops before training, so it cannot use live views. Remove views.")
        named = class_features(self.model, self.classes, [DEFAULT_TEMPLATE])[data.labels].to(views.device)
        self._known, self._strange = select_crops(views, named, self.method.selected)

    def texts(self) -> torch.Tensor:
        return self.prompts(self.context)

    def outliers(self) -> torch.Tensor:
        """The outlier texts (100, D), with gradients."""
        if not self.method.outliers:
            return self.outlier_features
        return self.outlier_prompts(self.outlier_context, names=self.words)

    def keep_texts(self) -> None:
        super().keep_texts()
        self.outlier_features = self.outliers()

    def forward(self, x: Inputs) -> Outputs:
        z = x.need(Need.FEATURES)
        texts = self.class_texts(z)
        outliers = self.outliers() if self.training else self.outlier_features.to(z)
        return Outputs(z @ texts.T, z, texts, z @ outliers.T, outliers)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """The three terms, on all selected crops of the batch's images."""
        assert outputs.negative_texts is not None and batch.indices is not None
        everything = self.model.logit_scale * torch.cat([outputs.texts, outputs.negative_texts])
        rows = batch.indices.to(self._known.device)
        known, strange = (crops[rows].flatten(0, 1).to(everything) for crops in (self._known, self._strange))
        labels = batch.labels.repeat_interleave(self.method.selected)
        log_p = torch.log_softmax(strange @ everything.T, dim=1)
        inside, outside = log_p[:, : len(self.classes)], log_p[:, len(self.classes) :]
        losses = {"ce": nn.functional.cross_entropy(known @ everything.T, labels)}
        if self.method.outliers:
            nll = self.method.outlier_loss == "nll"
            term = -torch.logsumexp(outside, dim=1) if nll else torch.logsumexp(inside, dim=1)
            losses["outliers"] = self.method.outlier_weight * term.mean()
            losses["apart"] = self.method.apart * mean_likeness(outputs.negative_texts)
        return losses


def select_crops(views: torch.Tensor, named: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of crops (N, V, D) the `count` most and the `count` least similar to each image's text (N, D): (N, count, D)."""
    if views.shape[1] < 2 * count:
        raise InputError(
            f"id-like selects {count} ID crops and {count} outliers per image, and there are {views.shape[1]}: use at "
            f"least {2 * count} crops, or a smaller `selected`."
        )
    order = torch.einsum("nvd,nd->nv", views, named).argsort(dim=1, descending=True)

    def take(columns: torch.Tensor) -> torch.Tensor:
        return views.gather(1, columns[:, :, None].expand(-1, -1, views.shape[2]))

    return take(order[:, :count]), take(order[:, -count:])


def mean_likeness(texts: torch.Tensor) -> torch.Tensor:
    """mean_{p<q} relu(cos) of unit texts (n, D): one product instead of a loop over pairs; 0 for a single text."""
    count = len(texts)
    if count < 2:
        return texts.new_zeros(())
    pairs = torch.relu(texts @ texts.T).triu(1)
    return pairs.sum() * 2 / (count * (count - 1))


@register_method
@dataclass(frozen=True)
class IdLike(Method):
    """`crops` are drawn of each image, and `selected` of them kept at either end."""

    name = "id-like"
    summary = "outlier prompts learned from the crops that look least like their class"
    formula = "CE_{K+J}(ID crops) + 0.3 mean log p_in(outlier crops) + 0.2 mean relu(cos(o_p, o_q))"
    paper = "Bai et al., CVPR 2024"
    tested_with = "id-like"
    classifier = IdLikeClassifier
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adamw",
        "lr": 0.005,
        "weight_decay": 0.01,
        "schedule": "constant",
        "warmup_epochs": 0,
        "epochs": 3,
        "batch_size": 1,
    }
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"outlier_weight": (0.1, 0.3)}
    context_length: Count = 16
    outliers: CountOrZero = 100
    crops: Count = 256
    selected: Count = 32
    outlier_weight: NonNegative = 0.3
    apart: NonNegative = 0.2
    outlier_loss: Literal["log-in", "nll"] = "log-in"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Nearest and farthest crops are not the same.
        if self.crops < 2 * self.selected:
            raise InputError(f"id-like: crops must be at least 2 · selected = {2 * self.selected}, got {self.crops}.")

    def estimate(
        self, model: Model, classes: Sequence[str], images: int, recipes: Sequence[Recipe]
    ) -> CostEstimate | None:
        """The cost of the crops: each is encoded once, and its feature is kept."""
        crops, vision = images * self.crops, getattr(model, "vision", None)
        operations = 0.0
        if vision is not None:
            operations = tower_operations(crops * (1 + vision.patch_count), vision.blocks, vision.width, 1)
        return CostEstimate(
            # The selected crops are copied.
            {f"{crops:,} crops": 4 * model.feature_dim * images * (self.crops + 2 * self.selected)},
            f"{2 * self.selected} crops of an image after {crops:,} were run through the image encoder",
            operations,
            "Use fewer crops, id-like(crops=64,selected=8), fewer shots or a GPU.",
        )

    def views_of(self, asked: int | str) -> int | str:
        return self.crops
