"""Checkpoints in open_clip's format (`open_clip_config.json` and safetensors), turned into transformers' layout.

Only names and orientations change, not a number:

    visual.conv1, class_embedding, positional_embedding, ln_pre, ln_post, proj (transposed)
    [text.]token_embedding, positional_embedding, ln_final, text_projection (transposed)
    [visual.|text.]transformer.resblocks.N.{ln_1, attn.in_proj (q, k, v on top of each other), attn.out_proj, ln_2,
                                            mlp.c_fc, mlp.c_proj}

This works for vision transformers with a class token and CLIP's causal text transformer. Others (ResNets, timm's
towers, other text encoders and poolings) are refused, with a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json
from deltaenergy.files.schema import Where, anything, list_of, number, optional, record, text, truth, whole
from deltaenergy.models.loading.checkpoint import build_empty, check_scale
from deltaenergy.models.loading.families import FAMILIES
from deltaenergy.models.loading.tokenizing import load_tokenizer
from deltaenergy.models.loading.weights import (
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    WEIGHTS,
    fill,
    read_weights,
)
from deltaenergy.models.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from deltaenergy.models.towers.clip import ClipModel

_SIZE, _BLOCKS = whole(1, 10**6), whole(1, 500)
# Entries of both towers. An entry in none of these tables changes the model in an unknown way.
_TOWER = {
    "width": _SIZE,
    "layers": _BLOCKS,
    "mlp_ratio": number(above=0, high=100),
    "norm_kwargs": optional(record({"eps": number(above=0, high=1)}, may_lack=("eps",))),
    "act_kwargs": optional(record({"approximate": text(among=("none", "tanh"))}, may_lack=("approximate",))),
}
_TEXT = {**_TOWER, "context_length": whole(4, 10**5), "vocab_size": whole(1, 10**7), "heads": _SIZE}
_VISION = {**_TOWER, "image_size": whole(1, 10**4), "patch_size": whole(1, 10**4), "head_width": _SIZE}
# The values for CLIP's architecture; any other is refused.
_CLIPS_OWN: dict[str, tuple[Any, ...]] = {
    "timm_model_name": (None, ""), "hf_model_name": (None, ""), "attentional_pool": (False,), "no_ln_pre": (False,),
    "pool_type": ("tok", "argmax"), "pos_embed_type": ("learnable",), "final_ln_after_pool": (False,),
    "embed_cls": (False,), "no_causal_mask": (False,), "proj_bias": (False,), "proj_type": ("linear",),
    "ls_init_value": (None,), "global_average_pool": (False,),
    "hf_tokenizer_name": (None, "", "openai/clip-vit-large-patch14", "openai/clip-vit-base-patch32"),
}  # fmt: skip
# Only for training, or without effect unless a refused entry is set.
_WITHOUT_EFFECT = {
    "patch_dropout", "output_tokens", "pad_id", "tokenizer_kwargs", "timm_model_pretrained", "timm_pool", "timm_proj",
    "timm_drop", "timm_drop_path", "timm_proj_bias", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type",
    "attn_pooler_queries", "attn_pooler_heads",
}  # fmt: skip
_MODEL = {"embed_dim": _SIZE, "vision_cfg": anything(), "text_cfg": anything(), "quick_gelu": truth()}
_MODEL_WITHOUT_EFFECT = {"custom_text", "init_logit_scale", "init_logit_bias"}
_PREPROCESSING = record(
    {
        "size": anything(),
        "mean": list_of(number(-10, 10), length=3),
        "std": list_of(number(above=0, high=100), length=3),
        "interpolation": text(among=("bicubic", "bilinear")),
        "resize_mode": text(among=("shortest", "squash")),
    },
    others=True,
    may_lack=("size", "mean", "std", "interpolation", "resize_mode"),
)
# Numbers in OpenAI's archives next to the weights.
_NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
_OUTSIDE = {
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "visual_projection.weight": "visual.proj",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "text_projection.weight": "text_projection",
    "logit_scale": "logit_scale",
}
_TRANSPOSED = ("visual.proj", "text_projection")
_BLOCK = re.compile(r"(text|vision)_model\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_IN_BLOCK = {
    "layer_norm1": "ln_1", "layer_norm2": "ln_2", "self_attn.out_proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}  # fmt: skip
_THIRDS = {"self_attn.q_proj": 0, "self_attn.k_proj": 1, "self_attn.v_proj": 2}
_INSTEAD = (
    "Only vision transformers with a class token and CLIP's own text transformer can be converted exactly. Use the "
    "model in transformers format instead; the Hugging Face Hub has most of them, for example "
    "google/siglip-base-patch16-224."
)


def load_open_clip(name: str, folder: Path) -> ClipModel:
    """The model in `folder`, on the CPU in float32."""
    file = folder / OPEN_CLIP_CONFIG
    content, where = read_json(file), Where(str(file))
    parts = {"model_cfg": anything(), "preprocess_cfg": anything()}
    record(parts, others=True, may_lack=("preprocess_cfg",))(content, where)
    config = _config(content["model_cfg"], where.at("model_cfg"))
    family = FAMILIES["clip"]
    weights = _weights_file(folder)
    module = build_empty(family, config, file)
    tokenizer = load_tokenizer(folder, module.config.text_config, "CLIPTokenizer")
    preprocessing = _preprocessing(content.get("preprocess_cfg") or {}, config, where.at("preprocess_cfg"))
    stored = read_weights([weights])
    bias = stored.pop("logit_bias", torch.zeros(()))
    if bias.numel() != 1:
        raise ArtifactError(f"{weights}: the tensor 'logit_bias' has shape {tuple(bias.shape)}, not one number.")
    # Custom text towers keep their weights under `text.`.
    prefix = "text." if "text.token_embedding.weight" in stored else ""
    sources = {key: source_of(key, prefix) for key in module.state_dict()}
    tensors = {key: one.take(stored[one.name]) for key, one in sources.items() if one.name in stored}
    # Unknown tensors are refused with the rest that does not fit.
    known = {one.name for one in sources.values()} | set(_NO_WEIGHTS)
    tensors |= {name: tensor for name, tensor in stored.items() if name not in known}
    fill(module, tensors, folder, OPEN_CLIP_CONFIG)
    check_scale(module, family, folder)
    return ClipModel(name, module, tokenizer, preprocessing, logit_bias=float(bias))


@dataclass(frozen=True)
class WeightSource:
    """Where a tensor of transformers' layout is in open_clip's: the whole, its transpose, or a third of its rows."""

    name: str
    transposed: bool = False
    third: int | None = None

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.transposed:
            return tensor.T.contiguous() if tensor.ndim == 2 else tensor
        # Rows that are not three times those of a part give a part that is refused.
        return tensor if self.third is None or not tensor.ndim else tensor.tensor_split(3)[self.third].clone()


def source_of(key: str, prefix: str = "") -> WeightSource:
    """The open_clip name of transformers' weight `key`; text weights may have a prefix."""
    block = _BLOCK.fullmatch(key)
    if block is None:
        name = _OUTSIDE[key]
        own = prefix if not name.startswith(("visual.", "logit_scale")) else ""
        return WeightSource(own + name, transposed=name in _TRANSPOSED)
    tower, number_, part, kind = block.groups()
    start = f"{'visual.' if tower == 'vision' else prefix}transformer.resblocks.{number_}."
    if part in _THIRDS:
        return WeightSource(f"{start}attn.in_proj_{kind}", third=_THIRDS[part])
    return WeightSource(f"{start}{_IN_BLOCK[part]}.{kind}")


def _weights_file(folder: Path) -> Path:
    for name in (OPEN_CLIP_WEIGHTS, WEIGHTS):
        if (folder / name).exists() or (folder / name).is_symlink():
            return folder / name
    raise ArtifactError(
        f"{folder} has neither {OPEN_CLIP_WEIGHTS} nor {WEIGHTS}. Pickles (.bin, .pt) can run code when opened and are "
        "never read; get the safetensors file of the original model."
    )


def _config(settings: Any, where: Where) -> dict[str, Any]:
    """Transformers' CLIPConfig of the same towers."""
    record(_MODEL, others=True, may_lack=("quick_gelu",))(settings, where)
    for key in settings.keys() - _MODEL.keys() - _MODEL_WITHOUT_EFFECT:
        raise ArtifactError(f"{where.file}: {key!r} is unknown in open_clip's format. {_INSTEAD}")
    quick = bool(settings.get("quick_gelu", False))
    vision = _tower(settings["vision_cfg"], _VISION, where.at("vision_cfg"), quick)
    texts = _tower(settings["text_cfg"], _TEXT, where.at("text_cfg"), quick)
    given_vision, given_text = settings["vision_cfg"], settings["text_cfg"]
    return {
        "projection_dim": settings["embed_dim"],
        "vision_config": {
            **vision,
            "num_attention_heads": max(1, vision["hidden_size"] // given_vision.get("head_width", 64)),
            "image_size": given_vision.get("image_size", 224),
            "patch_size": given_vision.get("patch_size", 16),
        },
        "text_config": {
            **texts,
            "num_attention_heads": given_text.get("heads", 8),
            "max_position_embeddings": given_text.get("context_length", 77),
            "vocab_size": given_text.get("vocab_size", 49408),
            # Pooled at the largest id, which is how transformers reads these two.
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
    }


def _tower(settings: Any, entries: Mapping[str, Any], where: Where, quick: bool) -> dict[str, Any]:
    if isinstance(settings, dict):
        for key, value in settings.items():
            if key in _CLIPS_OWN and value not in _CLIPS_OWN[key]:
                raise ArtifactError(f"{where.file}: {key} is {str(value)[:60]!r}. {_INSTEAD}")
            if key not in entries and key not in _CLIPS_OWN and key not in _WITHOUT_EFFECT:
                raise ArtifactError(f"{where.file}: {str(key)[:60]!r} is unknown for an encoder. {_INSTEAD}")
        if isinstance(settings.get("layers"), list):
            raise ArtifactError(f"{where.file}: the image encoder is a ResNet. {_INSTEAD}")
    record(entries, others=True, may_lack=entries)(settings, where)
    width = settings.get("width", 768 if "patch_size" in entries else 512)
    tanh = (settings.get("act_kwargs") or {}).get("approximate") == "tanh"
    return {
        "hidden_size": width,
        "intermediate_size": int(width * settings.get("mlp_ratio", 4.0)),
        "num_hidden_layers": settings.get("layers", 12),
        "hidden_act": "quick_gelu" if quick else "gelu_pytorch_tanh" if tanh else "gelu",
        "layer_norm_eps": (settings.get("norm_kwargs") or {}).get("eps", 1e-5),
    }


def _preprocessing(settings: Any, config: Mapping[str, Any], where: Where) -> Preprocessing:
    _PREPROCESSING(settings, where)
    side = config["vision_config"]["image_size"]
    if settings.get("size", side) not in (side, [side, side]):
        raise where.at("size").wrong(settings["size"], f"{side}, the size of the image encoder")
    mean, std = settings.get("mean", CLIP_MEAN), settings.get("std", CLIP_STD)
    bilinear = settings.get("interpolation") == "bilinear"
    return Preprocessing(
        resize=(side, side) if settings.get("resize_mode") == "squash" else side,
        crop=side,
        mean=(float(mean[0]), float(mean[1]), float(mean[2])),
        std=(float(std[0]), float(std[1]), float(std[2])),
        resample=int(Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC),
    )
