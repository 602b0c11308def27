"""CLIP-style models on transformers' modules: an image tower run block by block, and a fingerprint."""

from __future__ import annotations

import copy
import hashlib
from typing import Any, Self

import torch
from torch import nn

from deltaenergy.models.base import TowerModel
from deltaenergy.models.loading.tokenizing import tokenizer_digest
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.text import BertTextTower
from deltaenergy.models.towers.vision import VisionTower

# Three images of a ViT-B/16.
TOKENS_OF_A_CORE = 600


class TransformersModel(TowerModel):
    """A dual encoder of transformers: one module with both towers.

    Attributes:
        family: the model's type in config.json.
    """

    family: str

    def __init__(self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        self.name = name
        self.module = module.eval().requires_grad_(False)
        self.preprocessing = preprocessing
        described = f"{self._architecture(module.config)}|{tokenizer_digest(tokenizer)}"
        self.fingerprint = hash_weights(module, preprocessing, described)

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """Move and cast the towers. The fingerprint stays that of the weights as stored."""
        self.module.to(device=device, dtype=dtype)
        self.device, self.dtype = device, dtype
        return self

    def _few_at_a_time(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The pixels in parts whose activations stay in a core's cache, on a CPU and without gradients.

        Larger blocks would also be returned to the system after each step, and allocated again.
        """
        if pixels.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return (pixels,)
        tokens = len(self.module.vision_model.embeddings.position_embedding.weight)
        few = max(1, TOKENS_OF_A_CORE * torch.get_num_threads() // tokens)
        return tuple(torch.split(pixels, few))

    def with_image_transformer(self, transformer: Any) -> Self:
        """The same model with another module as its image transformer."""
        other = copy.copy(self)
        other.module = copy.copy(self.module)
        other.module._modules = {**self.module._modules, "vision_model": transformer}
        return other

    def _architecture(self, config: Any) -> str:
        """Settings that change features but not weights: family, activations, heads, strides, the norms' ε."""
        parts = []
        for part in (config.text_config, config.vision_config):
            entries = part.to_dict()
            parts.append(" ".join(f"{key}={entries[key]}" for key in _UNSEEN if key in entries))
        return "|".join([self.family, *parts])


# Entries of a tower's config that change its output but not the shapes of its weights.
_UNSEEN = (
    "hidden_act", "num_attention_heads", "layer_norm_eps", "batch_norm_eps", "pooling_type", "strides",
    "depthwise_padding", "image_size",
)  # fmt: skip


class ClipModel(TransformersModel):
    """Any checkpoint that transformers loads as `CLIPModel` (Radford et al., ICML 2021, and its re-trainings)."""

    family = "clip"
    vision: VisionTower

    def __init__(
        self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing, logit_bias: float = 0.0
    ) -> None:
        super().__init__(name, module, tokenizer, preprocessing)
        self.text = self._text_tower(module, tokenizer)
        self.vision = VisionTower(module.vision_model, module.visual_projection)
        self.feature_dim = int(module.config.projection_dim)
        self.logit_scale = float(module.logit_scale.float().exp())
        self.logit_bias = logit_bias
        self.activation = str(module.config.vision_config.hidden_act)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "activation": self.activation}

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> unit features of the class token."""
        parts = self._few_at_a_time(pixels)
        return torch.cat([self.vision.run(part, self.vision_prompts).features for part in parts])

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit image features, and unit patch features by the value path of the last block."""
        parts = self._few_at_a_time(pixels)
        outputs = [self.vision.run(part, self.vision_prompts, patches=True) for part in parts]
        patches = [one.patches for one in outputs if one.patches is not None]
        return torch.cat([one.features for one in outputs]), torch.cat(patches)

    def with_image_transformer(self, transformer: Any) -> Self:
        other = super().with_image_transformer(transformer)
        other.vision = VisionTower(transformer, other.module.visual_projection)
        return other

    def _text_tower(self, module: Any, tokenizer: Any) -> CausalTextTower | BertTextTower:
        return CausalTextTower(module.text_model, module.text_projection, tokenizer)

    def _architecture(self, config: Any) -> str:
        towers = (config.text_config, config.vision_config)
        return "|".join(f"{part.hidden_act} {part.num_attention_heads} {part.layer_norm_eps:g}" for part in towers)


class MetaClip2Model(ClipModel):
    """MetaCLIP 2 (Chuang et al., 2025): CLIP's towers under another name, and a tokenizer of many languages."""

    family = "metaclip_2"


class ChineseClipModel(ClipModel):
    """Chinese-CLIP (Yang et al., 2022): CLIP's image tower and a Chinese RoBERTa, pooled at its first token."""

    family = "chinese_clip"

    def _text_tower(self, module: Any, tokenizer: Any) -> BertTextTower:
        return BertTextTower(module.text_model, module.text_projection, tokenizer)


def hash_weights(module: nn.Module, preprocessing: Preprocessing, described: str) -> str:
    """Hash of all weights (as float32), the preprocessing and the settings in `described`."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{sorted(preprocessing.to_dict().items())}|{described}".encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()
