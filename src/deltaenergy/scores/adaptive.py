"""Adapters: scores that learn from the images they score, so results depend on earlier images.

A `Score` gives an image the same number whatever else is scored. An adapter keeps a memory of the stream, so the same
image may be known today and unknown tomorrow. So adapters are not scores, have their own registry, and run only in
`deltaenergy.detector.adaptive.AdaptiveDetector`, which gives no p-values.

An `Adapter` has only settings, like a score. `prepare` makes what depends only on the classifier, `begin` a new memory;
a `Memory` gets images `batch` by `batch`, learns from each batch and scores it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from deltaenergy.core.progress import Progress
from deltaenergy.core.registry import Registry
from deltaenergy.core.specs import Count, Positive
from deltaenergy.scores.negatives.mining import WordPool

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier


class Memory(ABC):
    """What an adapter has seen of one stream."""

    @abstractmethod
    def judge(self, similarities: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Scores (B,) of the next images, larger = more in-distribution, from their similarities and features."""


@dataclass(frozen=True)
class Adapter(WordPool, ABC):
    """Base of all adapters: settings with the paper's defaults.

    `batch` is how many images are scored together, independent of the encoder's batch: the memory changes once per
    batch, and the last batch may be smaller.
    """

    kind: ClassVar[str] = "adapter"
    temperature: Positive = 0.01
    batch: Count = 256
    seed: int = 0

    @abstractmethod
    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        """Tensors that depend only on the classifier."""

    @abstractmethod
    def begin(self, classifier: Classifier, prepared: Mapping[str, torch.Tensor]) -> Memory:
        """An empty memory."""


ADAPTERS: Registry[type[Adapter]] = Registry("adapter", package="deltaenergy.scores")


def make_adapter(spec: str | Adapter, **params: Any) -> Adapter:
    """An adapter from its name and optional parameters: `make_adapter("adaneg(batch=1)")`."""
    return ADAPTERS.make(Adapter, spec, params)  # type: ignore[type-abstract]


def confident(scores: torch.Tensor, threshold: float, gap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Which scores between 0 and 1 are confidently known or unknown: S > θ + g(1 − θ), and S < θ − gθ."""
    return scores > threshold + gap * (1 - threshold), scores < threshold - gap * threshold
