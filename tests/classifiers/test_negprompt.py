"""NegPrompt: its losses by hand, where negatives begin, stages, released form, other class names, and its score."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.negprompt import NEGATIVES, POSITIVES, NegPromptClassifier, likeness, to_uniform
from deltaenergy.errors import InputError
from deltaenergy.scores import mcm
from deltaenergy.scores.negprompt import negprompt
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES

COSINES = st.floats(-1, 1, width=32)


def tuned(model: Model, data: TrainSet, spec: str = "negprompt", **options: Any) -> NegPromptClassifier:
    classifier = de.tune(model, CLASSES, data, spec, recipe={"epochs": 2}, **options)
    assert isinstance(classifier, NegPromptClassifier)
    return classifier


@given(arrays(np.float32, (4, 3), elements=COSINES), arrays(np.float32, (4, 2, 3), elements=COSINES))
@settings(max_examples=60)
def test_the_score(s: np.ndarray, n: np.ndarray) -> None:
    """exp(max s) over the sum of exponentials of all 3(1 + 2) cosines; below mcm; n = t gives a third of it."""
    wide, every = s.astype(np.float64), np.concatenate([s, n.reshape(4, 6)], axis=1).astype(np.float64)
    expected = np.exp(wide.max(axis=1)) / np.exp(every).sum(axis=1)
    np.testing.assert_allclose(negprompt(s, n), expected, rtol=1e-5)
    assert (negprompt(wide, n) < mcm(wide)).all()
    np.testing.assert_allclose(negprompt(wide, np.stack([wide, wide], axis=1)), mcm(wide) / 3, rtol=1e-10)
    np.testing.assert_allclose(negprompt(wide, np.zeros((4, 0, 3))), mcm(wide), rtol=1e-10)
    raised = n.astype(np.float64).copy()
    raised[:, 1, 2] += 0.1
    assert (negprompt(wide, raised) < negprompt(wide, n.astype(np.float64))).all()


def test_the_score_asks_for_its_own_classifier(tiny_clip: Model, train_set: TrainSet, coloured: Any) -> None:
    classifier = tuned(tiny_clip, train_set)
    features = torch.from_numpy(tiny_clip.encode_images(coloured))
    positive = classifier.similarities(features)
    negative = np.einsum("nd,mkd->nmk", features.numpy(), classifier.negative_features.numpy())
    found = [v.score for v in de.Detector(classifier, "negprompt").calibrate(features).predict(features)]
    np.testing.assert_allclose(found, negprompt(positive, negative), atol=1e-6)
    with pytest.raises(InputError, match="tuned by negprompt"):
        de.Detector(de.ZeroShotClassifier(tiny_clip, CLASSES), "negprompt").calibrate(features)
    for wrong in (negative[:1], negative[0, 0, 0]):
        with pytest.raises(InputError, match="one row per image"):
            negprompt(positive, wrong)


def test_the_local_form_adds_the_best_patch(tiny_clip: Model, train_set: TrainSet, coloured: Any) -> None:
    classifier = tuned(tiny_clip, train_set)
    encoded = tiny_clip.encode(coloured, patches=True)
    texts, negatives = classifier.text_features.numpy(), classifier.negative_features.numpy().reshape(6, -1)
    assert encoded.patches is not None
    best = []
    for image in encoded.patches.astype(np.float64):
        s, n = image @ texts.T, image @ negatives.T
        best.append((np.exp(s.max(axis=1)) / (np.exp(s).sum(axis=1) + np.exp(n).sum(axis=1))).max())
    plain = [v.score for v in de.Detector(classifier, "negprompt").calibrate(coloured).predict(coloured)]
    found = [v.score for v in de.Detector(classifier, "negprompt(local=true)").calibrate(coloured).predict(coloured)]
    np.testing.assert_allclose(found, np.add(plain, best), atol=1e-5)


@given(arrays(np.float64, (5, 4), elements=st.floats(-30, 30)))
@settings(max_examples=60)
def test_the_separation_is_cross_entropy_to_the_uniform_distribution(logits: np.ndarray) -> None:
    """−mean_j log p_j ≥ log J, with equality where all are equal."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    expected = -np.log(np.maximum(p, 1e-300)).mean()
    assert to_uniform(torch.from_numpy(logits)).item() == pytest.approx(expected, rel=1e-9)
    assert to_uniform(torch.from_numpy(logits)).item() >= math.log(4) - 1e-12
    assert to_uniform(torch.zeros(3, 4, dtype=torch.float64)).item() == pytest.approx(math.log(4), abs=1e-12)


def test_likeness_by_hand() -> None:
    """Two classes, two negatives: cosines 0.6 and 0; and three negatives of which two are equal."""
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    second = torch.tensor([[0.6, 0.8], [0.0, 1.0]], dtype=torch.float64)
    assert likeness(torch.stack([first, second])).item() == pytest.approx(0.3, abs=1e-12)
    # Pairs: (1,1) = 1, (1,2) = 0.6 twice for class 1; 1, 0, 0 for class 2.
    assert likeness(torch.stack([first, first, second])).item() == pytest.approx((2.2 / 3 + 1 / 3) / 2, abs=1e-12)
    assert likeness(first[None]).item() == 0


@pytest.mark.parametrize("spec", ["negprompt", "negprompt(separation=ce)", "negprompt(as_released=true)"])
def test_the_second_stage_s_losses_by_hand(spec: str, tiny_clip: Model, train_set: TrainSet) -> None:
    """All three terms in float64 NumPy, for negatives far from the positive and from each other."""
    classifier = tuned(tiny_clip, train_set, spec)
    noise = torch.randn(classifier.negative_contexts.shape, generator=torch.Generator().manual_seed(1))
    classifier.negative_contexts.data.add_(0.5 * noise)
    classifier.eval().train()
    classifier.phase = NEGATIVES
    batch = train_set.images.batch(torch.arange(6), 0, torch.Generator().manual_seed(0))
    outputs = classifier(batch)
    found = {name: float(value) for name, value in classifier.losses(outputs, batch).items()}
    assert batch.features is not None
    scale, z = tiny_clip.logit_scale, batch.features.double().numpy()
    t = classifier.text_features.double().numpy()
    n = classifier.negative_texts().detach().double().numpy()
    cosines = np.array([[n[m, k] @ t[k] for k in range(3)] for m in range(2)])
    between = np.array([n[0, k] @ n[1, k] for k in range(3)])
    negatives = scale * np.concatenate([z @ n[0].T, z @ n[1].T], axis=1)
    positives, labels = scale * z @ t.T, batch.labels.numpy()

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    every = np.concatenate([positives, negatives], axis=1)
    if spec == "negprompt":
        expected = {"separation": -log_softmax(negatives).mean(), "near": -0.1 * cosines.mean()}
        expected["apart"] = 0.05 * between.mean()
    elif "ce" in spec:
        expected = {"separation": -log_softmax(every)[np.arange(6), labels].mean(), "near": 0.1 * cosines.mean()}
        expected["apart"] = 0.05 * between.mean()
    else:
        target = np.tile(np.eye(3)[labels], (1, 3))
        margin = target * np.log1p(np.exp(-every)) + (1 - target) * np.log1p(np.exp(every))
        expected = {"separation": margin.mean(), "near": -0.1 * (1 - cosines).mean()}
        # The length of the mean of two unit vectors is √((1 + cos)/2).
        expected["apart"] = 0.05 * (np.sqrt((1 + between) / 2) - 1).mean()
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_negatives_begin_at_the_learned_positive(tiny_clip: Model, train_set: TrainSet) -> None:
    """With a rate that moves nothing they are the positive, apart by at most 1e-5, and not equal."""
    found = de.tune(
        tiny_clip, CLASSES, train_set, "negprompt", recipe={"epochs": 1, "warmup_lr": 1e-30, "weight_decay": 0.0}
    )
    contexts, context = found.get_parameter("negative_contexts"), found.get_parameter("context")
    apart = (contexts - context).abs()
    assert 0 < apart.max() <= 1.1e-5 and (contexts[0] - contexts[1]).abs().max() > 1e-6


def test_negatives_are_learned_against_the_positives_of_stage_1(tiny_clip: Model, train_set: TrainSet) -> None:
    """Not against the texts that the context gave before it was trained."""
    classifier = tuned(tiny_clip, train_set)
    classifier.train()
    classifier.context.data.add_(torch.randn(classifier.context.shape, generator=torch.Generator().manual_seed(1)))
    classifier.phase, classifier.generator = POSITIVES, torch.Generator().manual_seed(0)
    classifier.end_stage()
    classifier.phase = NEGATIVES
    outputs = classifier(train_set.images.batch(torch.arange(3), 0, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(outputs.texts, classifier.texts(), atol=1e-6, rtol=0)


def test_the_positives_are_coop_s_and_stay(tiny_clip: Model, train_set: TrainSet) -> None:
    """The first stage is coop without a full stop; the second leaves it alone. Stages have 100 and 10 epochs."""
    short = tuned(tiny_clip, train_set)
    logs = short.record["epochs"]
    assert [(log["stage"], log["epoch"]) for log in logs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    stages = make_method("negprompt").stages
    assert [stage.recipe["epochs"] for stage in stages] == [100, 10]
    from deltaenergy.models.towers.prompts import LearnedPrompts

    expected = LearnedPrompts(tiny_clip.text, CLASSES, 4, full_stop=False)(short.context)
    torch.testing.assert_close(short.text_features, expected, atol=1e-6, rtol=0)
    assert (short.negative_contexts[0] - short.negative_contexts[1]).abs().max() > 1e-6


def test_other_class_names_need_no_training(tiny_clip: Model, train_set: TrainSet) -> None:
    other = tuned(tiny_clip, train_set).with_classes(["a", "red car", "blue", "dog"])
    assert isinstance(other, NegPromptClassifier) and other.negative_features.shape == (2, 4, 16)
    torch.testing.assert_close(other.negative_features, other.negative_texts().detach(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "spec", ["negprompt(negatives=0)", "negprompt(near=-1)", "negprompt(context_init=' ')", "negprompt(separation=no)"]
)
def test_wrong_settings(spec: str) -> None:
    with pytest.raises(InputError):
        make_method(spec)


def test_terms_do_not_attach() -> None:
    with pytest.raises(InputError, match="attaches to methods"):
        make_method("negprompt+ebm")
