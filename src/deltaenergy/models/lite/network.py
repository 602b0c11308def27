"""EfficientNet-Lite0, the image tower of `lite`.

Tan & Le, EfficientNet: Rethinking Model Scaling (ICML 2019), in the "Lite" form: no squeeze-and-excitation, ReLU6
everywhere, stem and head of fixed width. Sixteen inverted-residual blocks turn a 224 x 224 image into a 7 x 7 map
of 1,280 channels; patch features come from the map, image features from its mean. Attribute names are those of the
published weights, so they load strictly.
"""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deltaenergy.models.loading.weights import fill, read_weights

WEIGHTS = Path(__file__).parent / "image_tower.safetensors"

# (repeats, kernel, stride of the first, expansion, output channels)
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM_CHANNELS = 32
FEATURE_CHANNELS = 1280
IMAGE_SIZE = 224
CLASSES = 1000


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's "SAME": with odd padding, the extra row and column are at the end."""

    def forward(self, input: Tensor) -> Tensor:
        pads: list[int] = []
        for axis in (3, 2):  # functional.pad counts from the last axis
            size, kernel, stride = input.shape[axis], self.kernel_size[axis - 2], self.stride[axis - 2]
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        if pads[0] == pads[1] and pads[2] == pads[3]:  # the usual case, which the convolution pads itself
            return functional.conv2d(
                input, self.weight, self.bias, self.stride, padding=(pads[2], pads[0]), groups=self.groups
            )
        return functional.conv2d(functional.pad(input, pads), self.weight, self.bias, self.stride, groups=self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class InvertedResidual(nn.Module):
    """Expand (1 x 1), filter each channel (k x k), project (1 x 1); add the input where shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands = expansion > 1
        self.adds_input = stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = SameConv2d(inputs, inner, 1, bias=False)
            self._bn0 = _norm(inner)
        self._depthwise_conv = SameConv2d(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv = SameConv2d(inner, outputs, 1, bias=False)
        self._bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = functional.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        y = functional.relu6(self._bn1(self._depthwise_conv(y)), inplace=True)
        y = cast(Tensor, self._bn2(self._project_conv(y)))
        return x + y if self.adds_input else y


class EfficientNetLite0(nn.Module):
    """Pixels, (x - 127) / 128 in RGB order, to the 1,280-channel map, and on to the 1,000 ImageNet logits."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, STEM_CHANNELS, 3, 2, bias=False)
        self._bn0 = _norm(STEM_CHANNELS)
        blocks: list[nn.Module] = []
        channels = STEM_CHANNELS
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for repeat in range(repeats):
                blocks.append(InvertedResidual(channels, outputs, kernel, stride if repeat == 0 else 1, expansion))
                channels = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv2d(channels, FEATURE_CHANNELS, 1, bias=False)
        self._bn1 = _norm(FEATURE_CHANNELS)
        self._fc = nn.Linear(FEATURE_CHANNELS, CLASSES)

    def feature_map(self, pixels: Tensor) -> Tensor:
        """(B, 3, 224, 224) -> (B, 1280, 7, 7)."""
        x = functional.relu6(self._bn0(self._conv_stem(pixels)), inplace=True)
        for block in self._blocks:
            x = block(x)
        return functional.relu6(self._bn1(self._conv_head(x)), inplace=True)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, 224, 224) -> logits (B, 1000)."""
        logits: Tensor = self._fc(self.feature_map(pixels).mean((2, 3)))
        return logits


def fold_norms(network: EfficientNetLite0) -> None:
    """Fold every batch normalisation into the convolution before it, and make the weights channels-last.

    The same function up to rounding, with fewer passes over memory. For inference only.
    """
    pairs: list[tuple[nn.Module, str, str]] = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
        if block.expands:
            pairs.append((block, "_expand_conv", "_bn0"))
    for module, convolution, norm in pairs:
        fused = fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)).requires_grad_(False)
        fused.weight.data = fused.weight.contiguous(memory_format=torch.channels_last)
        setattr(module, convolution, fused)
        setattr(module, norm, nn.Identity())


def load_network() -> EfficientNetLite0:
    """The network with the bundled weights, frozen."""
    with torch.device("meta"):  # without allocating memory or changing the random state
        network = EfficientNetLite0()
    fill(network, read_weights([WEIGHTS]), WEIGHTS)
    # In the order in which the weights were published, and `lite` was made: it decides the last bit of every product.
    network._fc.weight.data = network._fc.weight.data.T.contiguous().T
    return network.requires_grad_(False).eval()
