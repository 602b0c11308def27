"""Write CLIP checkpoints with random weights to disk, in the format the hub serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# The tokenizer's byte alphabet: every byte alone and at the end of a word, then common words of the tests.
WORDS = ["a", "photo", "of", "dog", "cat", "the", "sketch", "red", "blue", "car"]


def write_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE tokenizer in CLIP's format; returns the vocabulary size."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    alphabet = sorted(ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, *(f"{letter}</w>" for letter in alphabet)])}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            pair = (parts[0], parts[1])
            parts = ["".join(pair), *parts[2:]]
            if pair not in merges:
                merges.append(pair)
                vocab.setdefault(parts[0], len(vocab))
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocab[special] = len(vocab)
    CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=77).save_pretrained(folder)
    return len(vocab)


def write_clip(
    folder: Path,
    *,
    hidden_act: str = "quick_gelu",
    image_size: int = 32,
    patch_size: int = 8,
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    text_width: int = 24,
    projection: int = 16,
    seed: int = 0,
    legacy_eos: bool = False,
    text_length: int = 77,
) -> Path:
    """A CLIP checkpoint with random weights. Returns `folder`."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder)
    common: dict[str, Any] = {"hidden_act": hidden_act, "num_hidden_layers": layers}
    config = CLIPConfig(
        text_config={
            **common,
            "vocab_size": vocabulary,
            "hidden_size": text_width,
            "intermediate_size": 4 * text_width,
            "num_attention_heads": heads,
            "max_position_embeddings": text_length,
            "bos_token_id": vocabulary - 2,
            # Checkpoints from before 2023 carry the wrong end token 2, and are pooled at the largest id instead.
            "eos_token_id": 2 if legacy_eos else vocabulary - 1,
        },
        vision_config={
            **common,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_attention_heads": heads,
            "image_size": image_size,
            "patch_size": patch_size,
        },
        projection_dim=projection,
        logit_scale_init_value=4.6052,
    )
    torch.manual_seed(seed)
    model = CLIPModel(config)
    with torch.no_grad():
        # Default initialisation gives nearly equal texts; wider weights make prompts tell apart.
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embedding" not in name:
                parameter.mul_(3)
    model.save_pretrained(folder)
    size = {"height": image_size, "width": image_size}
    CLIPImageProcessorPil(size={"shortest_edge": image_size}, crop_size=size).save_pretrained(folder)
    return folder
