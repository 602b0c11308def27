"""CLIP on top of transformers' modules: unit features, patch features by the value path, a fingerprint."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from deltaenergy.models.base import Model
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.text import TextTower, unit


class ClipModel(Model):
    """Any checkpoint that transformers loads as `CLIPModel` (Radford et al., ICML 2021, and its re-trainings)."""

    def __init__(self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        self.name = name
        self.module = module.eval().requires_grad_(False)
        self.preprocessing = preprocessing
        self.text = TextTower(module.text_model, module.text_projection, tokenizer)
        self.feature_dim = int(module.config.projection_dim)
        self.logit_scale = float(module.logit_scale.float().exp())
        self.activation = str(module.config.vision_config.hidden_act)
        self.fingerprint = hash_weights(module, preprocessing, self.activation)

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
        pooled = self.module.vision_model(pixel_values=pixels.to(self.dtype)).pooler_output
        return unit(self.module.visual_projection(pooled))

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit image features, and unit patch features by the value path of the last block.

        With x the last block's input: v = out_proj(W_v ln_1(x) + b_v); y = x + v; y + mlp(ln_2(y)); then post-norm
        and projection, without the class token (Miyai et al., GL-MCM, IJCV 2025; after MaskCLIP, ECCV 2022).
        """
        last = self.module.vision_model.encoder.layers[-1]
        seen: list[torch.Tensor] = []

        def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append(args[0] if args else kwargs["hidden_states"])

        hook = last.register_forward_pre_hook(keep_input, with_kwargs=True)
        try:
            features = self.image_features(pixels)
        finally:
            hook.remove()
        x = seen[0][:, 1:]
        y = x + last.self_attn.out_proj(last.self_attn.v_proj(last.layer_norm1(x)))
        y = y + last.mlp(last.layer_norm2(y))
        patches = self.module.visual_projection(self.module.vision_model.post_layernorm(y))
        return features, unit(patches)


def hash_weights(module: nn.Module, preprocessing: Preprocessing, activation: str) -> str:
    """Hash of all weights (as float32), the preprocessing and the activation."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{sorted(preprocessing.to_dict().items())}|{activation}".encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()
