"""A tiny model with two towers, trained in seconds on drawn images and their names: a benchmark without downloads.

A four-layer convolutional network sees 32 × 32 pixels; a two-layer CLIP text tower reads bytes. Each step uses one
image of every object per group and trains on CLIP's loss with the group as the batch, L = ½ (CE over the texts of each
image + CE over the images of each text). It trains on the styles `flat` and `outline`, so the other two are covariate
shift.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from deltaenergy.benchmarks.drawn import OBJECTS, draw
from deltaenergy.core.progress import Progress
from deltaenergy.files import read_tensors, write_tensors
from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.text import unit
from deltaenergy.training.loop import PlannedStage, Step, Trainable, train
from deltaenergy.training.recipe import Recipe

NAME = "tiny"
TEMPLATES = ("a drawing of a {}.", "a photo of a {}.", "a {}.")
STYLES = ("flat", "outline")
_SIDE = 32
_PER_CLASS = 24
_EPOCHS = 10
_STEPS = 30  # of an epoch
_GROUPS = 4
_DIM = 64


class TinyModel(TowerModel):
    """The trained pair of towers behind the interface of every other model."""

    def __init__(self, module: _Towers, tokenizer: Any) -> None:
        self.name = NAME
        self.module = module.eval().requires_grad_(False)
        self.preprocessing = Preprocessing(resize=_SIDE, crop=_SIDE)
        self.text = CausalTextTower(module.text_model, module.text_projection, tokenizer)
        self.feature_dim = _DIM
        self.logit_scale = float(module.logit_scale.exp())
        self.device, self.dtype = torch.device("cpu"), torch.float32
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().numpy())
        self.fingerprint = digest.hexdigest()

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Unit features of the mean over the last map."""
        return unit(self.module.visual_projection(self.module.maps(pixels).mean(dim=(2, 3))))

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit features of the mean, and of each place of the last map."""
        maps = self.module.maps(pixels)
        patches = self.module.visual_projection(maps.flatten(2).transpose(1, 2))
        return unit(self.module.visual_projection(maps.mean(dim=(2, 3)))), unit(patches)


class _Towers(nn.Module):
    """The weights of both towers."""

    def __init__(self, tokenizer: Any) -> None:
        from transformers import CLIPTextConfig, CLIPTextModel

        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 24, 2), (24, 48, 2), (48, 96, 2), (96, 96, 1)):
            layers += [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.maps = nn.Sequential(*layers)
        self.visual_projection = nn.Linear(96, _DIM, bias=False)
        text = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
        self.text_model = getattr(text, "text_model", text)
        self.text_projection = nn.Linear(64, _DIM, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(3.0))


def load_tiny(file: Path, progress: Progress | None = None) -> TinyModel:
    """The model whose weights are in `file`, trained first if it is not there."""
    tokenizer = byte_tokenizer()
    if not file.is_file():
        module = _train(tokenizer, progress)
        write_tensors(file, module.state_dict())
    # Fresh weights, soon overwritten, must not change the user's random state.
    with torch.random.fork_rng(devices=[]):
        module = _Towers(tokenizer)
    module.load_state_dict(read_tensors(file))
    return TinyModel(module, tokenizer)


def _train(tokenizer: Any, progress: Progress | None) -> _Towers:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = _Task(tokenizer)
        recipe = Recipe(
            epochs=_EPOCHS,
            lr=3e-3,
            batch_size=1,
            weight_decay=0.05,
            warmup_lr=1e-3,
            optimizer="adamw",
            schedule="cosine-steps",
        )
        train(task, [PlannedStage(recipe)], generator=torch.Generator().manual_seed(0), progress=progress)
    return task.module


class _Task(Trainable):
    """CLIP's loss on drawn images; an example is one step, which draws its own images."""

    def __init__(self, tokenizer: Any) -> None:
        self.module: _Towers = _Towers(tokenizer)
        self.size = _STEPS
        self._pixels = _pixels()
        prompts = [[template.format(name) for name in OBJECTS] for template in TEMPLATES]
        self._tokens = [tokenizer(texts, padding=True, return_tensors="pt") for texts in prompts]
        self._truth = torch.arange(len(OBJECTS)).expand(_GROUPS, -1)

    def step(self, indices: torch.Tensor, epoch: int, phase: str, generator: torch.Generator) -> Step:
        module, truth = self.module, self._truth
        # CLIP's own bound: cosines are never multiplied by more than 100.
        module.logit_scale.data.clamp_(max=4.6052)
        chosen = torch.randint(self._pixels.shape[1], truth.shape, generator=generator)
        batch = _jitter(self._pixels[truth, chosen].flatten(0, 1), generator)
        images = unit(module.visual_projection(module.maps(batch).mean(dim=(2, 3))))
        tokens = self._tokens[int(indices[0]) % len(self._tokens)]
        texts = unit(module.text_projection(module.text_model(**tokens).pooler_output))
        logits = (module.logit_scale.exp() * images @ texts.T).view(_GROUPS, len(OBJECTS), -1)
        by_image = functional.cross_entropy(logits.flatten(0, 1), truth.flatten())
        by_text = functional.cross_entropy(logits.transpose(1, 2).flatten(0, 1), truth.flatten())
        return Step({"loss": (by_image + by_text) / 2})


def byte_tokenizer(words: Sequence[str] = ()) -> Any:
    """A byte-level tokenizer of CLIP's kind: every byte alone and at the end of a word, and a few words."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(f"{letter}</w>" for letter in alphabet)])}
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        first, *rest = [*word[:-1], f"{word[-1]}</w>"]
        for part in rest:
            merges[(first, part)] = None
            first += part
            vocabulary.setdefault(first, len(vocabulary))
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    return CLIPTokenizer(vocab=vocabulary, merges=list(merges), model_max_length=77)


def _pixels() -> torch.Tensor:
    """Drawn images (class, number, 3, side, side), with numbers that no benchmark split uses."""
    prepare = Preprocessing(resize=_SIDE, crop=_SIDE)
    arrays = [
        [prepare(draw(name, style, "pretraining", i)) for style in STYLES for i in range(_PER_CLASS)]
        for name in OBJECTS
    ]
    return torch.from_numpy(np.asarray(arrays))


def _jitter(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shift by up to three pixels and change contrast and brightness, to augment the images."""
    down, right = torch.randint(-3, 4, (2,), generator=generator).tolist()
    batch = torch.roll(batch, (down, right), dims=(2, 3))
    contrast = 0.7 + 0.6 * torch.rand(len(batch), 1, 1, 1, generator=generator)
    return contrast * batch + 0.4 * torch.randn(len(batch), 3, 1, 1, generator=generator)
