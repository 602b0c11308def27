"""Shared by methods that learn deep contexts in the text tower and tokens in the image tower.

    t_k = text([start] v_1 … v_M [words] [name_k] . [end]),   z = image(x, p),   s_k = z · t_k

Before each of the first J blocks the states at the context's places are replaced by that block's vectors v, and the
image tower's last states by its tokens p; later blocks let both flow. The towers are frozen. In evaluation, images are
encoded by the classifier's own model, which has the learned tokens and its own fingerprint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.classifiers.estimate import CostEstimate, tower_operations
from deltaenergy.classifiers.methods import Method
from deltaenergy.classifiers.randomness import set_normal
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import CountOrZero
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_text, require_towers, require_vision
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.vision import VisionTower
from deltaenergy.training.recipe import Recipe

# The context starts as the first of these words; the rest stays between context and name.
WORDS = ("a", "photo", "of", "a")
PAPER_DEPTH = 9


class TokenClassifier(Classifier, ABC):
    """Cosines of prompted image features with the texts of deep contexts."""

    method: TokenMethod
    takes_other_classes = True

    def __init__(self, model: Model, classes: Sequence[str], method: TokenMethod) -> None:
        super().__init__(model, classes, method)
        self.tower = require_text(model, method.name)
        self.depth = method.depth_on(model)
        length = method.context_length
        self.prompts = LearnedPrompts(self.tower, self.classes, length, between=" ".join(WORDS[length:]))
        self.context = nn.Parameter(torch.zeros(length, self.tower.width))
        self.deep = nn.Parameter(torch.zeros(self.depth - 1, length, self.tower.width))

    @abstractmethod
    def image_tokens(self) -> torch.Tensor | None:
        """The tokens (J, n, H) of the image tower under the present parameters, with gradients; None for none."""

    def start_contexts(self, generator: torch.Generator) -> None:
        """The first context as words, the deeper ones ~ N(0, 0.02²)."""
        (ids,) = self.tower.words([" ".join(WORDS[: self.method.context_length])])
        # One token per word, unless the tokenizer splits short words.
        self.context.data.copy_(self.tower.embed(ids[: self.method.context_length]))
        set_normal(generator, self.deep)

    def texts(self) -> torch.Tensor:
        return self.prompts(self.context, deep=self.deep)

    def image_features(self, x: Inputs) -> torch.Tensor:
        """Prompted unit features: as given in evaluation, else from pixels."""
        tokens = self.image_tokens()
        if tokens is None or (x.features is not None and not self.training):
            return x.need(Need.FEATURES)
        return require_vision(self.base_model, self.method.name).run(x.need(Need.PIXELS), tokens).features

    def build_derived(self) -> None:
        """The model with the learned tokens."""
        tokens = self.image_tokens()
        if tokens is not None:
            self.model = require_towers(self.base_model, self.method.name).with_vision_prompts(tokens)


@dataclass(frozen=True)
class TokenMethod(Method):
    """Base of the methods that learn in both towers.

    `depth` is J; 0 means the papers' 9, or the number of blocks if that is smaller.
    """

    takes_terms = True
    depth: CountOrZero = 0

    @property
    @abstractmethod
    def context_length(self) -> int:
        """M, the number of context vectors in each block."""

    @property
    @abstractmethod
    def tokens_of_image(self) -> int:
        """n, the number of tokens in each block of the image tower."""

    @property
    def needs_to_train(self) -> frozenset[Need]:
        """Pixels, if there are tokens to be learned in the image tower."""
        return frozenset({Need.PIXELS if self.tokens_of_image else Need.FEATURES})

    @property
    def needs_to_validate(self) -> frozenset[Need]:
        """As to train: the tokens change with every step."""
        return self.needs_to_train

    def depth_on(self, model: Model) -> int:
        """J, which must not be more than the blocks of a tower."""
        blocks = {"text": require_text(model, self.name).blocks}
        if self.tokens_of_image:
            blocks["image"] = require_vision(model, self.name).blocks
        tower, fewest = min(blocks.items(), key=lambda one: one[1])
        if self.depth > fewest:
            raise InputError(
                f"{self.name}: depth {self.depth} is more than the {fewest} blocks of the {tower} encoder of "
                f"{model.name!r}. Use a depth of at most {fewest}."
            )
        return self.depth or min(PAPER_DEPTH, fewest)

    def estimate(
        self, model: Model, classes: Sequence[str], images: int, recipes: Sequence[Recipe]
    ) -> CostEstimate | None:
        """The cost of the prompted image tower, which dominates; the towers must have enough blocks."""
        self.depth_on(model)
        if not self.tokens_of_image:
            return None
        return image_tower_estimate(require_vision(model, self.name), self.tokens_of_image, 1, images, recipes)


def image_tower_estimate(
    vision: VisionTower, tokens: int, runs: int, images: int, recipes: Sequence[Recipe]
) -> CostEstimate:
    """The cost to train through the image tower, by runs per image and learned tokens."""
    batch = min(images, max(recipe.batch_size for recipe in recipes))
    kept = vision.kept_bytes(batch, tokens)
    seen = images * (1 + vision.patch_count + tokens) * sum(recipe.epochs for recipe in recipes)
    passes = 3 if vision.recomputes(batch, tokens) else 2
    return CostEstimate(
        {"activations": runs * kept},
        f"the image tower {f'{runs} times ' if runs > 1 else ''}forth and back on {batch:,} images",
        tower_operations(runs * seen, vision.blocks, vision.width, passes),
        "Use smaller batches (batch_size in `recipe`), fewer epochs or a GPU.",
    )
