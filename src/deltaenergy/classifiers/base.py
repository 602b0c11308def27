"""The Classifier: one object per method that trains, predicts and saves itself.

It turns an image's data (mostly unit features) into one similarity per class. Similarities are cosines, or logits
divided by the model's logit scale L, so a temperature means the same for every method.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from deltaenergy.core.arrays import ROW_BLOCK, round_to_block
from deltaenergy.core.classes import DEFAULT_TEMPLATE, check_classes
from deltaenergy.core.needs import OF_IMAGES, Need
from deltaenergy.core.text import HasRepr, some_names
from deltaenergy.errors import ArtifactError, InputError, UnreadableImagesError
from deltaenergy.files import hash_strings
from deltaenergy.models.base import Model, check_model
from deltaenergy.models.encoding import EncodedBatch, stream_batches
from deltaenergy.models.loading.weights import misfit
from deltaenergy.source import Source, as_source, check_has, names_no_model

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt

    from deltaenergy.classifiers.methods import Method, TrainViews

# Similarities of one block (float32) take 16 MB, which makes overhead negligible.
BLOCK_ENTRIES = 4_194_304


@dataclass(frozen=True)
class Inputs:
    """The inputs of a classifier for N images: what it needs is set, the rest may be None.

    Attributes:
        features: unit features (N, D) of the classifier's own model.
        patches: unit patch features (N, P, D) of the same model.
        states: patch states (N, P, H) before the projection to patch features.
        pixels: preprocessed images (N, 3, H, W).
        domains: the domain of each image (N,), counted from 0.
    """

    features: torch.Tensor | None = None
    patches: torch.Tensor | None = None
    states: torch.Tensor | None = None
    pixels: torch.Tensor | None = None
    domains: torch.Tensor | None = None

    def need(self, what: Need) -> torch.Tensor:
        """The tensor for `what`, or an error if it is missing."""
        given: torch.Tensor | None = getattr(self, what.name.lower())
        if given is None:
            raise InputError(f"{what.value} are needed: pass images, not features or a feature store.")
        return given


@dataclass(frozen=True)
class TrainBatch(Inputs):
    """Training images of one step: the needed data, the class of each (B,), and their indices (B,).

    `frozen` are the frozen model's unit features (B, D) of the same views, for losses that keep a prompted image tower
    near the frozen one.
    """

    labels: torch.Tensor = field(kw_only=True)
    indices: torch.Tensor | None = field(default=None, kw_only=True)
    frozen: torch.Tensor | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Outputs:
    """The outputs of a classifier for N images.

    Attributes:
        similarities: (N, K), on which CE is taken after multiplication with the model's logit scale L.
        features: the unit image features (N, D) compared with the texts.
        texts: unit text features, (K, D), or per image (N, K, D) while a method with such texts is trained.
        negatives: similarities with texts of none of the classes, if a method has them: (N, n), or (N, n, K) with n per
            class.
        negative_texts: those texts themselves, (n, D) or (n, K, D).
    """

    similarities: torch.Tensor
    features: torch.Tensor
    texts: torch.Tensor
    negatives: torch.Tensor | None = None
    negative_texts: torch.Tensor | None = None


class Classifier(HasRepr, nn.Module):
    """A model with K named classes.

    A subclass makes its parameters and buffers in `__init__`, gives them their initial values in `initialise`, and
    says in `image_features`, `texts` or `forward` what it compares, to train and to predict. If class texts are
    learned, `texts` computes them with gradients; whenever the classifier is put to use (`eval()`) they are computed
    once and kept as `text_features`.
    What is saved is `method.spec` and `state_dict()`, here and nowhere else.

    Attributes:
        base_model: the frozen model.
        model: encodes images: the base model, or one derived from it if the method puts tokens into its tower.
        method: the settings that the classifier was built from.
        record: how it was trained, as JSON values.
        text_features: unit text features (K, D); methods with texts per image keep those of a neutral image.
        phase: in training, the current phase (see `Phase`).
        generator: in training, the source of random numbers.
    """

    # What it needs to predict; a method may need more to train.
    needs_to_predict: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES})
    # The method's own score from its paper, if any.
    own_score: ClassVar[str | None] = None
    # Whether what was learned also works for other class names.
    takes_other_classes: ClassVar[bool] = False
    # Whether the best epoch on validation is kept; else the method decides (an average of epochs).
    keeps_best_epoch: ClassVar[bool] = True
    # The prompt templates, for scores that encode further texts of the classes.
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)
    text_features: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: Method) -> None:
        check_model(model, f"A classifier by {method.name}")
        super().__init__()
        self.base_model = self.model = model
        self.classes = tuple(classes)
        self.method = method
        self.record: dict[str, Any] = {}
        self.phase = ""
        self.generator: torch.Generator | None = None
        self.register_buffer("text_features", torch.zeros(len(self.classes), model.feature_dim, device=model.device))
        self.training = False

    @property
    def classes_hash(self) -> str:
        """Identity of the ordered class list."""
        return hash_strings(self.classes)

    @property
    def batch_dependent(self) -> bool:
        """Whether an image's result depends on the others of its batch; shown in reports."""
        return self.method.batch_dependent

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Set the initial parameters, drawn from `generator` or taken from the training images."""

    def image_features(self, x: Inputs) -> torch.Tensor:
        """The unit image features (N, D) that are compared with the class texts."""
        return x.need(Need.FEATURES)

    def forward(self, x: Inputs) -> Outputs:
        """Similarities, and the features and texts behind them: cosines, unless a method has others."""
        features = self.image_features(x)
        texts = self.class_texts(features)
        return Outputs(features @ texts.T, features, texts)

    if TYPE_CHECKING:

        def __call__(self, x: Inputs) -> Outputs: ...

    def texts(self) -> torch.Tensor:
        """The class texts (K, D) under the present parameters, with gradients."""
        return self.text_features

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """The terms of the loss by name: cross-entropy of L · s."""
        return {"ce": self.cross_entropy(outputs.similarities, batch.labels)}

    def logged(self) -> dict[str, float]:
        """Values to log of the last step in addition to the loss; averaged over an epoch's steps."""
        return {}

    def chosen(self) -> dict[str, float]:
        """Settings chosen from the training images, such as C, for the record."""
        return {}

    def cross_entropy(self, similarities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """CE of L · s, mean over the images."""
        return nn.functional.cross_entropy(self.model.logit_scale * similarities, labels)

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Called after epoch 1 … `epochs`."""

    def end_stage(self) -> None:
        """Called after a stage of the training."""

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation, which computes the class texts once."""
        super().train(mode)
        if not mode:
            with torch.no_grad():
                self.keep_texts()
                self.build_derived()
        return self

    def keep_texts(self) -> None:
        """Compute the texts that the classifier is used with, as they are saved."""
        self.text_features = self.texts().detach()

    def build_derived(self) -> None:
        """Build what is derived from the parameters and not saved, such as the prompted model."""

    def class_texts(self, features: torch.Tensor) -> torch.Tensor:
        """The texts to compare `features` with, learned or cached."""
        return self.texts() if self.training else self.text_features.to(features)

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Unit image features (N, D) -> similarities (N, K), for classifiers that need no more."""
        return self(Inputs(features)).similarities

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        """Unit patch features (..., D) -> similarities (..., K) with the class texts."""
        return patches @ self.text_features.T.to(patches)

    def _repr_fields(self) -> dict[str, object]:
        return {
            "classes": f"{len(self.classes)} ({some_names(self.classes)})",
            "method": self.method.spec,
            "model": repr(self.base_model.name),
        }

    def predict_proba(self, images: Any, *, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Softmax probabilities (N, K) at the model's own temperature: softmax(L·s), over these classes only.

        They say which of the classes an image is if it is one of them, not whether it is.
        """
        positions, shares = self._closest(as_source(images), len(self.classes), batch_size)
        return torch.zeros_like(shares).scatter_(1, positions, shares).numpy()

    def top_k(self, images: Any, k: int = 5, *, batch_size: int = 32) -> list[list[tuple[str, float]]]:
        """The k most probable classes of each image with their probabilities, the best first."""
        if k < 1:
            raise InputError(f"k must be at least 1, got {k!r}.")
        found = (part.tolist() for part in self._closest(as_source(images), k, batch_size))
        return [[(self.classes[i], share) for i, share in zip(*row)] for row in zip(*found)]

    def similarities(self, images: Any, *, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Similarities (N, K) for images, or for unit features given as an (N, D) array or tensor."""
        found = [similarities[:rows].cpu() for rows, similarities in self._compared(as_source(images), batch_size)]
        return torch.cat([torch.zeros(0, len(self.classes)), *found]).numpy()

    def _closest(self, source: Source, k: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions and probabilities of the k closest classes (N, k), as verdicts have them."""
        k = min(k, len(self.classes))
        parts = [(torch.zeros(0, k, dtype=torch.long), torch.zeros(0, k))]
        for rows, similarities in self._compared(source, batch_size):
            top, shares = closest_classes(similarities, self.model.logit_scale, k)
            parts.append((top[:rows].cpu(), shares[:rows].cpu()))
        return torch.cat([top for top, _ in parts]), torch.cat([shares for _, shares in parts])

    @torch.inference_mode()
    def _compared(self, source: Source, batch_size: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The number of images of a block, and their similarities, perhaps with padding rows; all must be readable."""
        self.check_takes(source)
        patches, who = Need.PATCHES in self.needs_to_predict, self.method.name
        for batch in stream_batches(self.model, source, patches=patches, batch_size=batch_size, who=who):
            if batch.unreadable:
                raise UnreadableImagesError(batch.unreadable)
            for rows, _, outputs in self.compare(batch):
                yield rows.stop - rows.start, outputs.similarities.float()

    def compare(self, batch: EncodedBatch) -> Iterator[tuple[slice, torch.Tensor, Outputs]]:
        """A batch in blocks: the rows of each, their features, and the outputs.

        An image's similarities must not depend on the size of its batch, so the last row is repeated up to a multiple
        of `ROW_BLOCK`: features and outputs may have more rows than the block. A classifier that needs patches, pixels
        or the whole batch gets the batch as it is: padding would cost as much as more images.
        """
        features = batch.features.float()
        as_it_is = bool(self.needs_to_predict & OF_IMAGES) or self.batch_dependent
        size = max(1, len(features)) if as_it_is else round_to_block(BLOCK_ENTRIES // len(self.classes))
        for start in range(0, len(features), size):
            rows = slice(start, min(start + size, len(features)))
            block = features[rows]
            if as_it_is:
                yield rows, block, self(Inputs(block, batch.patches, pixels=batch.pixels))
                continue
            lacking = -len(block) % ROW_BLOCK
            filled = torch.cat([block, block[-1:].expand(lacking, -1)]) if lacking else block
            yield rows, filled, self(Inputs(filled))

    @property
    def prompts_images(self) -> bool:
        """Whether it has learned tokens in the image tower, so its image features are not the base model's."""
        own, bare = (getattr(model, "vision_prompts", None) for model in (self.model, self.base_model))
        return own is not bare

    @property
    def takes_features(self) -> bool:
        """Whether it needs only unit features of the base model."""
        return self.needs_to_predict <= {Need.FEATURES} and not self.prompts_images

    def check_takes(self, source: Source) -> None:
        """Raise `InputError` unless the source has all that it needs, from its model."""
        check_has(source, self.needs_to_predict, self.method.name)
        if self.prompts_images and names_no_model(source):
            raise InputError(
                f"{self.method.name} has learned tokens in the image encoder, and an array does not say whether its "
                "features used them: pass images, or a feature store of its own model, build_store(classifier.model, "
                "images, folder)."
            )

    def with_classes(self, classes: str | Sequence[str]) -> Classifier:
        """The same classifier for other class names, if what was learned works for any."""
        if not self.takes_other_classes:
            raise InputError(
                f"{self.method.name} learned from images of these classes and cannot use others: tune it again."
            )
        other = self.method.build_empty(self.base_model, check_classes(classes, warn=False))
        room = other.state_dict()
        # Tensors with a row per class belong to the old names, and are computed again.
        learned = {
            name: tensor
            for name, tensor in self.state_dict().items()
            if name != "text_features" and tensor.shape == room[name].shape
        }
        other.load_state_dict(learned, strict=False)
        other.record = self.record
        return other.eval()

    def seen_through(self, model: Model) -> Classifier:
        """The same classifier with images encoded by `model`, such as another view of them."""
        other = copy.copy(self)
        other.model = model
        return other

    def describe(self) -> dict[str, Any]:
        """Its description as JSON values, next to `state_dict()` in a file."""
        return {"method": self.method.spec, "record": self.record}

    def save(self, folder: str | Path) -> None:
        """Write the classifier to a folder, which `Classifier.load` reads."""
        from deltaenergy.classifiers.saved import save_classifier

        save_classifier(self, folder)

    @staticmethod
    def load(folder: str | Path, model: Model | None = None, device: str | torch.device = "auto") -> Classifier:
        """Read a classifier that `save` wrote. `model` replaces the recorded model; both must match."""
        from deltaenergy.classifiers.saved import load_classifier

        return load_classifier(folder, model, device)

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Load parameters and buffers from a file, after checking names, shapes, types and values."""
        what = f"The saved state of {self.method.spec!r}"
        try:
            self.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise ArtifactError(f"{what} does not fit: {misfit(error)}") from error
        for name, own in self.state_dict().items():
            saved = tensors[name]
            if saved.is_floating_point() != own.is_floating_point() or not torch.isfinite(saved).all():
                raise ArtifactError(f"{what}: {name!r} must be finite numbers of type {own.dtype}, got {saved.dtype}.")
        self.requires_grad_(False)
        self.build_derived()
        return self


def check_classifier(classifier: Any, who: str) -> None:
    """Raise `InputError` unless it is a classifier."""
    if isinstance(classifier, Classifier):
        return
    if isinstance(classifier, Model):
        raise InputError(f"{who} needs a classifier, not a model: pass ZeroShotClassifier(model, classes).")
    if hasattr(classifier, "classifier"):
        raise InputError(f"{who} needs a classifier: pass the {type(classifier).__name__}'s own, `.classifier`.")
    if hasattr(classifier, "shape"):
        raise InputError(
            f"{who} needs a classifier, not an array. For similarities use functions such as "
            "deltaenergy.scores.delta_energy(similarities); for class vectors use PrecomputedClassifier."
        )
    raise InputError(f"{who} needs a classifier, such as ZeroShotClassifier or tune returns, not {classifier!r:.80}.")


def closest_classes(similarities: torch.Tensor, logit_scale: float, k: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions (N, k) of the k closest classes, best first, and their probabilities: softmax(L·s).

    The first is the closest class, also with ties.
    """
    best, top = similarities.max(dim=1, keepdim=True)
    confidence = 1 / ((similarities - best) * logit_scale).exp_().sum(dim=1, keepdim=True)
    if k == 1:
        return top, confidence
    values, positions = similarities.scatter(1, top, -torch.inf).topk(k - 1, dim=1)
    shares = ((values - best) * logit_scale).exp() * confidence
    return torch.cat([top, positions], dim=1), torch.cat([confidence, shares], dim=1)
