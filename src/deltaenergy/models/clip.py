"""CLIP on top of transformers' modules: two towers that are run block by block, and a fingerprint."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.text import TextTower
from deltaenergy.models.tokenizing import tokenizer_digest
from deltaenergy.models.vision import VisionTower


class ClipModel(TowerModel):
    """Any checkpoint that transformers loads as `CLIPModel` (Radford et al., ICML 2021, and its re-trainings)."""

    vision: VisionTower

    def __init__(self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        self.name = name
        self.module = module.eval().requires_grad_(False)
        self.preprocessing = preprocessing
        self.text = TextTower(module.text_model, module.text_projection, tokenizer)
        self.vision = VisionTower(module.vision_model, module.visual_projection)
        self.feature_dim = int(module.config.projection_dim)
        self.logit_scale = float(module.logit_scale.float().exp())
        self.activation = str(module.config.vision_config.hidden_act)
        described = f"{_architecture(module.config)}|{tokenizer_digest(tokenizer)}"
        self.fingerprint = hash_weights(module, preprocessing, described)

    def to(self, device: torch.device, dtype: torch.dtype) -> ClipModel:
        """Move and cast the towers. The fingerprint stays that of the weights as stored."""
        self.module.to(device=device, dtype=dtype)
        self.device, self.dtype = device, dtype
        return self

    def describe(self) -> dict[str, Any]:
        """What identifies this model in an artefact or report."""
        return {**super().describe(), "activation": self.activation}

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> unit features of the class token."""
        return self.vision.run(pixels, self.vision_prompts).features

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit image features, and unit patch features by the value path of the last block."""
        outputs = self.vision.run(pixels, self.vision_prompts, patches=True)
        assert outputs.patches is not None
        return outputs.features, outputs.patches


def _architecture(config: Any) -> str:
    """What changes the features and shows in no weight: activation, heads and the norms' ε of both towers."""
    towers = (config.text_config, config.vision_config)
    return "|".join(f"{part.hidden_act} {part.num_attention_heads} {part.layer_norm_eps:g}" for part in towers)


def hash_weights(module: nn.Module, preprocessing: Preprocessing, described: str) -> str:
    """Hash of all weights (as float32), the preprocessing and what else is `described`."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{sorted(preprocessing.to_dict().items())}|{described}".encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()
