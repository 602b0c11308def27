"""interneg's choice of words against its definition in float64, and what it says when classes are not known."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Detector, Model, ZeroShotClassifier, make_score
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.interneg import class_means, select
from deltaenergy.testing.samples import random_pictures
from tests.scores.reference import Floats
from tests.scores.test_neglabel import grouped_softmax

WORDS = ["hut", "moss", "ink", "quilt", "elk", "vase", "yarn", "zinc", "fog", "oat"]
CLASSES = ["dog", "cat", "red car"]


def units(rng: np.random.Generator, count: int, d: int) -> Floats:
    rows = rng.normal(size=(count, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_definition(words: Floats, nouns: int, texts: Floats, means: Floats, count: int) -> list[int]:
    """One word and one class at a time; then nouns and adjectives apart, as many as their share of the words kept."""
    ranks = {}
    for i, word in enumerate(words):
        margins = [float(t @ mean) - float(word @ mean) for t, mean in zip(texts, means, strict=True)]
        if all(margin > 0 for margin in margins):
            ranks[i] = sum(margins) / len(margins)
    order = sorted(ranks, key=lambda i: -ranks[i])
    far_nouns, far_adjectives = [i for i in order if i < nouns], [i for i in order if i >= nouns]
    adjectives = int(Fraction(count * len(far_adjectives), max(1, len(order))))
    return far_nouns[: count - adjectives] + far_adjectives[:adjectives]


def test_a_choice_by_hand() -> None:
    # Two classes whose images lie on the axes; each text has cosine 0.8 with its own.
    means = torch.eye(2, 3, dtype=torch.float64)
    texts = torch.tensor([[0.8, 0.0, 0.6], [0.0, 0.8, 0.6]], dtype=torch.float64)
    words = torch.tensor(
        [
            [0.9, 0.0, 0.436],  # nearer to the first class's images than its name
            [0.6, 0.0, 0.8],  # margins 0.2 and 0.8
            [0.0, 0.0, 1.0],  # margins 0.8 and 0.8
            [-1.0, 0.0, 0.0],  # margins 1.8 and 0.8
            [0.8, 0.0, 0.6],  # as near as the name: not farther
        ],
        dtype=torch.float64,
    )
    assert select(words, 5, texts, means, 10).tolist() == [3, 2, 1]
    assert select(words, 5, texts, means, 2).tolist() == [3, 2]
    # Of two nouns one is kept, of three adjectives one: half of two words each, though both nouns' rivals are farther.
    assert select(words, 2, texts, means, 2).tolist() == [1, 3]
    assert select(words, 2, texts, means, 10).tolist() == [1, 3, 2]


@settings(max_examples=40, deadline=None)
@given(k=st.integers(1, 6), m=st.integers(1, 60), count=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_the_choice_is_as_defined(k: int, m: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    nouns = int(rng.integers(0, m + 1))
    means, words = units(rng, k, 6), units(rng, m, 6)
    texts = means + 0.5 * units(rng, k, 6)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    found = select(torch.from_numpy(words), nouns, torch.from_numpy(texts), torch.from_numpy(means), count)
    assert found.tolist() == by_definition(words, nouns, texts, means, count)


def test_means_are_of_unit_length_and_of_classes_with_images() -> None:
    features = units(np.random.default_rng(0), 5, 4)
    present, means = class_means(torch.from_numpy(features), torch.tensor([2, 0, 2, 2, 0]), 4)
    assert present.tolist() == [0, 2]
    for mean, rows in zip(means.numpy(), ([1, 4], [0, 2, 3]), strict=True):
        expected = features[rows].mean(axis=0)
        np.testing.assert_allclose(mean, expected / np.linalg.norm(expected), rtol=1e-12)


@pytest.fixture
def classifier(tiny_clip: Model) -> ZeroShotClassifier:
    return ZeroShotClassifier(tiny_clip, CLASSES)


@pytest.fixture
def word_file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return path


def test_the_whole_score(classifier: ZeroShotClassifier, word_file: Path) -> None:
    """Images beside their class's text, so that bounds are high; words one by one through the model's public door."""
    rng, texts = np.random.default_rng(3), classifier.text_features.double().numpy()
    labels = np.array([0, 1, 2, 0, 1, 2, 2])
    z = texts[labels] + 0.3 * units(rng, len(labels), texts.shape[1])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    score = make_score("interneg", words=str(word_file), groups=2, count=6, temperature=0.05)
    known = ScoreInputs(torch.from_numpy(z @ texts.T), torch.from_numpy(z), labels=torch.from_numpy(labels))
    scorer = score.bind(classifier).fit(known)
    words = np.stack([classifier.model.encode_texts([f"the nice {w}"])[0] for w in WORDS]).astype(np.float64)
    means = np.stack([z[labels == k].mean(axis=0) for k in range(3)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    chosen = by_definition(words, len(WORDS), texts, means, 6)
    assert 4 <= len(chosen) <= 6
    negatives = scorer.state["negatives"].double().numpy()
    order = [int(np.argmin(np.linalg.norm(words - row, axis=1))) for row in negatives]
    assert sorted(order) == sorted(chosen)
    expected = grouped_softmax(z @ texts.T, z @ words[order].T, 2, 0.05)
    np.testing.assert_allclose(scorer(known).numpy(), expected, rtol=1e-4)


def labelled(labels: list[str | None]) -> list[ImageItem]:
    pictures = random_pictures(len(labels))
    return [
        ImageItem(f"{i}.png", picture, label) for i, (picture, label) in enumerate(zip(pictures, labels, strict=True))
    ]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["dog", None], r"interneg.*1\.png.*class label"),
        (["dog", "cta"], r"interneg.*'cta'.*'cat'"),
    ],
)
def test_images_without_a_class_are_refused(
    classifier: ZeroShotClassifier, word_file: Path, labels: list[str | None], message: str
) -> None:
    detector = Detector(classifier, make_score("interneg", words=str(word_file)))
    with pytest.raises(InputError, match=message):
        detector.calibrate(labelled(labels))


def test_without_labels_it_says_what_to_give(classifier: ZeroShotClassifier, word_file: Path) -> None:
    scorer = make_score("interneg", words=str(word_file)).bind(classifier)
    with pytest.raises(InputError, match="label column"):
        scorer.fit(ScoreInputs(torch.zeros(2, 3), torch.eye(2, classifier.model.feature_dim)))


def test_a_class_without_images_is_told_of(classifier: ZeroShotClassifier, word_file: Path) -> None:
    detector = Detector(classifier, make_score("interneg", words=str(word_file)))
    with pytest.warns(UserWarning, match=r"1 of the 3 classes.*'cat'"):
        detector.calibrate(labelled(["dog", "red car", "dog"]))


def test_words_that_are_all_too_near_are_told_of(classifier: ZeroShotClassifier, word_file: Path) -> None:
    """The images of each class lie opposite to its text, so that any word is nearer: the farthest of them are taken."""
    texts = classifier.text_features
    scorer = make_score("interneg", words=str(word_file), count=4).bind(classifier)
    with pytest.warns(UserWarning, match="none of 10 words"):
        fitted = scorer.fit(ScoreInputs(-texts @ texts.T, -texts, labels=torch.arange(3)))
    words = np.stack([classifier.model.encode_texts([f"the nice {w}"])[0] for w in WORDS]).astype(np.float64)
    farthest = np.argsort((words @ -texts.double().numpy().T).mean(axis=1))[:4]
    found = fitted.state["negatives"].double().numpy()
    order = [int(np.argmin(np.linalg.norm(words - row, axis=1))) for row in found]
    assert sorted(order) == sorted(farthest.tolist())


def test_defaults_are_the_papers() -> None:
    params = make_score("interneg").params
    assert (params["count"], params["groups"], params["temperature"]) == (2000, 5, 0.01)
    assert params["exclude"] == make_score("neglabel").params["exclude"]
