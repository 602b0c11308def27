"""Write checkpoints of SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP and ALIGN with random weights."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SIDE = 32
WORDS = ("a", "photo", "of", "dog", "cat", "the", "red", "blue", "car", "zebra", "ship", "狗", "猫")
LETTERS = string.ascii_letters + string.digits + ".,;!'{}üïé"
_TEXT = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": SIDE,
    "patch_size": 8,
}  # fmt: skip


def write_siglip(folder: Path, *, second: bool = False, length: int = 12) -> Path:
    """SigLIP with a unigram tokenizer, or SigLIP 2 with Gemma's kind. Texts and images have 32 numbers."""
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    vocabulary = _gemma_tokenizer(folder) if second else _siglip_tokenizer(folder, length)
    config = SiglipConfig(
        text_config={
            **_TEXT, "vocab_size": vocabulary, "max_position_embeddings": length, "projection_size": 32,
            "pad_token_id": 0 if second else 1, "bos_token_id": None if second else 49406,
            "eos_token_id": 1 if second else 49407,
        },
        vision_config=_VISION,
    )  # fmt: skip
    module = _random(SiglipModel, config)
    with torch.no_grad():
        module.logit_scale.fill_(4.7)
        module.logit_bias.fill_(-12.5)
    module.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


def write_metaclip_2(folder: Path) -> Path:
    """MetaCLIP 2 with a tokenizer of XLM-RoBERTa's kind."""
    from transformers import CLIPImageProcessorPil, MetaClip2Config, MetaClip2Model, XLMRobertaTokenizer

    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *_pieces()]
    XLMRobertaTokenizer(vocab=pieces, model_max_length=77).save_pretrained(folder)
    config = MetaClip2Config(
        text_config={
            **_TEXT, "vocab_size": len(pieces) + 1, "max_position_embeddings": 77, "bos_token_id": 0,
            "eos_token_id": 2,
        },
        vision_config=_VISION,
        projection_dim=16,
        logit_scale_init_value=4.6,
    )  # fmt: skip
    _random(MetaClip2Model, config).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)
    return folder


def write_chinese_clip(folder: Path) -> Path:
    """Chinese-CLIP with BERT's tokenizer in vocab.txt and tokenizer.json."""
    from transformers import ChineseCLIPConfig, ChineseCLIPImageProcessorPil, ChineseCLIPModel

    vocabulary = _bert_tokenizer(folder, 52)
    config = ChineseCLIPConfig(
        text_config={**_TEXT, "vocab_size": vocabulary, "max_position_embeddings": 60},
        vision_config=_VISION,
        projection_dim=16,
        logit_scale_init_value=3.9,
    )
    _random(ChineseCLIPModel, config).save_pretrained(folder)
    processor = ChineseCLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_center_crop=False)
    processor.save_pretrained(folder)
    return folder


def write_align(folder: Path) -> Path:
    """ALIGN: two stages of an EfficientNet, on images larger than what its config says, as the published one is."""
    from transformers import AlignConfig, AlignModel, EfficientNetImageProcessorPil

    vocabulary = _bert_tokenizer(folder, 64)
    config = AlignConfig(
        text_config={**_TEXT, "vocab_size": vocabulary, "max_position_embeddings": 64},
        vision_config={
            "image_size": 60, "width_coefficient": 1.0, "depth_coefficient": 1.0, "kernel_sizes": [3, 5],
            "in_channels": [32, 16], "out_channels": [16, 24], "strides": [1, 2], "num_block_repeats": [1, 1],
            "expand_ratios": [1, 2], "hidden_dim": 24,
        },
        projection_dim=24,
        temperature_init_value=0.02,
    )  # fmt: skip
    module = _random(AlignModel, config)
    with torch.no_grad():
        for name, buffer in module.named_buffers():  # as after training: batch norms that do something
            if name.endswith("running_mean"):
                buffer.normal_(std=0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    module.save_pretrained(folder)
    EfficientNetImageProcessorPil(
        size={"height": 46, "width": 46}, crop_size={"height": SIDE, "width": SIDE}, do_center_crop=True,
        rescale_factor=1 / 127.5, rescale_offset=True, do_normalize=False, include_top=False, resample=2,
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    ).save_pretrained(folder)  # fmt: skip
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "siglip": write_siglip,
    "siglip2": lambda folder: write_siglip(folder, second=True),
    "metaclip_2": write_metaclip_2,
    "chinese_clip": write_chinese_clip,
    "align": write_align,
}


def _random(kind: Any, config: Any) -> Any:
    torch.manual_seed(3)
    module = kind(config)
    with torch.no_grad():
        # Default initialisation gives nearly equal texts; wider weights make prompts tell apart.
        for name, parameter in module.named_parameters():
            if parameter.ndim == 4 and module.config.model_type == "align":
                parameter.normal_(std=0.3)
            elif parameter.ndim > 1 and "embedding" not in name:
                parameter.mul_(3)
            elif "embedding" in name and parameter.ndim == 2:
                parameter.normal_(std=0.3)
            elif parameter.ndim == 1 and name.endswith("bias"):
                parameter.normal_(std=0.1)
    return module


def _pieces() -> list[tuple[str, float]]:
    """Sentence pieces and how likely they are: words, then letters at the beginning of words and within."""
    letters = [*dict.fromkeys(LETTERS)]
    found = {f"▁{word}": -2.0 - number / 10 for number, word in enumerate(WORDS)}
    found.update({f"▁{letter}": -8.0 for letter in letters if f"▁{letter}" not in found})
    found.update(dict.fromkeys(letters, -9.0))
    return [("▁", -7.0), *found.items()]


def _siglip_tokenizer(folder: Path, length: int) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *_pieces()]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    _save_fast(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>", unk_token="<unk>", model_max_length=length
        ),
        folder,
        "SiglipTokenizer",
    )
    return len(pieces)


def _gemma_tokenizer(folder: Path) -> int:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocabulary = {
        token: number for number, token in enumerate([*specials, "▁", *dict.fromkeys(LETTERS + "".join(WORDS))])
    }
    merges = []
    for word in WORDS:
        first = word[0]
        for letter in word[1:]:
            if (first, letter) not in merges:
                merges.append((first, letter))
            first += letter
            vocabulary.setdefault(first, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    _save_fast(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<bos>", pad_token="<pad>", unk_token="<unk>"
        ),
        folder,
        "GemmaTokenizer",
    )
    return len(vocabulary)


def _save_fast(tokenizer: Any, folder: Path, kind: str) -> None:
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": kind}))


def _bert_tokenizer(folder: Path, length: int) -> int:
    from transformers import BertTokenizer

    letters = [letter for letter in dict.fromkeys(LETTERS.lower()) if letter.isascii()]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    BertTokenizer(vocab=vocabulary, model_max_length=length).save_pretrained(folder)
    return len(vocabulary)
