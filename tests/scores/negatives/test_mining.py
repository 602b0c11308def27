"""Mining: quantiles, shares, order, prompts, and a cache that survives interruption and damage."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Model, ZeroShotClassifier, make_score
from deltaenergy.scores.csp import ADJECTIVE_TEMPLATES, NOUN_TEMPLATES
from deltaenergy.scores.negatives import pools
from deltaenergy.scores.negatives.mining import MiningSettings, class_similarity, lowest, mine, prompts_of, select
from deltaenergy.scores.negatives.pools import Pool, encode_candidates, wordnet_pool

POOL = Pool(nouns=("tree", "stone", "cloud", "sand", "rope", "bell", "coin"), adjectives=("wet", "odd", "soft", "old"))


def unit_rows(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(
        torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d))).double(), dim=1
    )


@settings(max_examples=60, deadline=None)
@given(m=st.integers(0, 30), k=st.integers(1, 50), q=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_quantiles_equal_numpys(m: int, k: int, q: float, seed: int) -> None:
    words, classes = unit_rows(m, 6, seed), unit_rows(k, 6, seed + 1)
    quantile, nearest = class_similarity(words, classes, q)
    cosines = words.numpy() @ classes.numpy().T
    np.testing.assert_allclose(quantile.numpy(), np.quantile(cosines, q, axis=1), atol=1e-12)
    np.testing.assert_allclose(nearest.numpy(), cosines.max(axis=1), atol=1e-12)


@pytest.mark.parametrize(
    ("count", "share", "kept"),
    [
        (56_909, 0.15, 8_536),
        (13_091, 0.15, 1_963),
        (46_560, 0.15, 6_984),
        (10_060, 0.15, 1_509),
        (100, 0.29, 29),
        (3, 0.15, 1),
        (0, 0.15, 0),
        (7, 1.0, 7),
    ],
)
def test_the_share_that_is_kept(count: int, share: float, kept: int) -> None:
    # The first four are the papers' own numbers for ImageNet-1k.
    assert len(lowest(torch.arange(count).flip(0), share)) == kept


def test_ties_keep_the_order_of_the_list() -> None:
    assert lowest(torch.tensor([0.5, 0.1, 0.1, 0.1, 0.0]), 0.6).tolist() == [4, 1, 2]


def test_nouns_and_adjectives_are_selected_apart() -> None:
    # One class along the first axis: the cosine is the first coordinate. All adjectives are closer than any noun.
    first = torch.tensor([0.1, 0.3, 0.2, 0.4, 0.8, 0.7, 0.9, 0.6]).double()
    words = torch.stack([first, (1 - first**2).sqrt()], dim=1)
    index = select(words, torch.tensor([[1.0, 0.0]]).double(), 4, MiningSettings(keep=0.5))
    assert sorted(index.tolist()) == [0, 2, 5, 7]


def test_words_too_close_to_a_class_come_last() -> None:
    # Two classes; word 0 equals a class, but its median cosine is the lowest.
    classes = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]).double()
    words = torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [1, 1, 1], [1, 1, 2]]).double(), dim=1)
    chosen = MiningSettings(quantile=0.0, keep=0.4)
    assert select(words, classes, 3, chosen).tolist() == [0]
    assert select(words, classes, 3, MiningSettings(quantile=0.0, keep=0.4, too_close=0.95)).tolist() == [2]


def test_prompts_of_neglabel() -> None:
    made = prompts_of(POOL, MiningSettings())
    assert made[:2] == [["the nice tree"], ["the nice stone"]]
    assert made[7:9] == [["This is a wet photo"], ["This is a odd photo"]]
    assert len(made) == 11


def test_prompts_of_csp() -> None:
    recipe = make_score("csp").mining  # type: ignore[attr-defined]
    assert len(recipe.superclasses) == 14
    made = prompts_of(POOL, recipe)
    assert made[0] == [template.replace("{}", "tree") for template in NOUN_TEMPLATES]
    superclass = random.Random(0).choice(recipe.superclasses)
    assert made[7] == [template.replace("{}", f"wet {superclass}") for template in ADJECTIVE_TEMPLATES]
    assert prompts_of(POOL, recipe) == made
    assert recipe.too_close == 0.95


def test_candidates_average_before_they_normalise(tiny_clip: Model) -> None:
    texts = [["a dog", "the red dog", "x"], ["cat"]]
    module, tokenizer = tiny_clip.module, tiny_clip.text.tokenizer  # type: ignore[attr-defined]
    rows = []
    for group in texts:
        raw = []
        for text in group:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            hidden = module.text_model(input_ids=ids).last_hidden_state[0, -1]
            raw.append(module.text_projection(hidden).double().numpy())
        mean = np.mean(raw, axis=0)
        rows.append(mean / np.linalg.norm(mean))
    np.testing.assert_allclose(encode_candidates(tiny_clip, texts).numpy(), np.stack(rows), atol=1e-6)


def test_mining_is_deterministic_and_matches_a_direct_computation(tiny_clip: Model) -> None:
    classes = torch.from_numpy(tiny_clip.encode_texts(["a photo of a dog.", "a photo of a cat.", "a red car"]))
    recipe = MiningSettings(keep=0.3)
    mined = mine(tiny_clip, classes, POOL, recipe, cache=False)
    nouns = tiny_clip.encode_texts([f"the nice {word}" for word in POOL.nouns])
    adjectives = tiny_clip.encode_texts([f"This is a {word} photo" for word in POOL.adjectives])
    expected = set()
    for words, features in ((POOL.nouns, nouns), (POOL.adjectives, adjectives)):
        distance = np.quantile(features.astype(np.float64) @ classes.numpy().astype(np.float64).T, 0.95, axis=1)
        expected |= {words[i] for i in np.argsort(distance)[: int(0.3 * len(words))]}
    assert set(mined.words) == expected
    assert len(mined.words) == len(expected)
    for word, feature in zip(mined.words, mined.features):
        prompt = f"the nice {word}" if word in POOL.nouns else f"This is a {word} photo"
        np.testing.assert_allclose(feature.numpy(), tiny_clip.encode_texts(prompt)[0], atol=1e-6)
    again = mine(tiny_clip, classes, POOL, recipe, cache=False)
    assert again.words == mined.words
    assert torch.equal(again.features, mined.features)


def test_the_seed_permutes_the_order_only(tiny_clip: Model) -> None:
    classes = torch.from_numpy(tiny_clip.encode_texts(["dog", "cat"]))
    orders = {mine(tiny_clip, classes, POOL, MiningSettings(keep=1.0, seed=seed)).words for seed in range(4)}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(POOL.words)}


def count_encoded(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many texts each bulk pass of the tower gets."""
    counts: list[int] = []
    original = model.text.project

    def project(texts: list[str], **options: object) -> torch.Tensor:
        counts.append(len(texts))
        return original(texts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(model.text, "project", project)
    return counts


def test_the_cache_is_keyed_by_classes_pool_and_recipe(tiny_clip: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = torch.from_numpy(tiny_clip.encode_texts(["dog", "cat"]))
    others = torch.from_numpy(tiny_clip.encode_texts(["dog", "car"]))
    counts = count_encoded(tiny_clip, monkeypatch)
    first = mine(tiny_clip, classes, POOL)
    assert sum(counts) == len(POOL.words)
    second = mine(tiny_clip, classes, POOL)
    assert second.words == first.words
    assert torch.equal(second.features, first.features)
    mine(tiny_clip, others, POOL)
    mine(tiny_clip, classes, POOL, MiningSettings(quantile=0.5))
    assert sum(counts) == len(POOL.words), "candidates are encoded once for all class lists"
    mine(tiny_clip, classes, Pool(nouns=POOL.nouns[:-1], adjectives=POOL.adjectives))
    assert sum(counts) > len(POOL.words)


def test_an_interrupted_run_goes_on_where_it_stopped(tiny_clip: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "PROMPTS_PER_CHUNK", 2)
    classes = torch.from_numpy(tiny_clip.encode_texts(["dog", "cat"]))
    counts = count_encoded(tiny_clip, monkeypatch)

    def stop(done: int, total: int | None) -> None:
        assert total == 11
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine(tiny_clip, classes, POOL, progress=stop)
    before = sum(counts)
    whole = mine(tiny_clip, classes, POOL, cache=False)
    counts.clear()
    steps: list[int] = []
    resumed = mine(tiny_clip, classes, POOL, progress=lambda done, total: steps.append(done))
    assert sum(counts) <= 11 - (before - 2)
    assert steps == sorted(steps)
    assert steps[-1] == 11
    assert resumed.words == whole.words
    np.testing.assert_allclose(resumed.features.numpy(), whole.features.numpy(), atol=1e-6)


def test_damaged_cache_files_are_made_again(tiny_clip: Model, own_cache: Path) -> None:
    classes = torch.from_numpy(tiny_clip.encode_texts(["dog", "cat"]))
    first = mine(tiny_clip, classes, POOL)
    files = list(own_cache.rglob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:20])
    again = mine(tiny_clip, classes, POOL)
    assert again.words == first.words
    assert not list(own_cache.rglob("*.part"))


def test_a_cache_that_cannot_be_written_only_warns(
    tiny_clip: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DELTAENERGY_CACHE", str(tmp_path / "file"))
    classes = torch.from_numpy(tiny_clip.encode_texts(["dog", "cat"]))
    with pytest.warns(UserWarning, match="DELTAENERGY_CACHE"):
        mined = mine(tiny_clip, classes, POOL)
    assert len(mined.words) == 2


def test_binding_mines_for_its_classifier_and_anew_for_another(tiny_clip: Model, word_list: Path) -> None:
    score = make_score("neglabel", words=str(word_list), keep=0.2)
    dogs = ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    first = score.bind(dogs).state["negatives"]
    assert first.shape == (12, tiny_clip.feature_dim)
    assert torch.equal(score.bind(dogs).state["negatives"], first)
    cars = score.bind(ZeroShotClassifier(tiny_clip, ["red car"]))
    assert not torch.equal(cars.state["negatives"], first)


def test_default_pools_of_the_scores() -> None:
    for name, nouns in (("neglabel", 56_788), ("neglabel+delta-energy", 56_788), ("csp", 46_446)):
        assert len(wordnet_pool(make_score(name).params["exclude"].split()).nouns) == nouns
    assert make_score("csp+delta-energy").params["exclude"] == make_score("csp").params["exclude"]


@pytest.mark.campaign
def test_the_whole_pool_on_a_tiny_model(tiny_clip: Model) -> None:
    """All of WordNet's words, as on a real model: 15 % of the nouns and 15 % of the adjectives are kept."""
    pool = wordnet_pool(("noun.animal", "noun.food"))
    assert len(pool.nouns) + len(pool.adjectives) == 70_794
    texts = tiny_clip.text.encode(["a photo of a dog.", "a photo of a cat."])
    mined = mine(tiny_clip, texts, pool, MiningSettings(), cache=False)
    nouns, adjectives = set(pool.nouns), set(pool.adjectives)
    kept = sum(word in nouns for word in mined.words), sum(word in adjectives - nouns for word in mined.words)
    assert abs(len(mined.words) - 0.15 * 70_794) <= 2 and kept[0] >= 0.15 * len(pool.nouns) - 1 and kept[1] > 0
    assert mined.features.shape == (len(mined.words), 16)
    torch.testing.assert_close(mined.features.norm(dim=1), torch.ones(len(mined.features)), atol=1e-4, rtol=0)
