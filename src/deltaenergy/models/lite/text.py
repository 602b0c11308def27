"""The text tower's modules in CLIP's layout, and its tokenizer, without transformers: its import takes seconds.

Names and shapes are those of `CLIPTextModelWithProjection`, which the tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from deltaenergy.files.reading import read_json
from deltaenergy.models.towers.blocks import run_blocks

# CLIP's.
NORM_EPSILON = 1e-5


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.scale = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))


class _Perceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return result


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.self_attn = _Attention(width, heads)
        self.layer_norm2 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.mlp = _Perceptron(width, inner)


@dataclass(frozen=True)
class TextConfig:
    """Sizes of the tower, under CLIP's names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    projection_dim: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    bos_token_id: int
    eos_token_id: int


class _Embeddings(nn.Module):
    def __init__(self, tokens: int, positions: int, width: int) -> None:
        super().__init__()
        # Given, not drawn: to draw numbers for tensors without memory torch imports its compiler, which takes seconds.
        self.token_embedding = nn.Embedding(tokens, width, _weight=torch.empty(tokens, width))
        self.position_embedding = nn.Embedding(positions, width, _weight=torch.empty(positions, width))


class _Encoder(nn.Module):
    def __init__(self, blocks: int, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Block(width, inner, heads) for _ in range(blocks))


@dataclass(frozen=True)
class Hidden:
    """The states of all tokens after the last norm (N, L, W)."""

    last_hidden_state: torch.Tensor


class _TextModel(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.embeddings = _Embeddings(config.vocab_size, config.max_position_embeddings, width)
        sizes = config.intermediate_size, config.num_attention_heads
        self.encoder = _Encoder(config.num_hidden_layers, width, *sizes)
        self.final_layer_norm = nn.LayerNorm(width, eps=NORM_EPSILON)

    def forward(self, input_ids: torch.Tensor) -> Hidden:
        """Token numbers (N, L) through the tower; causal attention."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embeddings.token_embedding(input_ids) + self.embeddings.position_embedding(places)
        later = places[None, :] > places[:, None]
        return Hidden(self.final_layer_norm(run_blocks(list(self.encoder.layers), x, later)))


class LiteText(nn.Module):
    """All weights of the text tower; `config` has its settings."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = TextConfig(**{name: config[name] for name in TextConfig.__annotations__})
        self.text_model = _TextModel(self.config)
        self.text_projection = nn.Linear(self.config.hidden_size, self.config.projection_dim, bias=False)


class LiteTokenizer:
    """`tokenizer.json` with the few methods that a tower needs."""

    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "tokenizer_config.json")
        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = [settings[name] for name in ("bos_token", "eos_token", "pad_token")]
        self.backend_tokenizer.add_special_tokens(list(dict.fromkeys(names)))
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self.model_max_length = int(settings["model_max_length"])
        self.bos_token_id, self.eos_token_id, self.pad_token_id = map(self.backend_tokenizer.token_to_id, names)

    def __call__(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, truncation: bool = False, **_: Any
    ) -> dict[str, list[list[int]]]:
        """Token numbers of each text; nothing is cut or filled up."""
        found = self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [one.ids for one in found]}

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def get_added_vocab(self) -> dict[str, int]:
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return {str(token.content): int(number) for number, token in added.items()}
