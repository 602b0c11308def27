"""What the tuning benches share: towers of ViT-B/16's true shapes with random weights, and the released passes."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPVisionConfig, CLIPVisionModel

from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.vision import VisionTower

START, END, DOT, CONTEXT = 49406, 49407, 269, 16


class WordTokenizer:
    """One token per word: random weights need no real vocabulary, only rows of true length."""

    bos_token_id, eos_token_id = START, END

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        """Token ids with start and end."""
        rows = []
        for text in texts:
            words = [1000 + zlib.crc32(word.encode()) % 40_000 for word in text.removesuffix(".").split()]
            rows.append([START, *words, *([DOT] if text.endswith(".") else []), END])
        return {"input_ids": rows}


def text_tower() -> CausalTextTower:
    """12 blocks, width 512, 8 heads, 49,408 tokens, 77 places."""
    torch.manual_seed(0)
    config = CLIPTextConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, projection_dim=512,
        vocab_size=49408, bos_token_id=START, eos_token_id=END, pad_token_id=1,
    )  # fmt: skip
    transformer = CLIPTextModel(config).eval().requires_grad_(False)
    projection = nn.Linear(512, 512, bias=False).requires_grad_(False)
    return CausalTextTower(transformer, projection, WordTokenizer())


class RandomClip(TowerModel):
    """Both towers of ViT-B/16's shapes; the image tower is made when it is first looked at."""

    def __init__(self) -> None:
        self.name, self.fingerprint, self.feature_dim, self.logit_scale = "random", "random", 512, 100.0
        self.preprocessing, self.text = Preprocessing(), text_tower()
        self.device, self.dtype = torch.device("cpu"), torch.float32

    @functools.cached_property
    def vision(self) -> VisionTower:  # type: ignore[override]
        """12 blocks, width 768, 196 patches."""
        torch.manual_seed(1)
        transformer = CLIPVisionModel(CLIPVisionConfig(patch_size=16, projection_dim=512)).eval().requires_grad_(False)
        projection = nn.Linear(768, 512, bias=False).requires_grad_(False)
        return VisionTower(getattr(transformer, "vision_model", transformer), projection)

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Unit features of the class token."""
        return self.vision.run(pixels, self.vision_prompts).features

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit image features and patch features."""
        outputs = self.vision.run(pixels, self.vision_prompts, patches=True)
        assert outputs.patches is not None
        return outputs.features, outputs.patches


def class_names(count: int) -> list[str]:
    """Names of one to four words in the proportions of ImageNet's tokens per name (mean about 2.2)."""
    rng = random.Random(0)
    lengths = rng.choices([1, 2, 3, 4], weights=[28, 38, 22, 12], k=count)
    return [" ".join(f"w{rng.randrange(30_000)}" for _ in range(length)) for length in lengths]


def coop_pass(tower: CausalTextTower, names: list[str], context: torch.Tensor) -> torch.Tensor:
    """Text features as CoOp computes them: all 77 tokens of every class through the whole tower."""
    rows = tower.tokenizer([f"{name}." for name in names])["input_ids"]
    ends = torch.tensor([len(row) - 1 + CONTEXT for row in rows])
    padded = [row[:1] + [0] * CONTEXT + row[1:] for row in rows]
    ids = torch.tensor([row + [0] * (77 - len(row)) for row in padded])

    def put_context(_: nn.Module, __: Any, embedded: torch.Tensor) -> torch.Tensor:
        return torch.cat([embedded[:, :1], context.expand(len(names), -1, -1), embedded[:, 1 + CONTEXT :]], dim=1)

    hook = tower.transformer.embeddings.token_embedding.register_forward_hook(put_context)
    try:
        hidden = tower.transformer(input_ids=ids).last_hidden_state
    finally:
        hook.remove()
    return tower.finish(tower.projection(hidden[torch.arange(len(names)), ends]))


def full_pass(
    prompts: LearnedPrompts,
    context: torch.Tensor,
    *,
    names: torch.Tensor | None = None,
    deep: torch.Tensor | None = None,
) -> torch.Tensor:
    """`prompts(context)` as released code computes it: 77 tokens of every prompt, through transformers' own modules."""
    tower, length = prompts.tower, prompts.context_length
    rows = [[*p.before, *[0] * p.split, *p.middle, *[0] * (length - p.split), *p.after] for p in prompts._prompts]
    ends = torch.tensor([len(row) - 1 for row in rows])
    ids = torch.tensor([row + [0] * (tower.max_length - len(row)) for row in rows])
    places = torch.tensor([p.places(length) for p in prompts._prompts])
    which = torch.arange(len(rows))[:, None]
    contexts = context if context.ndim == 3 else context.expand(len(rows), -1, -1)

    def put_context(_: nn.Module, __: Any, embedded: torch.Tensor) -> torch.Tensor:
        embedded = embedded.index_put((which, places), contexts)
        # Names that are given stand where the ids are negative.
        return embedded if names is None else embedded.index_put((ids < 0).nonzero(as_tuple=True), names.flatten(0, 1))

    def put_deep(states: torch.Tensor) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            changed = args[0].index_put((which, places), states.expand(len(rows), -1, -1))
            return (changed, *args[1:]), kwargs

        return hook

    with ExitStack() as stack:
        hooks = [tower.transformer.embeddings.token_embedding.register_forward_hook(put_context)]
        for block, states in zip(tower.transformer.encoder.layers[1:], () if deep is None else deep):
            hooks.append(block.register_forward_pre_hook(put_deep(states), with_kwargs=True))
        for hook in hooks:
            stack.callback(hook.remove)
        hidden = tower.transformer(input_ids=ids.clamp(min=0)).last_hidden_state
    return tower.finish(tower.projection(hidden[torch.arange(len(rows)), ends]))


def full_passes(prompts: LearnedPrompts, contexts: torch.Tensor, **others: Any) -> torch.Tensor:
    """`prompts.each(contexts)` as released code computes it: all prompts again for every context."""
    return torch.stack([full_pass(prompts, context, **others) for context in contexts])


def batch(classes: int, images: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit image features and labels of one training step."""
    generator = torch.Generator().manual_seed(1)
    features = nn.functional.normalize(torch.randn(images, 512, generator=generator), dim=1)
    return features, torch.randint(classes, (images,), generator=generator)


def initial_context() -> torch.Tensor:
    """16 vectors ~ N(0, 0.02²)."""
    return (0.02 * torch.randn(CONTEXT, 512, generator=torch.Generator().manual_seed(2))).requires_grad_()
