"""What the tuning benches share: a text tower of ViT-B/16's true shapes with random weights, and CoOp's own pass."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from deltaenergy.models.text import TextTower

START, END, DOT, CONTEXT = 49406, 49407, 269, 16


class WordTokenizer:
    """One token per word: random weights need no real vocabulary, only rows of true length."""

    bos_token_id, eos_token_id = START, END

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        """Token ids with start and end."""
        rows = []
        for text in texts:
            words = [1000 + int(word[1:]) for word in text.removesuffix(".").split()]
            rows.append([START, *words, *([DOT] if text.endswith(".") else []), END])
        return {"input_ids": rows}


def text_tower() -> TextTower:
    """12 blocks, width 512, 8 heads, 49,408 tokens, 77 places."""
    torch.manual_seed(0)
    config = CLIPTextConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, projection_dim=512,
        vocab_size=49408, bos_token_id=START, eos_token_id=END, pad_token_id=1,
    )  # fmt: skip
    transformer = CLIPTextModel(config).eval().requires_grad_(False)
    projection = nn.Linear(512, 512, bias=False).requires_grad_(False)
    return TextTower(transformer, projection, WordTokenizer())


def class_names(count: int) -> list[str]:
    """Names of one to four words in the proportions of ImageNet's tokens per name (mean about 2.2)."""
    rng = random.Random(0)
    lengths = rng.choices([1, 2, 3, 4], weights=[28, 38, 22, 12], k=count)
    return [" ".join(f"w{rng.randrange(30_000)}" for _ in range(length)) for length in lengths]


def coop_pass(tower: TextTower, names: list[str], context: torch.Tensor) -> torch.Tensor:
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


def batch(classes: int, images: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit image features and labels of one training step."""
    generator = torch.Generator().manual_seed(1)
    features = nn.functional.normalize(torch.randn(images, 512, generator=generator), dim=1)
    return features, torch.randint(classes, (images,), generator=generator)


def initial_context() -> torch.Tensor:
    """16 vectors ~ N(0, 0.02²)."""
    return (0.02 * torch.randn(CONTEXT, 512, generator=torch.Generator().manual_seed(2))).requires_grad_()
