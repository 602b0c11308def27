"""Zero-shot classifiers: prompts to class vectors, cosines, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy.errors import InputError


def normalised(array: np.ndarray) -> np.ndarray:
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def test_similarities_are_cosines_of_images_and_prompts(tiny_clip: de.Model, photos: object) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat"], template="the {}")
    expected = tiny_clip.encode_images(photos) @ tiny_clip.encode_texts(["the dog", "the cat"]).T
    np.testing.assert_allclose(classifier.similarities(photos), expected, atol=1e-6)


def test_features_give_the_same_as_images(tiny_clip: de.Model, photos: object) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    features = tiny_clip.encode_images(photos)
    expected = classifier.similarities(photos)
    np.testing.assert_allclose(classifier.similarities(features), expected, atol=1e-6)
    np.testing.assert_allclose(classifier.similarities(torch.from_numpy(features).double()), expected, atol=1e-6)


def test_ensembles_average_normalised_prompts(tiny_clip: de.Model) -> None:
    templates = ["a photo of a {}.", "{}", "the sketch of {}"]
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "red car"], templates=templates)
    for row, name in zip(classifier.text_features.numpy(), ["dog", "red car"]):
        prompts = tiny_clip.encode_texts([template.replace("{}", name) for template in templates]).astype(np.float64)
        np.testing.assert_allclose(row, normalised(normalised(prompts).mean(axis=0)), atol=1e-6)


def test_one_class_and_duplicates_work(tiny_clip: de.Model, photos: object) -> None:
    assert de.ZeroShotClassifier(tiny_clip, ["dog"]).similarities(photos).shape == (8, 1)
    with pytest.warns(UserWarning, match="Duplicate class names"):
        classifier = de.ZeroShotClassifier(tiny_clip, ["missile", "dog", "missile"])
    similarities = classifier.similarities(photos)
    assert similarities.shape == (8, 3)
    np.testing.assert_array_equal(similarities[:, 0], similarities[:, 2])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((2, 9), np.float32), "9 columns"),
        (np.full((2, 16), np.nan, np.float32), "NaN or infinity in 2 row"),
        (np.ones((2, 16), np.float32), "unit length"),
    ],
)
def test_unusable_features_are_refused(tiny_clip: de.Model, features: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        de.ZeroShotClassifier(tiny_clip, ["dog"]).similarities(features)
