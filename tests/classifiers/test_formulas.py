"""The methods' formulas in float64 NumPy, written down anew from their papers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.locoop import LoCoOpClassifier, irrelevant_entropy
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES


@pytest.fixture(scope="module")
def features(tiny_clip: Model, coloured: Path) -> Any:
    return tiny_clip.encode_images(coloured)


def tensors_of(classifier: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.double().numpy() for name, tensor in classifier.state_dict().items()}


def unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_clip_adapter(tiny_clip: Model, train_set: TrainSet, features: Any) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method="clip-adapter(alpha=0.3)", recipe={"epochs": 2})
    t = tensors_of(classifier)
    assert t["w1"].shape == (4, 16) and t["w2"].shape == (16, 4)
    adapted = np.maximum(np.maximum(features @ t["w1"].T, 0) @ t["w2"].T, 0)
    z = unit(0.3 * adapted + 0.7 * features)
    np.testing.assert_allclose(classifier.similarities(features), z @ t["text_features"].T, atol=1e-6)
    zero_shot = de.ZeroShotClassifier(tiny_clip, CLASSES)
    np.testing.assert_allclose(t["text_features"], zero_shot.text_features.numpy(), atol=1e-6)


def test_tip_adapter(tiny_clip: Model, train_set: TrainSet, features: Any) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method="tip-adapter(alpha=2.0,beta=3.0)")
    t = tensors_of(classifier)
    keys = unit(train_set.images.features.double().numpy().mean(axis=1))  # type: ignore[attr-defined]
    np.testing.assert_allclose(t["keys"], keys, atol=1e-6)
    one_hot = np.eye(3)[np.array(train_set.sample.labels)]
    scale = tiny_clip.logit_scale
    logits = scale * features @ t["text_features"].T + 2 * np.exp(-3 * (1 - features @ keys.T)) @ one_hot
    np.testing.assert_allclose(classifier.similarities(features) * scale, logits, atol=1e-4)
    assert classifier.record["epochs"] == [] and classifier.record["recipe"] is None


def test_tip_adapter_f_moves_the_keys_only(tiny_clip: Model, train_set: TrainSet) -> None:
    plain = tensors_of(de.tune(tiny_clip, CLASSES, train_set, method="tip-adapter"))
    tuned = tensors_of(de.tune(tiny_clip, CLASSES, train_set, method="tip-adapter-f", recipe={"epochs": 2}))
    assert np.abs(plain["keys"] - tuned["keys"]).max() > 1e-4
    np.testing.assert_array_equal(plain["text_features"], tuned["text_features"])


def test_cocoop_shifts_the_context_of_each_image(tiny_clip: Model, train_set: TrainSet, features: Any) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method="cocoop", recipe={"epochs": 2})
    from deltaenergy.models.towers.prompts import LearnedPrompts

    t = tensors_of(classifier)
    prompts = LearnedPrompts(tiny_clip.text, CLASSES, 4)
    found = classifier.similarities(features)
    for i in (0, 7, 17):
        shift = np.maximum(t["w1"] @ features[i] + t["b1"], 0) @ t["w2"].T + t["b2"]
        texts = prompts(torch.from_numpy((t["context"] + shift).astype(np.float32))).detach().numpy()
        np.testing.assert_allclose(found[i], texts @ features[i], atol=1e-5)


def test_cocoop_with_large_weights_in_every_place(tiny_clip: Model, train_set: TrainSet, features: Any) -> None:
    """Every weight and bias is large enough that leaving it out would show."""
    from deltaenergy.classifiers.cocoop import CoCoOp
    from deltaenergy.models.towers.prompts import LearnedPrompts

    built = CoCoOp().build(tiny_clip, CLASSES, train_set.images, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    for name in ("w1", "b1", "w2", "b2"):
        parameter = built.get_parameter(name)
        drawn = 0.5 * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(1 + drawn.abs() if name == "b1" else drawn)  # so that no unit is off for all images
    t, found = tensors_of(built), built.similarities(features)
    prompts = LearnedPrompts(tiny_clip.text, CLASSES, 4)

    def expected(i: int, **changed: Any) -> Any:
        w = {**t, **changed}
        shift = np.maximum(w["w1"] @ features[i] + w["b1"], 0) @ w["w2"].T + w["b2"]
        return prompts(torch.from_numpy((w["context"] + shift).astype(np.float32))).detach().numpy() @ features[i]

    for i in (0, 7, 17):
        np.testing.assert_allclose(found[i], expected(i), atol=1e-5)
        for name in ("b1", "b2"):
            assert np.abs(found[i] - expected(i, **{name: np.zeros_like(t[name])})).max() > 1e-3, name


def test_cocoop_s_neutral_image_is_the_mean_training_image(tiny_clip: Model, train_set: TrainSet) -> None:
    """Of unit length; the class texts that are kept are those for it."""
    from deltaenergy.classifiers.cocoop import CoCoOp
    from deltaenergy.models.towers.prompts import LearnedPrompts

    built = CoCoOp().build(tiny_clip, CLASSES, train_set.images, torch.Generator().manual_seed(0))
    built.get_parameter("w2").data.mul_(20)  # so that another image would give other texts
    t = tensors_of(built.eval())
    mean = train_set.images.mean_features().double().numpy().mean(axis=0)
    neutral = mean / np.linalg.norm(mean)
    np.testing.assert_allclose(t["neutral"], neutral, atol=1e-6)
    shift = np.maximum(t["w1"] @ neutral + t["b1"], 0) @ t["w2"].T + t["b2"]
    texts = LearnedPrompts(tiny_clip.text, CLASSES, 4)(torch.from_numpy((t["context"] + shift).astype(np.float32)))
    torch.testing.assert_close(built.text_features, texts, atol=1e-5, rtol=0)


def test_cocoop_begins_as_words(tiny_clip: Model, train_set: TrainSet) -> None:
    from deltaenergy.classifiers.cocoop import CoCoOp

    built = CoCoOp().build(tiny_clip, CLASSES, train_set.images, torch.Generator().manual_seed(0))
    (ids,) = tiny_clip.text.tokenize(["a photo of a"])
    assert torch.equal(built.context, tiny_clip.text.embedding_weight[ids[1:-1]])  # type: ignore[arg-type]


def test_coop_with_words_for_a_context_is_zero_shot(tiny_clip: Model, train_set: TrainSet) -> None:
    """Untrained, "a photo of a" [name] "." is the default template."""
    from deltaenergy.classifiers.coop import CoOp

    built = CoOp(context_init="a photo of a").build(tiny_clip, CLASSES, train_set.images, torch.Generator())
    expected = de.ZeroShotClassifier(tiny_clip, CLASSES).text_features
    torch.testing.assert_close(built.text_features, expected, atol=1e-5, rtol=0)


def test_locoop_entropy_by_hand() -> None:
    """Two patches of one image with label 0; the first has it on top, the second does not.

    Only the second counts: logits (0, log 3), so p = (¼, ¾) and H = ¼ log 4 + ¾ log(4/3).
    """
    logits = torch.tensor([[[5.0, 0.0], [0.0, math.log(3)]]], dtype=torch.float64, requires_grad=True)
    entropy = irrelevant_entropy(logits, torch.tensor([0]), top_k=1)
    assert entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3), abs=1e-12)
    (gradient,) = torch.autograd.grad(entropy, logits)
    assert gradient[0, 0].abs().max() == 0 and gradient[0, 1].abs().max() > 0
    assert irrelevant_entropy(logits, torch.tensor([0]), top_k=2).item() == 0


@pytest.mark.parametrize(("classes", "top_k"), [(1000, 200), (400, 200), (100, 50), (3, 1)])
def test_locoop_looks_at_the_paper_s_top_classes(tiny_clip: Model, classes: int, top_k: int) -> None:
    """200 as for ImageNet, or half of the classes where they are few."""
    blank = make_method("locoop").build_empty(tiny_clip, [f"class {k}" for k in range(classes)])
    assert isinstance(blank, LoCoOpClassifier) and blank.ranks == top_k


def test_locoop_needs_room_beyond_its_top_classes(tiny_clip: Model, train_set: TrainSet) -> None:
    with pytest.raises(InputError, match=r"top_k=3.*3 classes"):
        de.tune(tiny_clip, CLASSES, train_set, method="locoop(top_k=3)")
