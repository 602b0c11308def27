"""The text tower's modules in CLIP's layout, and its tokenizer, without transformers: its import takes seconds.

Names and shapes are those of `CLIPTextModelWithProjection`, which the tests compare with.
"""

from __future__ import annotations

from collections import OrderedDict
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


def _block(width: int, inner: int, heads: int) -> nn.Module:
    """A block of CLIP's layout, which `run_blocks` runs."""
    attention: Any = nn.Module()
    attention.head_dim = width // heads
    attention.scale = attention.head_dim**-0.5
    attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj = (
        nn.Linear(width, width) for _ in range(4)
    )
    block: Any = nn.Module()
    block.layer_norm1, block.self_attn = nn.LayerNorm(width, eps=NORM_EPSILON), attention
    block.layer_norm2 = nn.LayerNorm(width, eps=NORM_EPSILON)
    block.mlp = nn.Sequential(
        OrderedDict(fc1=nn.Linear(width, inner), activation_fn=nn.GELU(), fc2=nn.Linear(inner, width))
    )
    made: nn.Module = block
    return made


@dataclass(frozen=True)
class Hidden:
    """The states of all tokens after the last norm (N, L, W)."""

    last_hidden_state: torch.Tensor


class _TextModel(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner, heads = (config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
        self.embeddings: Any = nn.Module()
        for name, rows in (("token", config["vocab_size"]), ("position", config["max_position_embeddings"])):
            # Given, not drawn: to draw numbers for tensors without memory torch imports its compiler: seconds.
            self.embeddings.add_module(f"{name}_embedding", nn.Embedding(rows, width, _weight=torch.empty(rows, width)))
        self.encoder: Any = nn.Module()
        self.encoder.layers = nn.ModuleList(_block(width, inner, heads) for _ in range(config["num_hidden_layers"]))
        self.final_layer_norm = nn.LayerNorm(width, eps=NORM_EPSILON)

    def forward(self, input_ids: torch.Tensor) -> Hidden:
        """Token numbers (N, L) through the tower; causal attention."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embeddings.token_embedding(input_ids) + self.embeddings.position_embedding(places)
        later = places[None, :] > places[:, None]
        return Hidden(self.final_layer_norm(run_blocks(list(self.encoder.layers), x, later)))


class LiteText(nn.Module):
    """All weights of the text tower; `config` has its settings, under CLIP's names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        self.text_model = _TextModel(config)
        self.text_projection = nn.Linear(config["hidden_size"], config["projection_dim"], bias=False)


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
