"""Features of candidate words: tens of thousands of prompts, in chunks cached on disk.

A chunk is stored under a hash of the model and its prompts, so an interrupted run resumes, and another class list, or
another pool with the same chunk, need not encode it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.progress import Progress, part_of
from deltaenergy.files import hash_strings
from deltaenergy.files.cache import cache_folder, load_cached, store_cached
from deltaenergy.files.schema import TensorSpec
from deltaenergy.models.base import require_text

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

# A chunk takes a CLIP text tower about half a minute on a laptop, so an interruption costs little.
PROMPTS_PER_CHUNK = 8192


def encode_candidates(
    model: Model, prompts: Sequence[Sequence[str]], *, progress: Progress | None = None, resume: bool = True
) -> torch.Tensor:
    """Unit features (M, D): row i is the direction of the mean of the un-normalised vectors of `prompts[i]`.

    With `resume`, finished chunks are read from the cache folder and new ones written there.
    """
    total = sum(map(len, prompts))
    done = 0
    features = [torch.zeros(0, model.feature_dim)]
    for chunk in _chunks(prompts):
        path = _chunk_path(model, chunk)
        cached = load_cached(path, {"features": TensorSpec((len(chunk), model.feature_dim))}) if resume else None
        if cached is None:
            encoded = _encode(model, chunk, part_of(progress, done, total))
            if resume:
                store_cached(path, {"features": encoded})
        else:
            encoded = cached["features"]
        features.append(encoded)
        done += sum(map(len, chunk))
        if progress is not None:
            progress(done, total)
    return torch.cat(features)


def _chunks(prompts: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Words in runs of at most `PROMPTS_PER_CHUNK` prompts, but at least one word."""
    words = max(1, PROMPTS_PER_CHUNK // max(map(len, prompts), default=1))
    return [list(prompts[start : start + words]) for start in range(0, len(prompts), words)]


def _chunk_path(model: Model, chunk: list[Sequence[str]]) -> Path:
    lengths = [str(len(texts)) for texts in chunk]
    key = hash_strings([model.fingerprint, str(model.dtype), *lengths, *(text for texts in chunk for text in texts)])
    return cache_folder() / "candidates" / f"{key}.safetensors"


def _encode(model: Model, chunk: list[Sequence[str]], progress: Progress | None) -> torch.Tensor:
    tower = require_text(model, "mining negative labels")
    vectors = tower.project([text for texts in chunk for text in texts], progress=progress)
    means = torch.stack([part.mean(dim=0) for part in torch.split(vectors, [len(texts) for texts in chunk])])
    return tower.finish(means).float().cpu()
