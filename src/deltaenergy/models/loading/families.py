"""The supported families of models in transformers format, by the type in config.json."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json
from deltaenergy.files.schema import Check, list_of, number, optional, text, whole
from deltaenergy.models.loading.tokenizing import CleaningTokenizer, Framing, check_tokenizer_files, load_tokenizer
from deltaenergy.models.towers.clip import ChineseClipModel, ClipModel, MetaClip2Model, TransformersModel
from deltaenergy.models.towers.convolutional import AlignModel
from deltaenergy.models.towers.siglip import SiglipModel

# Upper bounds for real towers. Blocks are few, because each is built before it is compared with the weights.
_SIZE, _BLOCKS, _TOKEN = whole(1, 10**6), whole(1, 500), whole(0, 10**7)
_COMMON = {
    "hidden_size": _SIZE,
    "intermediate_size": _SIZE,
    "num_hidden_layers": _BLOCKS,
    "num_attention_heads": _SIZE,
    "hidden_act": text(),
    "layer_norm_eps": number(above=0, high=1),
}
_TEXT = {
    **_COMMON,
    "vocab_size": whole(1, 10**7),
    "max_position_embeddings": whole(4, 10**5),
    "bos_token_id": optional(_TOKEN),
    "eos_token_id": _TOKEN,
    "pad_token_id": optional(_TOKEN),
}
_SIGLIP_TEXT = {**_TEXT, "eos_token_id": optional(_TOKEN), "projection_size": optional(_SIZE)}
_BERT_TEXT = {**_TEXT, "eos_token_id": optional(_TOKEN), "type_vocab_size": _SIZE}
_VISION = {**_COMMON, "num_channels": whole(3, 3), "image_size": whole(1, 10**4), "patch_size": whole(1, 10**4)}
_STAGES = {
    **dict.fromkeys(("kernel_sizes", "in_channels", "out_channels", "strides", "expand_ratios"), list_of(_SIZE)),
    "num_block_repeats": list_of(_BLOCKS),
    "depthwise_padding": list_of(whole(0, 10**4)),
}
_EFFICIENT_NET = {
    **_STAGES,
    "num_channels": whole(3, 3),
    "image_size": whole(1, 10**4),
    "width_coefficient": number(above=0, high=100),
    "depth_coefficient": number(above=0, high=100),
    "depth_divisor": _SIZE,
    "squeeze_expansion_ratio": number(above=0, high=1),
    "hidden_act": text(),
    "hidden_dim": _SIZE,
    # Max pooling of the map would give no patch features.
    "pooling_type": text(among=("mean",)),
    "batch_norm_eps": number(above=0, high=1),
}
_TOP = {"projection_dim": _SIZE, "logit_scale_init_value": number(-100, 100)}


@dataclass(frozen=True)
class Family:
    """How checkpoints of one type are read.

    Attributes:
        model: our class; `family` is the type.
        config, module: names of transformers' classes.
        top, text, vision: entries of config.json, of its text_config and its vision_config, that shape the towers.
        tokenizer: (folder, text_config) -> the tokenizer, checked.
        crops, offset: see `Preprocessing.from_processor_config`.
        any_size: whether the image tower accepts images of any size.
        scale: the tensor that cosines are multiplied with (its exp) or divided by.
        divides: whether they are divided by it.
    """

    model: type[TransformersModel]
    config: str
    module: str
    tokenizer: Callable[[Path, Any], Any]
    top: Mapping[str, Check] = field(default_factory=lambda: _TOP)
    text: Mapping[str, Check] = field(default_factory=lambda: _TEXT)
    vision: Mapping[str, Check] = field(default_factory=lambda: _VISION)
    crops: bool = True
    offset: bool = False
    any_size: bool = False
    scale: str = "logit_scale"
    divides: bool = False


def canonical(words: str) -> str:
    """A text as the first SigLIP was trained: lower case, without ASCII punctuation, single spaces."""
    bare = words.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", bare).strip()


_metaclip_2_tokenizer = functools.partial(load_tokenizer, framing=Framing(legacy=False))
_bert_tokenizer = functools.partial(
    load_tokenizer, framing=Framing("cls_token_id", "sep_token_id", configured=False, padded=True)
)


def _siglip_tokenizer(folder: Path, text_config: Any) -> Any:
    """From tokenizer.json, so it does not depend on sentencepiece."""
    clean = canonical if _is_first_siglip(folder) else str.lower
    kind = "PreTrainedTokenizerFast" if (folder / "tokenizer.json").is_file() else "AutoTokenizer"
    tokenizer = load_tokenizer(folder, text_config, kind, Framing(None, configured=False, padded=True))
    # SigLIP 2 was trained on lower-case text, the first SigLIP also without punctuation.
    return CleaningTokenizer(tokenizer, clean)


def _is_first_siglip(folder: Path) -> bool:
    check_tokenizer_files(folder)
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        raise ArtifactError(
            f"{folder} has no tokenizer_config.json, which distinguishes the tokenizers of SigLIP and SigLIP 2. Copy "
            "it from the original model folder."
        )
    content = read_json(file)
    kind = content.get("tokenizer_class") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        raise ArtifactError(f"{file}: tokenizer_class must be a text, such as SiglipTokenizer.")
    return kind in ("SiglipTokenizer", "SiglipTokenizerFast")


FAMILIES = {
    family.model.family: family
    for family in (
        Family(ClipModel, "CLIPConfig", "CLIPModel", load_tokenizer),
        Family(MetaClip2Model, "MetaClip2Config", "MetaClip2Model", _metaclip_2_tokenizer),
        Family(ChineseClipModel, "ChineseCLIPConfig", "ChineseCLIPModel", _bert_tokenizer, text=_BERT_TEXT),
        Family(SiglipModel, "SiglipConfig", "SiglipModel", _siglip_tokenizer, top={}, text=_SIGLIP_TEXT, crops=False),
        Family(
            AlignModel,
            "AlignConfig",
            "AlignModel",
            _bert_tokenizer,
            top={"projection_dim": _SIZE},
            text=_BERT_TEXT,
            vision=_EFFICIENT_NET,
            crops=False,
            offset=True,
            any_size=True,
            scale="temperature",
            divides=True,
        ),
    )
}
# Similar types that are not supported, and what to use instead.
NOT_SUPPORTED = {
    "siglip2": "which takes images of any shape (NaFlex); use a model of one size, such as "
    "google/siglip2-base-patch16-224, which is of type 'siglip'",
    "altclip": "whose text encoder is not supported; use MetaCLIP 2 or SigLIP 2 for many languages",
}
