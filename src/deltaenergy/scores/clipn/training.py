"""Train CLIPN's "no" text tower on images with texts; the image tower and the "yes" tower stay frozen.

For a batch of N pairs with unit image features z, texts t and "no" texts n, and q_ij = σ(L z_i·(t_j − n_j)):

    ITBO_yes = mean over matching pairs of −log q_ii          (an image says yes to its text)
    ITBO_no  = mean over the other pairs of −log(1 − q_ij)    (and no to any other)
    TSO      = mean over texts of 2 − ‖t_j − n_j‖             (yes and no texts point apart)
    L = ½ (ITBO_yes + ITBO_no + TSO)                          (Wang et al., ICCV 2023)

Pairs of different images with the same text also match and are excluded from ITBO_no. Features of images and of "yes"
texts never change, so they are computed once; a step runs only the "no" tower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch.nn.functional import softplus

from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Bounded, Count, NonNegative, Positive, Range
from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError
from deltaenergy.files import hash_strings
from deltaenergy.models.base import Model, TowerModel, require_towers
from deltaenergy.scores.clipn.tower import PROMPTS, RECORD, NoTower
from deltaenergy.source import load_images
from deltaenergy.training.checkpoints import CheckpointFolder
from deltaenergy.training.loop import PlannedStage, Step, Trainable, train
from deltaenergy.training.recipe import Recipe

# Steps are clipped to this gradient norm.
MAX_NORM = 1.0
CHECKPOINTS = ".deltaenergy-training"


@dataclass(frozen=True)
class NoRecipe(Bounded):
    """How to train. The paper leaves the optimiser open; AdamW with a cosine schedule is this project's choice."""

    epochs: Count = 10
    batch_size: Annotated[int, Range(2)] = 256  # a text needs other texts
    learning_rate: Positive = 1e-4
    weight_decay: NonNegative = 0.01
    prompts: Count = PROMPTS
    seed: int = 0

    @property
    def common(self) -> Recipe:
        return Recipe(
            epochs=self.epochs,
            lr=self.learning_rate,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            warmup_epochs=0,
            optimizer="adamw",
            schedule="cosine-steps",
            clip_norm=MAX_NORM,
        )


class YesNoLosses(NamedTuple):
    """The three parts of the loss, each a scalar."""

    itbo_yes: torch.Tensor
    itbo_no: torch.Tensor
    tso: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        """½ (ITBO_yes + ITBO_no + TSO)."""
        return (self.itbo_yes + self.itbo_no + self.tso) / 2


@dataclass(frozen=True)
class Pairs:
    """Unit image features (N, D), the text of each, and the images that could not be read."""

    features: torch.Tensor
    texts: list[str]
    unreadable: list[Unreadable] = field(default_factory=list)


def yes_no_losses(
    images: torch.Tensor,
    yes: torch.Tensor,
    no: torch.Tensor,
    logit_scale: float,
    text_ids: torch.Tensor | None = None,
) -> YesNoLosses:
    """The losses of a batch of unit features (N, D); equal `text_ids` mark equal texts (by default all differ)."""
    rather_yes = logit_scale * (images @ (yes - no).T)
    ids = torch.arange(len(images), device=images.device) if text_ids is None else text_ids.to(images.device)
    others = ids[:, None] != ids[None, :]
    denied = softplus(rather_yes)[others]
    return YesNoLosses(
        itbo_yes=softplus(-rather_yes.diagonal()).mean(),
        itbo_no=denied.mean() if len(denied) else denied.sum(),
        tso=(2 - (yes - no).norm(dim=1)).mean(),
    )


def encode_pairs(
    model: Model, images: Any, texts: Sequence[str], progress: Progress | None = None, *, batch_size: int = 32
) -> Pairs:
    """Image features with their texts; unreadable images are skipped and listed."""
    items = load_images(images)
    if len(items) != len(texts):
        raise InputError(f"There are {len(items)} images but {len(texts)} texts: each image needs its own.")
    text_of = {item.id: text for item, text in zip(items, texts)}
    encoded = require_towers(model, "clipn").encode(items, batch_size=batch_size, progress=progress)
    kept = [text_of[item.id] for item in encoded.items]
    if len(set(kept)) < 2:
        raise InputError(f"Training needs at least two different texts with readable images, got {len(set(kept))}.")
    return Pairs(torch.from_numpy(encoded.features), kept, encoded.unreadable)


def train_no_tower(
    model: Model,
    pairs: Pairs,
    folder: str | Path,
    recipe: NoRecipe | None = None,
    *,
    progress: Progress | None = None,
) -> list[dict[str, float]]:
    """Train a "no" tower for `model` and write it to `folder`, for `clipn(no_tower=folder)`.

    Args:
        model: any model; it is not changed.
        pairs: from `encode_pairs`.
        folder: for the tower, and for a checkpoint after every epoch: the same call resumes from it.
        recipe: epochs, batch size, learning rate, number of prompts, seed.
        progress: called with the number of finished steps.

    Returns:
        The mean losses of every epoch: `loss` and its parts.
    """
    recipe, folder = recipe or NoRecipe(), Path(folder)
    check_unfinished(folder)
    task = _Task(require_towers(model, "clipn"), pairs, recipe)
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, task.identity())
    generator = torch.Generator().manual_seed(recipe.seed)
    trained = train(
        task, [PlannedStage(recipe.common)], generator=generator, checkpoints=checkpoints, progress=progress
    )
    losses = [{"loss": log.loss, **log.logged} for log in trained.epochs]
    task.module.eval().save(folder, model, {"recipe": asdict(recipe), "pairs": len(pairs.texts), "losses": losses})
    checkpoints.remove()
    return losses


def check_unfinished(folder: Path) -> None:
    """Refuse to overwrite a finished tower."""
    if folder.is_file():
        raise InputError(f"{folder} is a file. Pass a folder, which is created if it does not exist.")
    if (folder / RECORD).exists():
        raise InputError(
            f'{folder} already contains a finished "no" text encoder. Choose another folder, or delete this one.'
        )


class _Task(Trainable):
    """A "no" tower in training, for the loop: fixed features, and a step on some of the pairs."""

    def __init__(self, model: TowerModel, pairs: Pairs, recipe: NoRecipe) -> None:
        self.module: NoTower = NoTower.start(model, recipe.prompts, recipe.seed)
        self.size = len(pairs.texts)
        self._model, self._recipe, self._texts = model, recipe, pairs.texts
        self._features = pairs.features.to(model.device)
        # Cloned: features of the encoder are inference tensors, which autograd does not accept.
        self._yes = model.text.encode(self._texts).float().clone()
        self._rows = model.text.tokenize(self._texts)
        number = {text: i for i, text in enumerate(dict.fromkeys(self._texts))}
        self._text_ids = torch.tensor([number[text] for text in self._texts], device=model.device)

    def identity(self) -> dict[str, Any]:
        """The identity of this run: a checkpoint of another run is refused."""
        pixels = hashlib.blake2b(self._features.cpu().numpy().data, digest_size=8).hexdigest()
        data = {"texts": hash_strings(self._texts), "images": pixels}
        return {"model": self._model.fingerprint, **data, **asdict(self._recipe)}

    def step(self, indices: torch.Tensor, epoch: int, phase: str, generator: torch.Generator) -> Step:
        drawn = torch.randint(self._recipe.prompts, indices.shape, generator=generator)
        rows = indices.to(self._features.device)
        no = self.module([self._rows[i] for i in indices.tolist()], drawn)
        parts = yes_no_losses(self._features[rows], self._yes[rows], no, self._model.logit_scale, self._text_ids[rows])
        return Step(
            {"loss": parts.total}, logged={name: float(part.detach()) for name, part in parts._asdict().items()}
        )
