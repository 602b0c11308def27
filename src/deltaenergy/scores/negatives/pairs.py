"""Features of texts that join a class and a negative ("dog and wicker basket"): encoded when an image asks for them.

All pairs of K classes and M negatives would be millions of prompts, while an image looks at a handful. What was encoded
is kept, the last `MOST_KEPT` texts of the process, whatever the number of images. Each text passes through the tower by
itself, so that its feature has the same bits whatever else is asked for, and a text that was dropped comes back as it
was.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.classes import fill
from deltaenergy.scores.negatives.candidates import encode_candidates

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

# 16 MB of features of 512 numbers.
MOST_KEPT = 8192
Key = tuple[str, str, tuple[str, ...], str]
_kept: OrderedDict[Key, torch.Tensor] = OrderedDict()
_lock = threading.Lock()


def joined(name: str, negative: str) -> str:
    """The text of a class and a negative that an image may show at once."""
    return f"{name} and {negative}"


def text_features(model: Model, texts: Sequence[str], templates: tuple[str, ...]) -> torch.Tensor:
    """Unit features (len(texts), D): directions of the mean over the templates, on the model's device."""
    return torch.stack([_feature(model, text, templates) for text in texts]).to(model.device)


def _feature(model: Model, text: str, templates: tuple[str, ...]) -> torch.Tensor:
    key = (model.fingerprint, str(model.dtype), templates, text)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    # Outside the lock: two threads may encode one text, and get the same.
    feature = encode_candidates(model, [[fill(template, text) for template in templates]], resume=False)[0]
    with _lock:
        _kept[key] = feature
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return feature
