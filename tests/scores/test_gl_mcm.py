"""gl-mcm: the reduction against float64 NumPy, and its patches against a value path written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import ZeroShotClassifier, make_score
from deltaenergy.errors import InputError
from deltaenergy.scores import local_mcm
from deltaenergy.scores.base import ScoreInputs
from tests.scores.reference import probabilities


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 5),
    p=st.integers(1, 9),
    k=st.integers(1, 12),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_reduction_equals_numpy(n: int, p: int, k: int, temperature: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    patches, texts = rng.uniform(-0.5, 0.5, (n, p, 6)), rng.uniform(-0.5, 0.5, (k, 6))
    expected = probabilities((patches @ texts.T).reshape(n * p, k), temperature).max(axis=1).reshape(n, p).max(axis=1)
    weights = torch.from_numpy(texts)
    value = local_mcm(torch.from_numpy(patches), lambda block: block @ weights.T, k, temperature)
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-9)


def test_no_block_holds_all_patches_and_classes() -> None:
    sizes: list[int] = []

    def similarities_of(block: torch.Tensor) -> torch.Tensor:
        sizes.append(len(block) * 1000)
        return torch.zeros(len(block), 1000)

    local_mcm(torch.zeros(16, 196, 4), similarities_of, 1000)
    assert max(sizes) <= 1_048_576
    assert sum(sizes) == 16 * 196 * 1000


def value_path(classifier: ZeroShotClassifier, pixels: torch.Tensor) -> torch.Tensor:
    """Patch features from transformers' modules, one image and one token at a time, with the value weights alone."""
    vision = classifier.model.module.vision_model  # type: ignore[attr-defined]
    rows = []
    for image in pixels:
        hidden = vision.embeddings(image[None])
        hidden = vision.pre_layrnorm(hidden)
        for layer in vision.encoder.layers[:-1]:
            output = layer(hidden, attention_mask=None)
            hidden = output[0] if isinstance(output, tuple) else output
        last = vision.encoder.layers[-1]
        for x in hidden[0][1:]:
            v = last.self_attn.v_proj.weight @ last.layer_norm1(x) + last.self_attn.v_proj.bias
            y = x + last.self_attn.out_proj.weight @ v + last.self_attn.out_proj.bias
            y = y + last.mlp(last.layer_norm2(y))
            u = classifier.model.module.visual_projection.weight @ vision.post_layernorm(y)  # type: ignore[attr-defined]
            rows.append(u / u.norm())
    return torch.stack(rows).view(len(pixels), -1, classifier.model.feature_dim)


@torch.no_grad()
def test_score_equals_a_hand_written_value_path(classifier: ZeroShotClassifier) -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3, 32, 32)).astype(np.float32))
    features, patches = classifier.model.image_and_patch_features(pixels)
    by_hand = value_path(classifier, pixels)
    np.testing.assert_allclose(patches.numpy(), by_hand.numpy(), atol=1e-5)
    texts = classifier.text_features.double().numpy()
    overall = probabilities(features.double().numpy() @ texts.T, 1.0).max(axis=1)
    local = probabilities((by_hand.double().numpy() @ texts.T).reshape(-1, len(texts)), 1.0).max(axis=1)
    for weight in (1.0, 0.5):
        score = make_score("gl-mcm", weight=weight).bind(classifier)
        similarities = classifier.similarities_of_features(features)
        values = score(ScoreInputs(similarities, features, patches))
        expected = overall + weight * local.reshape(3, -1).max(axis=1)
        np.testing.assert_allclose(values.numpy(), expected, atol=1e-5)


def test_defaults_are_the_papers() -> None:
    assert make_score("gl-mcm").params == {"temperature": 1.0, "weight": 1.0}


def test_features_alone_are_not_enough(classifier: ZeroShotClassifier) -> None:
    score = make_score("gl-mcm").bind(classifier)
    inputs = ScoreInputs(torch.zeros(1, 4), torch.zeros(1, 16))
    with pytest.raises(InputError, match="patches"):
        score(inputs)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"weight": -1}])
def test_bad_parameters_are_named(params: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(params))):
        make_score("gl-mcm", **params)
