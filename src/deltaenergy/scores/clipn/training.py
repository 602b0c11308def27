"""Train CLIPN's "no" text tower on images with texts; the image tower and the "yes" tower stay as they are.

For a batch of N pairs with unit image features z, texts t and "no" texts n, and q_ij = σ(L z_i·(t_j − n_j)):

    ITBO_yes = mean over matching pairs of −log q_ii          (an image says yes to its text)
    ITBO_no  = mean over the other pairs of −log(1 − q_ij)    (and no to any other)
    TSO      = mean over texts of 2 − ‖t_j − n_j‖             (yes and no texts point apart)
    L = ½ (ITBO_yes + ITBO_no + TSO)                          (Wang et al., ICCV 2023)

Pairs of different images with the very same text match too and are left out of ITBO_no. Features of images and of
"yes" texts never change, so they are computed once; a step runs the "no" tower alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import softplus

from deltaenergy.data.inputs import load_images
from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError
from deltaenergy.files import hash_strings
from deltaenergy.models.base import Model, require_text, require_towers
from deltaenergy.progress import Progress
from deltaenergy.scores.clipn.tower import PROMPTS, RECORD, NoTower
from deltaenergy.tuning.checkpoints import Checkpoint, CheckpointFolder, TrainingError

# Steps are clipped to this gradient norm.
MAX_NORM = 1.0


@dataclass(frozen=True)
class NoRecipe:
    """How to train. The paper leaves the optimiser open; AdamW with a cosine schedule is this project's choice."""

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    prompts: int = PROMPTS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "prompts"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}.")
        if self.batch_size < 2:
            raise InputError(f"batch_size must be at least 2, got {self.batch_size!r}: a text needs others to deny.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be a positive number, got {self.learning_rate!r}.")


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


def encode_pairs(model: Model, images: Any, texts: Sequence[str], progress: Progress | None = None) -> Pairs:
    """Image features with their texts; images that cannot be read are left out and listed."""
    items = load_images(images)
    if len(items) != len(texts):
        raise InputError(f"There are {len(items)} images but {len(texts)} texts: each image needs its own.")
    text_of = {item.id: text for item, text in zip(items, texts)}
    encoded = require_towers(model, "clipn-train").encode(items, progress=progress)
    kept = [text_of[item.id] for item in encoded.items]
    if len(set(kept)) < 2:
        raise InputError(f"Training needs at least two different texts with readable images, and has {len(set(kept))}.")
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
        folder: for the tower, and for a checkpoint after every epoch: the same call goes on where it stopped.
        recipe: epochs, batch size, learning rate, number of prompts, seed.
        progress: told how many steps are done.

    Returns:
        The mean losses of every epoch: `loss` and its parts.
    """
    recipe, folder = recipe or NoRecipe(), Path(folder)
    check_unfinished(folder)
    run = _Run(model, pairs, recipe)
    checkpoints = CheckpointFolder(folder / "checkpoint", run.identity())
    losses = run.train(checkpoints, progress)
    run.tower.save(folder, model, {"recipe": asdict(recipe), "pairs": len(pairs.texts), "losses": losses})
    checkpoints.remove()
    return losses


def check_unfinished(folder: Path) -> None:
    """Refuse to write over a finished tower."""
    if folder.is_file():
        raise InputError(f"{folder} is a file. Give a folder, which is made if it does not exist.")
    if (folder / RECORD).exists():
        raise InputError(f'{folder} holds a finished "no" tower already. Choose another folder, or delete this one.')


class _Run:
    """One training run: fixed features, the tower, its optimiser."""

    def __init__(self, model: Model, pairs: Pairs, recipe: NoRecipe) -> None:
        self.model, self.recipe, self.texts = model, recipe, pairs.texts
        self.features = pairs.features.to(model.device)
        # Cloned: features of the encoder are inference tensors, which autograd does not take.
        text = require_text(model, "clipn-train")
        self.yes = text.encode(self.texts).float().clone()
        self.rows = text.tokenize(self.texts)
        number = {text: i for i, text in enumerate(dict.fromkeys(self.texts))}
        self.text_ids = torch.tensor([number[text] for text in self.texts], device=model.device)
        self.tower = NoTower.start(model, recipe.prompts, recipe.seed).train()
        self.optimizer = torch.optim.AdamW(
            self.tower.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.steps_per_epoch = len(list(self._batches(0)))

    def identity(self) -> dict[str, Any]:
        """What makes this run this run: a checkpoint of another is refused."""
        pixels = hashlib.blake2b(self.features.cpu().numpy().data, digest_size=8).hexdigest()
        data = {"texts": hash_strings(self.texts), "images": pixels}
        return {"model": self.model.fingerprint, **data, **asdict(self.recipe)}

    def train(self, checkpoints: CheckpointFolder, progress: Progress | None) -> list[dict[str, float]]:
        """Train from the last checkpoint on; the mean losses of every epoch."""
        losses: list[dict[str, float]] = []
        saved = checkpoints.load()
        if saved is not None:
            self._restore(saved)
            losses = list(saved.values["losses"])
        total = self.recipe.epochs * self.steps_per_epoch
        for epoch in range(len(losses), self.recipe.epochs):
            done = epoch * self.steps_per_epoch
            parts = []
            for step, (batch, drawn) in enumerate(self._batches(epoch), start=done):
                parts.append(self._step(batch, drawn, step / total))
                if progress is not None:
                    progress(step + 1, total)
            means = np.mean(parts, axis=0)
            losses.append(dict(zip(("loss", *YesNoLosses._fields), map(float, means))))
            checkpoints.save(Checkpoint(epoch + 1, self._tensors(), {"losses": losses}))
        return losses

    def _batches(self, epoch: int) -> Iterator[tuple[np.ndarray[Any, Any], torch.Tensor]]:
        """Shuffled pairs and a prompt for each, from seed and epoch alone, so that a resumed run draws the same."""
        rng = np.random.default_rng([self.recipe.seed, epoch])
        order = rng.permutation(len(self.texts))
        for start in range(0, len(order), self.recipe.batch_size):
            batch = order[start : start + self.recipe.batch_size]
            drawn = torch.from_numpy(rng.integers(self.recipe.prompts, size=len(batch)))
            if len(batch) > 1:
                yield batch, drawn

    def _step(self, batch: np.ndarray[Any, Any], drawn: torch.Tensor, share_done: float) -> list[float]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * (1 + math.cos(math.pi * share_done)) / 2
        rows = torch.from_numpy(batch).to(self.features.device)
        no = self.tower([self.rows[i] for i in batch], drawn)
        parts = yes_no_losses(self.features[rows], self.yes[rows], no, self.model.logit_scale, self.text_ids[rows])
        if not torch.isfinite(parts.total):
            raise TrainingError(
                f"The loss is no longer a number. Try a learning rate below {self.recipe.learning_rate:g}."
            )
        self.optimizer.zero_grad()
        parts.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.tower.parameters(), MAX_NORM)
        self.optimizer.step()
        return [value.item() for value in (parts.total.detach(), *(part.detach() for part in parts))]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Weights, and the optimiser's moments in the order of the parameters."""
        tensors = {f"tower.{name}": tensor for name, tensor in self.tower.state_dict().items()}
        for position, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{position}.{name}": torch.as_tensor(value) for name, value in state.items()}
        return tensors

    def _restore(self, saved: Checkpoint) -> None:
        self.tower.load_state_dict(
            {name.removeprefix("tower."): t for name, t in saved.tensors.items() if name.startswith("tower.")}
        )
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in saved.tensors.items():
            if name.startswith("adam."):
                _, position, moment = name.split(".")
                moments.setdefault(int(position), {})[moment] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
