"""A tiny CLIP with random weights, made in memory: two real towers, no file, no download."""

from __future__ import annotations

from typing import Any

import torch

from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.clip import ClipModel

# Words that are one token each; all others are spelt byte by byte.
WORDS = ("a", "photo", "of", "the", "nice", "dog", "cat", "red", "blue", "car", "sketch")
SIDE = 32


def tiny_model(
    *,
    dtype: torch.dtype = torch.float32,
    feature_dim: int = 64,
    layers: int = 2,
    seed: int = 0,
    name: str = "tiny-clip",
) -> ClipModel:
    """A CLIP for 32 × 32 pixels in 16 patches. The same seed gives the same weights and fingerprint."""
    from transformers import CLIPConfig, CLIPModel

    tokenizer = _tokenizer()
    common: dict[str, Any] = {"hidden_act": "quick_gelu", "num_hidden_layers": layers, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={
            **common,
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={**common, "hidden_size": 96, "intermediate_size": 192, "image_size": SIDE, "patch_size": 8},
        projection_dim=feature_dim,
        logit_scale_init_value=4.6052,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = CLIPModel(config)
    with torch.no_grad():
        # Default initialisation gives nearly equal texts; wider weights make prompts distinct.
        for parameter_name, parameter in module.named_parameters():
            if parameter.ndim > 1 and "embedding" not in parameter_name:
                parameter.mul_(3)
    model = ClipModel(name, module, tokenizer, Preprocessing(resize=SIDE, crop=SIDE))
    return model.to(torch.device("cpu"), dtype)


def _tokenizer() -> Any:
    """A byte-level tokenizer of CLIP's kind: every byte alone and at the end of a word, and a few words."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(f"{letter}</w>" for letter in alphabet)])}
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        first, *rest = [*word[:-1], f"{word[-1]}</w>"]
        for part in rest:
            merges[(first, part)] = None
            first += part
            vocabulary.setdefault(first, len(vocabulary))
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    return CLIPTokenizer(vocab=vocabulary, merges=list(merges), model_max_length=77)
