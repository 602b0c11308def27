"""The text tower under several threads, and its cache of prompts."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import deltaenergy as de
from deltaenergy.models.base import TowerModel


@pytest.fixture
def fresh(tiny_clip_folder: Path) -> TowerModel:
    return de.load_model(tiny_clip_folder)


def test_threads_may_encode_at_once(fresh: TowerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads on overlapping prompts, with a cache so small that they keep throwing each other's out."""
    monkeypatch.setattr("deltaenergy.models.text.CACHED_PROMPTS", 5)
    switch = sys.getswitchinterval()
    texts = [f"a photo of a {word} {i}" for i in range(8) for word in ("dog", "cat", "red car")]
    expected = dict(zip(texts, fresh.text.encode(texts)))
    orders = [[texts[(start + step * i) % len(texts)] for i in range(12)] for start in range(8) for step in (1, 5, 7)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(fresh.text.encode, orders))
    finally:
        sys.setswitchinterval(switch)
    for order, features in zip(orders, results):
        torch.testing.assert_close(features, torch.stack([expected[text] for text in order]), atol=1e-6, rtol=0)
    assert len(fresh.text._cache) <= 5


def test_the_cache_forgets_what_was_not_used_for_longest(fresh: TowerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaenergy.models.text.CACHED_PROMPTS", 3)
    fresh.text.encode(["dog", "cat", "car"])
    fresh.text.encode(["dog"])
    fresh.text.encode(["photo"])
    assert list(fresh.text._cache) == ["car", "dog", "photo"]
    fresh.text.encode(["a", "b", "c", "d", "e"])
    assert list(fresh.text._cache) == ["c", "d", "e"]


def test_embeddings_of_tokens(fresh: TowerModel) -> None:
    ids = fresh.text.tokenize(["a dog"])[0]
    assert torch.equal(fresh.text.embed(ids), fresh.text.embedding_weight[torch.tensor(ids)])
    assert fresh.text.embed([]).shape == (0, fresh.text.width)
    assert fresh.text.blocks == 2
