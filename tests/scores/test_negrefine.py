"""negrefine against its formula in float64, with texts encoded one by one; its filter, and its bounded cache."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from deltaenergy import Model, ZeroShotClassifier, make_score
from deltaenergy.core.lru import LruCache
from deltaenergy.errors import InputError
from deltaenergy.scores import negrefine
from deltaenergy.scores.availability import Given, runnable_scores
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.negatives.mining import Negatives
from deltaenergy.scores.negatives.pools import wordnet_pool
from deltaenergy.scores.negrefine import matches, refine
from tests.scores.reference import Floats
from tests.scores.test_neglabel import grouped_softmax

WORDS = ["hut", "moss", "poodle", "ink", "costa rica", "quilt", "elk", "vase", "yarn", "zinc", "tabby"]
KEPT = [word for word in WORDS if word not in {"poodle", "costa rica", "tabby"}]


def negatives(words: list[str]) -> Negatives:
    features = torch.nn.functional.normalize(torch.randn(len(words), 8, generator=torch.manual_seed(0)), dim=1)
    return Negatives(tuple(words), features, tuple(f"{word} thing" for word in words))


def test_a_match_by_hand() -> None:
    # Two classes, two negatives; the differences over T are 1, -1, 3 and 0, and σ(3) is the largest.
    cosines = torch.tensor([[0.21, 0.09], [0.23, 0.10]], dtype=torch.float64)
    alone = torch.tensor([0.20, 0.10], dtype=torch.float64)
    assert matches(cosines, alone).item() == pytest.approx(1 / (1 + math.exp(-3)), rel=1e-12)
    assert matches(cosines, alone, temperature=0.1).item() == pytest.approx(1 / (1 + math.exp(-0.3)), rel=1e-12)


def test_names_and_kinds_of_the_classes_go() -> None:
    found = refine(negatives(WORDS), ["dog", "cat"])
    assert list(found.words) == KEPT
    assert list(found.phrases) == [f"{word} thing" for word in KEPT]
    rows = [WORDS.index(word) for word in KEPT]
    assert torch.equal(found.features, negatives(WORDS).features[rows])
    # A poodle is no kind of car.
    assert "poodle" in refine(negatives(WORDS), ["car"]).words


def test_no_negative_left_is_an_error_that_says_so() -> None:
    with pytest.raises(InputError, match=r"2 negatives.*words=FILE"):
        refine(negatives(["poodle", "costa rica"]), ["dog"])


@pytest.fixture
def classifier(tiny_clip: Model) -> ZeroShotClassifier:
    return ZeroShotClassifier(tiny_clip, ["dog", "cat", "red car"], template="the nice {}")


@pytest.fixture
def word_file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return path


def unit(model: Model, texts: list[str]) -> Floats:
    return np.stack([model.encode_texts([text])[0] for text in texts]).astype(np.float64)


def test_words_are_mined_by_the_nearest_class(classifier: ZeroShotClassifier, word_file: Path) -> None:
    """As the release does, by the largest cosine; csp goes by the 0.95 quantile, which forgives one class in twenty."""
    settings = {"words": str(word_file), "keep": 0.5, "noun_templates": "the nice {}", "class_templates": ""}
    score = make_score("negrefine", too_close=1.0, **settings)
    texts, words = (unit(classifier.model, [f"the nice {w}" for w in some]) for some in (classifier.classes, WORDS))
    nearest = (words @ texts.T).max(axis=1)
    lowest = {WORDS[i] for i in np.argsort(nearest)[: len(WORDS) // 2]}
    assert {*score.mined(classifier, None).words} == lowest  # type: ignore[attr-defined]
    assert make_score("csp").mining.quantile == 0.95  # type: ignore[attr-defined]


@pytest.mark.parametrize("nearest", [1, 2, 5, 50])
def test_the_whole_score(classifier: ZeroShotClassifier, word_file: Path, nearest: int) -> None:
    """Every text by itself through the public door of the model, and all else in float64."""
    model, temperature, weight, groups = classifier.model, 0.05, 1.5, 3
    score = make_score(
        "negrefine", words=str(word_file), keep=1.0, noun_templates="the nice {}", class_templates="", groups=groups,
        temperature=temperature, weight=weight, nearest=nearest,
    )  # fmt: skip
    scorer = score.bind(classifier)
    rng = np.random.default_rng(1)
    z = rng.normal(size=(6, model.feature_dim))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    order = bytes(scorer.state["words"].numpy()).decode().split("\0")
    assert sorted(order) == sorted(KEPT)
    t, n = (unit(model, [f"the nice {word}" for word in words]) for words in (classifier.classes, order))
    s, m = z @ t.T, z @ n.T
    expected = grouped_softmax(s, m, groups, temperature)
    for i in range(len(z)):
        best = -math.inf
        for k in np.argsort(-s[i])[:nearest]:
            for j in np.argsort(-m[i])[:nearest]:
                pair = unit(model, [f"the nice {classifier.classes[k]} and {order[j]}"])[0]
                best = max(best, (z[i] @ pair - m[i, j]) / temperature)
        expected[i] += weight / (1 + math.exp(-best))
    found = scorer(ScoreInputs(torch.from_numpy(s), torch.from_numpy(z)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_defaults_are_the_papers() -> None:
    params = make_score("negrefine").params
    assert (params["weight"], params["nearest"], params["temperature"], params["groups"]) == (2.0, 5, 0.01, 100)
    csp = {**make_score("csp").params, "quantile": 1.0}
    assert {name: params[name] for name in csp} == csp


@pytest.mark.parametrize("params", [{"weight": -1.0}, {"nearest": 0}, {"temperature": -1.0}])
def test_settings_that_make_no_sense_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(params))):
        make_score("negrefine", **params)


def test_few_texts_are_kept_and_dropped_ones_come_back_as_they_were(
    tiny_clip: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negrefine, "_kept", LruCache(3))
    texts = [f"dog and {word}" for word in KEPT]
    templates = ("the nice {}", "a photo of {}")
    first = negrefine.text_features(tiny_clip, texts, templates)
    assert len(negrefine._kept) == 3
    again = negrefine.text_features(tiny_clip, texts[::-1], templates).flip(0)
    assert torch.equal(first, again)
    # The mean over templates of vectors that are not yet of unit length, then of unit length.
    assert tiny_clip.text is not None
    vectors = tiny_clip.text.project(["the nice dog and hut", "a photo of dog and hut"]).double().numpy()
    mean = vectors.mean(axis=0)
    np.testing.assert_allclose(first[0].numpy(), mean / np.linalg.norm(mean), atol=1e-5)


def test_all_leaves_it_out_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaenergy.scores.negatives.mining.wordnet_pool", wordnet_pool)
    usable, left_out = runnable_scores(Given())
    assert not {"negrefine", "interneg"} & {score.name for score in usable}
    assert left_out is not None and "negrefine" in left_out and "interneg" in left_out
    # 46,446 nouns in eight templates and 11,047 adjectives in four.
    assert make_score("negrefine").prompts == 8 * 46_446 + 4 * 11_047
    assert make_score("interneg").prompts == 56_788 + 14_006
