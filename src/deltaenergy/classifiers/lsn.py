"""LSN: for each class, also texts of what it is not (Nie et al., ICLR 2024).

    positives   a coop or cocoop classifier, trained first and then frozen: s_k = z·t_k
    negatives   n_mk = text([start] v_mk1 … v_mkM [name_k] . [end]), with a context per class, m = 1..3
    L = Σ_m [ CE(20 (1 − z·n_m), y) + λ mean_k mean_{m'≠m} cos(n_mk, sg n_m'k) ]

An image must be farther from its own class's negative than from any other's, and the negatives of a class stay apart.
The score is that of `deltaenergy.scores.lsn`. Training uses only the test view.

The released code (`as_released`) takes a softmax before the cross-entropy, which then cannot fall below log(1 + (K −
1)/e) and has about a tenth of the gradient. No prefix is shared: each step runs 3·K whole prompts, whatever the batch,
so batches are large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.estimate import CostEstimate, tower_operations
from deltaenergy.classifiers.methods import Method, TrainViews, make_method, register_method
from deltaenergy.classifiers.randomness import set_normal
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, NonNegative
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.training.recipe import Phase, Recipe, Stage

POSITIVES, NEGATIVES = "positives", "negatives"
# The factor on 1 − cos in the loss.
SCALE = 20.0


class LsnClassifier(Classifier):
    """The positives' similarities, and those with the negatives of each class."""

    method: Lsn
    own_score = "lsn"
    positives: Classifier
    negative_features: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: Lsn) -> None:
        super().__init__(model, classes, method)
        self.positives = make_method(method.positives).build_empty(model, classes)
        self.prompts = method.prompts(model, self.classes)
        shape = (method.negatives, len(self.classes), method.context_length, self.prompts.tower.width)
        self.contexts = nn.Parameter(torch.zeros(shape))
        self.register_buffer("negative_features", torch.zeros(method.negatives, len(self.classes), model.feature_dim))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        self.positives.initialise(data, generator)
        set_normal(generator, self.contexts)

    def texts(self) -> torch.Tensor:
        """The texts of the positives; a copy, because a file has no tensor twice."""
        return self.positives.text_features.clone()

    def negative_texts(self) -> torch.Tensor:
        """The negatives (3, K, D) under the present contexts, with gradients."""
        return torch.stack([self.prompts(context) for context in self.contexts])

    def keep_texts(self) -> None:
        """Not the negatives for validation, which uses only the positives."""
        super().keep_texts()
        if not self.phase:
            self.negative_features = self.negative_texts()

    def end_stage(self) -> None:
        """After the first stage, keep the learned texts of the positives."""
        self.positives.eval()
        self.text_features = self.texts()

    def forward(self, x: Inputs) -> Outputs:
        """Similarities with the positives, and with the negatives once those are trained or used."""
        features = x.need(Need.FEATURES)
        if self.training and self.phase == POSITIVES:
            return self.positives(x)
        if self.training:
            # Learned texts need not be run again; cocoop's are those of the neutral image then, only for the log.
            positive = Outputs(features @ self.text_features.T, features, self.text_features)
            negatives = self.negative_texts()
        else:
            positive, negatives = self.positives(x), self.negative_features.to(features)
        compared = torch.einsum("nd,mkd->nmk", features, negatives)
        return Outputs(positive.similarities, positive.features, positive.texts, compared, negatives)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy of the positives; later, cross-entropy of the negatives and the term that separates them."""
        if outputs.negative_texts is None:
            return {"ce": self._cross_entropy(self.model.logit_scale * outputs.similarities, batch.labels)}
        assert outputs.negatives is not None
        ce = [
            self._cross_entropy(SCALE * (1 - negatives), batch.labels) for negatives in outputs.negatives.unbind(dim=1)
        ]
        apart = likeness(outputs.negative_texts, absolute=self.method.orthogonality == "abs")
        return {"ce": torch.stack(ce).sum(), "apart": self.method.weight * apart}

    def _cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.softmax(dim=1) if self.method.as_released else logits, labels)


@register_method
@dataclass(frozen=True)
class Lsn(Method):
    """`positives` is coop or cocoop; λ is `weight`. `orthogonality` is cos, or abs for |cos|, which drives negatives to
    a right angle; the paper is said to use it with a `weight` of 0.1.
    """

    name = "lsn"
    summary = "texts of what each class is not, added to a coop or cocoop classifier"
    formula = "Σ_m CE(20(1 − z·n_m), y) + λ mean cos(n_mk, n_m'k)"
    paper = "Nie et al., ICLR 2024"
    tested_with = "lsn"
    classifier = LsnClassifier
    augments = False
    # Accuracy depends only on the positives, so a search cannot choose the weight: the first, the default, is kept.
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"weight": (1.0, 0.1)}
    positives: Literal["coop", "cocoop"] = "coop"
    negatives: Count = 3
    context_length: Count = 16
    orthogonality: Literal["cos", "abs"] = "cos"
    weight: NonNegative = 1.0
    as_released: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        adam = {"optimizer": "adam", "lr": 0.002, "weight_decay": 0.0, "epochs": 100, "batch_size": 256}
        return (
            Stage((Phase(POSITIVES, ("positives.",)),), {"lr": 1e-3, "epochs": 50, "warmup_epochs": 0}),
            Stage((Phase(NEGATIVES, ("contexts",)),), {**adam, "warmup_epochs": 0}, keep_best=False),
        )

    def prompts(self, model: Model, classes: Sequence[str]) -> LearnedPrompts:
        """The prompts of one set of negatives."""
        return LearnedPrompts(require_text(model, self.name), classes, self.context_length, class_specific=True)

    def estimate(
        self, model: Model, classes: Sequence[str], images: int, recipes: Sequence[Recipe]
    ) -> CostEstimate | None:
        """The cost of the negatives, which dominate."""
        prompts, recipe = self.prompts(model, classes), recipes[1]
        tower, tokens = prompts.tower, self.negatives * prompts.tokens()
        parameters = self.negatives * len(classes) * self.context_length * tower.width
        batch = min(images, recipe.batch_size)
        # If activations are recomputed, those of one chunk are kept at a time, else those of all negatives.
        activations = prompts.activation_bytes() * (1 if prompts.recomputes() else self.negatives)
        # Similarities, logits, their softmax and gradients.
        compared = 4 * 4 * batch * self.negatives * len(classes)
        steps = recipe.epochs * -(-images // batch)
        passes = 3 if prompts.recomputes() else 2
        return CostEstimate(
            # Values, gradients and Adam's two moments, four bytes each.
            {f"{parameters / 1e6:,.1f} M parameters": 16 * parameters, "activations": activations + compared},
            f"{self.negatives * len(classes):,} whole prompts of {tokens:,} tokens",
            steps * tower_operations(tokens, tower.blocks, tower.width, passes),
            "Use fewer classes, lsn(negatives=1), a shorter context, larger batches or a GPU.",
        )


def likeness(negatives: torch.Tensor, *, absolute: bool = False) -> torch.Tensor:
    """Σ_m mean_k mean_{m'≠m} cos(n_mk, sg n_m'k) of unit rows (M, K, D); with `absolute`, of |cos|.

    Each negative is moved away from the others as they are, which is half the gradient of the sum without sg.
    """
    count = len(negatives)
    cosines = torch.einsum("akd,bkd->abk", negatives, negatives.detach())
    means = (cosines.abs() if absolute else cosines).mean(dim=2)
    others = 1 - torch.eye(count, dtype=means.dtype, device=means.device)
    return (means * others).sum() / max(1, count - 1)
