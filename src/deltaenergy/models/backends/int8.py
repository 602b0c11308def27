"""8 bits on torch, for image towers that are transformers: without another package and without calibration images.

    y = s_x (x̂ Ŵᵀ) ∘ s_w + b,   x̂ = round(x / s_x) in −127 … 127,   Ŵ = round(W / s_w) in −63 … 63

Each token has its own step, s_x = max |x| / 127, computed at run time, and so has each row of the weights, s_w = max
|w| / 63 (vector-wise, as in Dettmers et al., LLM.int8(), NeurIPS 2022). So features do not depend on the batch. Weights
use 7 of the 8 bits: processors without VNNI add two products in 16 bits, which would overflow, and results must not
depend on the processor. The products use oneDNN, which comes with torch; norms, attention, the patch embedding and the
projection stay in float32.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from deltaenergy.errors import InputError
from deltaenergy.models.backends.base import TowerEngine
from deltaenergy.models.base import TowerModel
from deltaenergy.models.towers.clip import TransformersModel
from deltaenergy.models.towers.convolutional import ConvolutionalModel

_TOKEN_STEPS, _WEIGHT_STEPS = 127.0, 63.0
# x̂ + 128 is what oneDNN takes, without a sign; the half makes cutting off a rounding.
_ZERO = 128
_HALF_UP = torch.tensor(_ZERO + 0.5)
# quick_gelu(x) = x σ(αx)
_ALPHA = 1.702


class Int8Linear(nn.Module):
    """A linear layer in 8 bits. Rows of zeros give the bias; NaN gives NaN.

    Args:
        weight: W (out, in).
        bias: b (out).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        weight = weight.detach().float()
        self.steps = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _WEIGHT_STEPS
        whole = (weight / self.steps[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = bias.detach().float().clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, in) -> (…, out), without gradients."""
        rows = x.reshape(-1, x.shape[-1])
        largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_())
        largest.clamp_(min=torch.finfo(torch.float32).tiny * _TOKEN_STEPS)  # x / s_x must stay finite
        tokens = torch.addcmul(_HALF_UP, rows, _TOKEN_STEPS / largest).to(torch.uint8)
        products = torch.ops.onednn.qlinear_pointwise(
            tokens, 1.0, _ZERO, self.packed, self.steps, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        result = torch.addcmul(self.bias, products, largest.div_(_TOKEN_STEPS), out=products)
        return result.view(*x.shape[:-1], -1)


class QuickGeluMlp(nn.Module):
    """fc2(quick_gelu(fc1 x)) in eight bits, in one step less: quick_gelu(x) = silu(αx)/α."""

    def __init__(self, first: nn.Linear, second: nn.Linear) -> None:
        super().__init__()
        self.first = Int8Linear(first.weight * _ALPHA, first.bias * _ALPHA)
        self.second = Int8Linear(second.weight / _ALPHA, second.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(nn.functional.silu(self.first(x), inplace=True))
        return result


class Int8Engine(TowerEngine):
    """A transformer's image tower with all linear layers of its blocks in eight bits."""

    def __init__(self, model: TowerModel) -> None:
        if not isinstance(model, TransformersModel) or isinstance(model, ConvolutionalModel):
            raise InputError(
                f"`precision='int8'` on torch needs a vision transformer; the image encoder of {model.name!r} is "
                "convolutional. Use `backend='openvino'` and `calibration_images`."
            )
        if not hasattr(torch.ops.onednn, "qlinear_pointwise"):
            raise InputError(
                "`precision='int8'` on torch needs a torch with oneDNN. Use fp32, or `backend='openvino'`."
            )
        transformer = model.module.vision_model
        with torch.no_grad():
            made = {id(old): new for layer in transformer.encoder.layers for old, new in _in_eight_bits(layer)}
        self._model = model.with_image_transformer(copy.deepcopy(transformer, made))

    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        given = pixels.detach().float()
        with torch.no_grad():
            if patches:
                return self._model.image_and_patch_features(given)
            return (self._model.image_features(given),)


def _in_eight_bits(layer: Any) -> list[tuple[nn.Module, nn.Module]]:
    """What is replaced in a block, and by what."""
    mlp = layer.mlp
    replaced: list[tuple[nn.Module, nn.Module]] = []
    done: set[nn.Module] = set()
    if type(mlp.activation_fn).__name__ == "QuickGELUActivation":
        replaced.append((mlp, QuickGeluMlp(mlp.fc1, mlp.fc2)))
        done.update(mlp.modules())
    for module in layer.modules():
        if isinstance(module, nn.Linear) and module not in done:
            replaced.append((module, Int8Linear(module.weight, module.bias)))
    return replaced
