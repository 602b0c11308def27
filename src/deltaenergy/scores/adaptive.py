"""Adapters: scores that learn from the images they judge, so that what came before decides what is said now.

A `Score` gives an image the same number whatever else is scored. An adapter does not: it keeps a memory of the stream,
and the same image may be known today and unknown tomorrow. So adapters are no scores, have a registry of their own, and
run in `deltaenergy.detector.adaptive.AdaptiveDetector` alone, which gives no p-values and says that order matters.

An `Adapter` is settings, as a score is. `prepare` makes what depends on the classifier alone, `begin` a fresh memory; a
`Memory` takes images `batch` by `batch`, learns from each batch and scores it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from deltaenergy.core.progress import Progress
from deltaenergy.core.registry import Registry
from deltaenergy.core.specs import Count, Positive, build, parse
from deltaenergy.errors import InputError
from deltaenergy.scores.negatives.mining import WordPool

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

AdapterType = TypeVar("AdapterType", bound="type[Adapter]")


class Memory(ABC):
    """What an adapter has seen of one stream."""

    @abstractmethod
    def judge(self, similarities: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Scores (B,) of the next images, larger = more in-distribution, from their similarities and features."""


@dataclass(frozen=True)
class Adapter(WordPool, ABC):
    """Base of all adapters: settings with the paper's defaults.

    `batch` is how many images are judged together, whatever the batch of the image tower: the memory is changed once
    for each, and a stream's last batch may be smaller.
    """

    kind: ClassVar[str] = "adapter"
    temperature: Positive = 0.01
    batch: Count = 256
    seed: int = 0

    @abstractmethod
    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        """Tensors that depend on the classifier alone."""

    @abstractmethod
    def begin(self, classifier: Classifier, prepared: Mapping[str, torch.Tensor]) -> Memory:
        """A memory that has seen nothing."""


ADAPTERS: Registry[type[Adapter]] = Registry("adapter", package="deltaenergy.scores")


def register_adapter(cls: AdapterType) -> AdapterType:
    """Class decorator: make `cls` known under its `name`."""
    ADAPTERS.add(cls.name, cls)
    return cls


def make_adapter(spec: str | Adapter, **params: Any) -> Adapter:
    """An adapter from its name and optional parameters: `make_adapter("adaneg(batch=1)")`."""
    if isinstance(spec, Adapter):
        if params:
            raise InputError("Pass parameters with an adapter's name, not with an Adapter object.")
        return spec
    if not isinstance(spec, str):
        raise InputError(f"adapter must be a name such as 'adaneg', or an Adapter, got {spec!r}.")
    parts = parse(spec, "adapter")
    if len(parts) != 1:
        raise InputError(f"{spec!r} names {len(parts)} adapters: give one.")
    return build(ADAPTERS.get(parts[0].name), parts[0], params)


def confident(scores: torch.Tensor, threshold: float, gap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Which scores between 0 and 1 are surely known, and which surely unknown: S > θ + g(1 − θ), and S < θ − gθ."""
    return scores > threshold + gap * (1 - threshold), scores < threshold - gap * threshold
