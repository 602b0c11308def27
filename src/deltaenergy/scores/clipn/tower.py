"""The "no" text tower of CLIPN: a copy of a model's text tower for what an image is not (ICCV 2023).

Learned vectors, the "no" prompts, are added to the embedding of every token: in training one of them, drawn at random
for each text; afterwards their mean. On disk: `no_tower.safetensors` with `prompts` (P, W), or (P, L, W) with a vector
for each of the first L tokens, `transformer.*` and `projection.*` in the model's own layout, and `no_tower.json`, which
says what model it belongs to.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deltaenergy.core.classes import fill
from deltaenergy.core.progress import Progress
from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json, read_tensors, write_json, write_tensors
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.text import unit

WEIGHTS, RECORD = "no_tower.safetensors", "no_tower.json"
# The paper's number of prompts, and the usual deviation of fresh token embeddings.
PROMPTS, DEVIATION = 16, 0.02


class NoTower(nn.Module):
    """A trainable copy of `model`'s text tower in float32, which starts equal to it."""

    def __init__(self, model: Model, prompts: torch.Tensor) -> None:
        super().__init__()
        tower = require_text(model, "clipn")
        self.transformer: Any = copy.deepcopy(tower.transformer).float()
        self.projection: nn.Module = copy.deepcopy(tower.projection).float()
        self.prompts = nn.Parameter(prompts.to(tower.device, torch.float32))
        self._drawn: torch.Tensor | None = None
        # Tokenizer, batching, pooling and the final step are the model's; the cache is separate.
        self.text = tower.derived(transformer=self.transformer, projection=self.projection)
        self.text.token_embedding.register_forward_hook(self._add_prompt)

    @classmethod
    def start(cls, model: Model, prompts: int = PROMPTS, seed: int = 0) -> NoTower:
        """A tower before training: the model's weights, small random prompts."""
        generator = torch.Generator().manual_seed(seed)
        width = require_text(model, "clipn").width
        tower = cls(model, DEVIATION * torch.randn(prompts, width, generator=generator))
        return tower.requires_grad_(True)

    def forward(self, rows: Sequence[Sequence[int]], drawn: torch.Tensor) -> torch.Tensor:
        """Token ids of each text, and the prompt drawn for each -> unit features (N, D), with gradients."""
        self._drawn = drawn.to(self.prompts.device)
        try:
            return self.text.finish(self.text.run_tokens(rows))
        finally:
            self._drawn = None

    def class_features(
        self, classes: Sequence[str], templates: Sequence[str], progress: Progress | None = None
    ) -> torch.Tensor:
        """Unit "no" features (K, D) of the class prompts, averaged over templates as the classifier's are."""
        prompts = [fill(template, name) for name in classes for template in templates]
        features = self.text.encode(prompts, progress=progress)
        return unit(features.view(len(classes), len(templates), -1).mean(dim=1))

    def save(self, folder: Path, model: Model, record: Mapping[str, Any]) -> None:
        """Write the tower; the JSON file comes last and marks a complete folder."""
        write_tensors(folder / WEIGHTS, self.state_dict())
        write_json(folder / RECORD, {"model": model.describe(), **record})

    @classmethod
    def load(cls, path: str | Path, model: Model) -> NoTower:
        """A saved tower, from its folder or a safetensors file; a tower of another model is refused."""
        path = Path(path).expanduser()
        file = path / WEIGHTS if path.is_dir() else path
        record = file.with_name(RECORD)
        if record.is_file():
            made_with = read_json(record).get("model", {})
            if made_with.get("fingerprint") != model.fingerprint:
                raise ArtifactError(
                    f'{path}: this "no" text encoder belongs to {made_with.get("name")!r}, not to {model.name!r} '
                    "(other weights). Train one for this model with `train_no_tower`."
                )
        tensors = read_tensors(file)
        if "prompts" not in tensors:
            raise ArtifactError(f'{file} has no tensor "prompts": it is not a "no" text encoder.')
        tower = cls(model, tensors["prompts"])
        try:
            tower.load_state_dict(tensors)
        except RuntimeError as error:
            raise ArtifactError(f"{file} does not fit the text encoder of {model.name!r}: {error}") from error
        return tower.eval().requires_grad_(False)

    def _add_prompt(self, module: nn.Module, args: Any, embeddings: torch.Tensor) -> torch.Tensor:
        own = self.prompts if self.prompts.ndim == 3 else self.prompts[:, None]
        added = own.mean(dim=0) if self._drawn is None else own[self._drawn]
        return embeddings + added[..., : embeddings.shape[1], :]
