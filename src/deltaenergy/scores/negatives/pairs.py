"""Features of texts that join a class and a negative ("dog and wicker basket"): encoded when an image asks for them.

All pairs of K classes and M negatives would be millions of prompts, while an image looks at a handful. Of those that
were encoded the last are kept, whatever the number of images. Each text passes through the tower by itself, so that its
feature has the same bits whatever else is asked for, and a text that was dropped comes back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.classes import fill
from deltaenergy.core.lru import LruCache
from deltaenergy.scores.negatives.candidates import encode_candidates

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

# 16 MB of features of 512 numbers.
_kept = LruCache[tuple[str, str, tuple[str, ...], str], torch.Tensor](8192)


def joined(name: str, negative: str) -> str:
    """The text of a class and a negative that an image may show at once."""
    return f"{name} and {negative}"


def text_features(model: Model, texts: Sequence[str], templates: tuple[str, ...]) -> torch.Tensor:
    """Unit features (len(texts), D): directions of the mean over the templates, on the model's device."""
    return torch.stack([_feature(model, text, templates) for text in texts]).to(model.device)


def _feature(model: Model, text: str, templates: tuple[str, ...]) -> torch.Tensor:
    key = (model.fingerprint, str(model.dtype), templates, text)
    found = _kept.get(key)
    if found is None:  # two threads may encode one text, and get the same
        prompts = [fill(template, text) for template in templates]
        found = _kept.put(key, encode_candidates(model, [prompts], resume=False)[0])
    return found
