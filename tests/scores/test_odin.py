"""odin: its pixel gradient against finite differences, its step and score against the formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deltaenergy import Detector, ZeroShotClassifier, load_model, make_score
from deltaenergy.errors import InputError
from deltaenergy.scores import odin
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.odin import Odin, pixel_gradient, through_the_tower
from tests.scores.reference import probabilities


@pytest.fixture(scope="module")
def double_classifier(tiny_clip_folder: Path) -> ZeroShotClassifier:
    """In double precision, so that finite differences mean something."""
    return ZeroShotClassifier(load_model(tiny_clip_folder, dtype=torch.float64), ["dog", "cat", "red car"])


def pixels(n: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, 3, 32, 32))).to(dtype)


def gradient_of(classifier: ZeroShotClassifier, images: torch.Tensor) -> torch.Tensor:
    """The gradient that the default score steps along."""
    return pixel_gradient(through_the_tower(classifier), images, Odin().temperature / classifier.model.logit_scale)


def cross_entropy(classifier: ZeroShotClassifier, image: torch.Tensor, label: int, temperature: float) -> float:
    """CE(L·s/T, label) in NumPy, from the model's features."""
    with torch.no_grad():
        z = image_features(classifier, image[None])[0]
    logits = classifier.model.logit_scale * (classifier.text_features.double().numpy() @ z) / temperature
    return float(-np.log(probabilities(logits[None], 1.0)[0, label]))


def image_features(classifier: ZeroShotClassifier, images: torch.Tensor) -> np.ndarray:
    module = classifier.model.module  # type: ignore[attr-defined]
    pooled = module.visual_projection(module.vision_model(pixel_values=images).pooler_output).double()
    return (pooled / pooled.norm(dim=1, keepdim=True)).numpy()


@pytest.mark.parametrize("temperature", [10.0, 1000.0])
def test_gradient_equals_finite_differences(double_classifier: ZeroShotClassifier, temperature: float) -> None:
    images = pixels(2, 0, torch.float64)
    scale = double_classifier.model.logit_scale
    gradient = pixel_gradient(through_the_tower(double_classifier), images, temperature / scale)
    # float32 normalisation inside the model limits how small a difference can be seen, so the step is large
    # and the difference central.
    step, rng = 1e-2, np.random.default_rng(1)
    for i in range(2):
        with torch.no_grad():
            z = image_features(double_classifier, images[i : i + 1])
        label = int((z @ double_classifier.text_features.double().numpy().T).argmax())
        largest = gradient[i].abs().max().item()
        for _ in range(12):
            where = (i, rng.integers(3), rng.integers(32), rng.integers(32))
            moved = images.clone()
            moved[where] += step
            up = cross_entropy(double_classifier, moved[i], label, temperature)
            moved[where] -= 2 * step
            down = cross_entropy(double_classifier, moved[i], label, temperature)
            assert gradient[where].item() == pytest.approx((up - down) / (2 * step), rel=1e-2, abs=2e-3 * largest)


def test_score_is_the_hot_softmax_after_the_step(classifier: ZeroShotClassifier) -> None:
    images = pixels(11, 2)
    score = Odin(epsilon=0.05).bind(classifier)
    with torch.no_grad():
        features = classifier.model.image_features(images)
    values = score(ScoreInputs(classifier.similarities_of_features(features), features, None, images))
    deviation = np.array(classifier.model.preprocessing.std).reshape(1, 3, 1, 1)
    moved = images.numpy() - 0.05 * np.sign(gradient_of(classifier, images).numpy()) / deviation
    with torch.no_grad():
        z = image_features(classifier, torch.from_numpy(moved).float())
    logits = classifier.model.logit_scale * z @ classifier.text_features.double().numpy().T
    np.testing.assert_allclose(values.numpy(), probabilities(logits, 1000.0).max(axis=1), rtol=1e-6)


@pytest.mark.parametrize(("temperature", "epsilon"), [(1000.0, 0.0014), (10.0, 0.2), (1.0, 0.0)])
def test_the_function_equals_its_formula_where_the_gradient_is_known(temperature: float, epsilon: float) -> None:
    """Similarities that are linear in the pixels: ∇ CE = W^T (p − onehot) L/T, all of it in NumPy."""
    rng = np.random.default_rng(4)
    images, weights = rng.normal(size=(11, 3, 2, 2)), rng.normal(size=(5, 12)) / 10
    std, scale = (0.5, 1.0, 2.0), 20.0

    def hot(x: np.ndarray) -> np.ndarray:
        return probabilities(scale * x.reshape(len(x), -1) @ weights.T, temperature)

    p = hot(images)
    gradient = (p - np.eye(5)[p.argmax(axis=1)]) @ weights
    moved = images - epsilon * np.sign(gradient).reshape(images.shape) / np.array(std).reshape(1, 3, 1, 1)
    matrix = torch.from_numpy(weights)
    options = {"temperature": temperature, "epsilon": epsilon, "logit_scale": scale}
    found = odin(lambda x: x.flatten(1) @ matrix.T, images, std, **options)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, hot(moved).max(axis=1), rtol=1e-10)
    tensor = odin(lambda x: x.flatten(1) @ matrix.T, torch.from_numpy(images), std, **options)
    np.testing.assert_array_equal(tensor.numpy(), found)


def test_the_function_names_what_is_wrong_with_its_pixels() -> None:
    with pytest.raises(InputError, match=r"pixels must be .*\(3, 2, 2\)"):
        odin(lambda x: x.flatten(1), np.zeros((3, 2, 2)))
    spoilt = np.zeros((4, 3, 2, 2))
    spoilt[3, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match=r"pixels have NaN.*row 3"):
        odin(lambda x: x.flatten(1), spoilt)
    assert odin(lambda x: x.flatten(1), np.zeros((0, 3, 2, 2))).shape == (0,)
    with pytest.raises(InputError, match="epsilon"):
        odin(lambda x: x.flatten(1), np.zeros((1, 3, 2, 2)), epsilon=-1)


def test_a_small_step_raises_the_predicted_class(classifier: ZeroShotClassifier) -> None:
    images = pixels(11, 2)
    with torch.no_grad():
        features = classifier.model.image_features(images)
    inputs = ScoreInputs(classifier.similarities_of_features(features), features, None, images)
    values = []
    for spec in ("odin(epsilon=0)", "odin(epsilon=0.0005)"):
        values.append(make_score(spec).bind(classifier)(inputs))
    assert (values[1] > values[0]).all()


def test_gradient_of_an_image_does_not_depend_on_its_batch(double_classifier: ZeroShotClassifier) -> None:
    images = pixels(3, 3, torch.float64)
    together = gradient_of(double_classifier, images)
    alone = torch.cat([gradient_of(double_classifier, image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=float(together.abs().max()) * 1e-5)


def test_it_runs_through_a_detector_on_images(classifier: ZeroShotClassifier, photos: Path) -> None:
    detector = Detector(classifier, "odin").calibrate(photos)
    assert len(detector.predict(photos)) == 8
    assert all(parameter.grad is None for parameter in classifier.model.module.parameters())  # type: ignore[attr-defined]


def test_the_feature_only_form_is_named_and_needs_no_pixels(classifier: ZeroShotClassifier) -> None:
    z = np.random.default_rng(0).normal(size=(6, 16))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    score = make_score("odin(epsilon=0)")
    assert score.spec == "odin(epsilon=0)" and not score.needs_images
    detector = Detector(classifier, score).calibrate(z.astype(np.float32))
    logits = classifier.model.logit_scale * z @ classifier.text_features.double().numpy().T
    expected = np.sort(probabilities(logits, 1000.0).max(axis=1))
    np.testing.assert_allclose(detector.calibration_scores, expected, rtol=1e-6)
    assert make_score("odin").needs_images
    assert "feature-only" in Odin.summary


def test_features_are_refused_where_a_step_is_asked_for(classifier: ZeroShotClassifier) -> None:
    with pytest.raises(InputError, match="pixels"):
        Detector(classifier, "odin").calibrate(np.eye(16, dtype=np.float32))
    score = Odin().bind(classifier)
    inputs = ScoreInputs(torch.zeros(1, 4), torch.zeros(1, 16))
    with pytest.raises(InputError, match="pixels"):
        score(inputs)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"epsilon": -0.1}])
def test_bad_parameters_are_named(params: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(params))):
        make_score("odin", **params)
