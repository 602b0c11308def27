"""The text tower under several threads, and its cache of prompts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import deltaenergy as de
from deltaenergy.core.lru import LruCache
from deltaenergy.models.base import TowerModel


@pytest.fixture
def fresh(tiny_clip_folder: Path) -> TowerModel:
    return de.load_model(tiny_clip_folder)


def test_threads_may_encode_at_once(fresh: TowerModel) -> None:
    """Overlapping prompts, with a cache so small that the threads keep throwing each other's out."""
    texts = [f"a photo of a {word} {i}" for i in range(4) for word in ("dog", "cat", "red car")]
    expected = dict(zip(texts, fresh.text.encode(texts)))
    fresh.text._cache = LruCache(5)
    orders = [[texts[(start + step * i) % len(texts)] for i in range(5)] for start in range(12) for step in (1, 5, 7)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(fresh.text.encode, orders))
    for order, features in zip(orders, results):
        torch.testing.assert_close(features, torch.stack([expected[text] for text in order]), atol=1e-6, rtol=0)
    assert len(fresh.text._cache) == 5


def test_the_tokenizer_is_never_called_by_two_threads_at_once(fresh: TowerModel) -> None:
    """Fast tokenizers raise "Already borrowed" when one thread sets their padding while another reads."""

    class Watched:
        inside = most = 0

        def __init__(self, tokenizer: Any) -> None:
            self.tokenizer, self.eos_token_id = tokenizer, tokenizer.eos_token_id

        def __call__(self, *args: Any, **options: Any) -> Any:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.01)
            self.inside -= 1
            return self.tokenizer(*args, **options)

    fresh.text.tokenizer = watched = Watched(fresh.text.tokenizer)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fresh.text.encode, [[f"dog {i}"] for i in range(8)]))
    assert watched.most == 1


def test_the_cache_keeps_the_prompts_that_were_used_last(fresh: TowerModel) -> None:
    cache = fresh.text._cache = LruCache(3)
    fresh.text.encode(["dog", "cat", "car"])
    fresh.text.encode(["dog"])
    fresh.text.encode(["photo"])
    assert [text for text in ("dog", "cat", "car", "photo") if cache.get(text) is None] == ["cat"]
    fresh.text.encode(["a", "b", "c", "d", "e"])
    assert [text for text in "abcde" if cache.get(text) is not None] == ["c", "d", "e"] and len(cache) == 3


def test_embeddings_of_tokens(fresh: TowerModel) -> None:
    ids = fresh.text.tokenize(["a dog"])[0]
    assert torch.equal(fresh.text.embed(ids), fresh.text.embedding_weight[torch.tensor(ids)])
    assert fresh.text.embed([]).shape == (0, fresh.text.width)
    assert fresh.text.blocks == 2
