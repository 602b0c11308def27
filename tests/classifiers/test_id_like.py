"""ID-like: which crops are taken, its three losses by hand, and its score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers import estimate
from deltaenergy.classifiers.id_like import IdLikeClassifier, mean_likeness, select_crops
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from deltaenergy.scores.id_like import id_like
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from deltaenergy.tuning.tune import recipes_of
from deltaenergy.tuning.views import CachedViews
from tests.labelled_pictures import CLASSES

SMALL = "id-like(crops=6,selected=2,outliers=4)"


@pytest.fixture(scope="module")
def crops(tiny_clip: Model, coloured: Path) -> TrainSet:
    return prepare_training(tiny_clip, CLASSES, coloured, shots=4, seed=1, views=6)


def build(model: Model, data: TrainSet, spec: str = SMALL) -> IdLikeClassifier:
    built = make_method(spec).build(model, CLASSES, data.images, torch.Generator().manual_seed(0))
    assert isinstance(built, IdLikeClassifier)
    return built


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_the_most_and_the_least_similar_crops_are_taken() -> None:
    """Four crops with cosines 0.1, 0.9, 0.5, −0.3 to the text (1, 0)."""
    cosines = torch.tensor([0.1, 0.9, 0.5, -0.3])
    views = torch.stack([cosines, torch.sqrt(1 - cosines**2)], dim=1)[None]
    known, strange = select_crops(views, torch.tensor([[1.0, 0.0]]), 2)
    assert known[0, :, 0].tolist() == pytest.approx([0.9, 0.5])
    assert strange[0, :, 0].tolist() == pytest.approx([0.1, -0.3])
    with pytest.raises(InputError, match="at least 6 crops"):
        select_crops(views, torch.tensor([[1.0, 0.0]]), 3)


def test_crops_are_compared_with_their_own_class(tiny_clip: Model, crops: TrainSet) -> None:
    classifier, images = build(tiny_clip, crops), crops.images
    assert isinstance(images, CachedViews)
    named = tiny_clip.encode_texts([f"a photo of a {CLASSES[y]}." for y in images.labels])
    for i in range(len(named)):
        order = np.argsort(-(images.features[i].numpy() @ named[i]))
        np.testing.assert_array_equal(classifier._known[i].numpy(), images.features[i].numpy()[order[:2]])
        np.testing.assert_array_equal(classifier._strange[i].numpy(), images.features[i].numpy()[order[-2:]])


@pytest.mark.parametrize("loss", ["log-in", "nll"])
def test_losses_by_hand(loss: str, tiny_clip: Model, crops: TrainSet) -> None:
    """CE over K + J on ID crops, 0.3 mean log p_in (or −log p_out) on outliers, 0.2 mean relu(cos) of pairs."""
    classifier = build(tiny_clip, crops, f"id-like(crops=6,selected=2,outliers=4,outlier_loss={loss})").train()
    for parameter in classifier.parameters():
        parameter.data.mul_(10)
    batch = crops.images.batch(torch.tensor([1, 5, 9]), 0, torch.Generator().manual_seed(0))
    outputs = classifier(batch)
    found = {name: float(value) for name, value in classifier.losses(outputs, batch).items()}
    t = classifier.prompts(classifier.context).detach().double().numpy()
    o = classifier.outlier_prompts(classifier.outlier_context, names=classifier.words).detach().double().numpy()
    everything = tiny_clip.logit_scale * np.concatenate([t, o])
    rows = [1, 5, 9]
    known = np.concatenate([classifier._known[i].double().numpy() for i in rows])
    strange = np.concatenate([classifier._strange[i].double().numpy() for i in rows])
    labels = np.repeat(batch.labels.numpy(), 2)
    p, q = softmax(known @ everything.T), softmax(strange @ everything.T)
    middle = np.log(q[:, :3].sum(axis=1)) if loss == "log-in" else -np.log(q[:, 3:].sum(axis=1))
    pairs = [max(0.0, float(o[i] @ o[j])) for i in range(4) for j in range(i + 1, 4)]
    expected = {"ce": -np.log(p[np.arange(6), labels]).mean(), "outliers": 0.3 * middle.mean()}
    expected["apart"] = 0.2 * np.mean(pairs)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_middle_term_s_gradient() -> None:
    """∂ log p_in / ∂a_k = p_k/p_in − p_k for classes and −p_k for outliers: its sum of sizes never vanishes."""
    a = torch.tensor([[0.3, -1.0, 2.0, 0.5, 1.5]], dtype=torch.float64, requires_grad=True)
    log_p = torch.log_softmax(a, dim=1)
    (gradient,) = torch.autograd.grad(torch.logsumexp(log_p[:, :3], dim=1).sum(), a)
    p = softmax(a.detach().numpy())
    inside = p[:, :3].sum()
    np.testing.assert_allclose(gradient[0, :3].numpy(), p[0, :3] / inside - p[0, :3], atol=1e-12)
    np.testing.assert_allclose(gradient[0, 3:].numpy(), -p[0, 3:], atol=1e-12)


def test_orthogonal_outliers_are_apart() -> None:
    assert mean_likeness(torch.eye(5, dtype=torch.float64)).item() == 0
    assert mean_likeness(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item() == 0
    assert mean_likeness(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])).item() == pytest.approx(1.4 / 3)
    assert mean_likeness(torch.eye(1)).item() == 0


def test_without_outlier_prompts_it_is_coop_on_crops(tiny_clip: Model, crops: TrainSet) -> None:
    classifier = build(tiny_clip, crops, "id-like(crops=6,selected=2,outliers=0)").train()
    batch = crops.images.batch(torch.tensor([0, 4]), 0, torch.Generator().manual_seed(0))
    losses = classifier.losses(classifier(batch), batch)
    assert set(losses) == {"ce"}
    known = torch.cat([classifier._known[0], classifier._known[4]])
    logits = tiny_clip.logit_scale * known @ classifier.prompts(classifier.context).T
    expected = torch.nn.functional.cross_entropy(logits, batch.labels.repeat_interleave(2))
    torch.testing.assert_close(losses["ce"], expected)
    features = torch.nn.functional.normalize(torch.ones(2, 16), dim=1)
    with pytest.raises(InputError, match="at least one outlier"):
        de.Detector(classifier.eval(), "id-like").calibrate(features)


@given(arrays(np.float64, (6, 3), elements=st.floats(-1, 1)), arrays(np.float64, (6, 4), elements=st.floats(-1, 1)))
@settings(max_examples=60)
def test_the_score_orders_images_as_p_in_does(s: np.ndarray, n: np.ndarray) -> None:
    score = id_like(s, n, logit_scale=10.0)
    p_in = softmax(10 * np.concatenate([s, n], axis=1))[:, :3].sum(axis=1)
    np.testing.assert_allclose(1 / (1 + np.exp(-score)), p_in, atol=1e-9)


def test_scores_near_one_are_no_ties() -> None:
    s = np.array([[0.5, 0.1], [0.6, 0.1]], np.float32)
    n = np.full((2, 3), 0.1, np.float32)
    found = id_like(s, n)
    assert found[0] < found[1]


def test_every_parameter_learns_and_crops_set_the_views(tiny_clip: Model, coloured: Path, crops: TrainSet) -> None:
    fresh = build(tiny_clip, crops)
    tuned = de.tune(tiny_clip, CLASSES, coloured, SMALL, shots=4, recipe={"epochs": 1})
    assert tuned.record["views"] == 6 and tuned.record["recipe"]["optimizer"] == "adamw"
    for name, parameter in tuned.named_parameters():
        assert not torch.equal(parameter, fresh.get_parameter(name)), name
    live: Any = prepare_training(tiny_clip, CLASSES, coloured, shots=4, views="live")
    with pytest.raises(InputError):
        make_method(SMALL).build(tiny_clip, CLASSES, live.images, torch.Generator())


@pytest.mark.parametrize("spec", ["id-like(crops=10)", "id-like(selected=0)", "id-like(outlier_weight=-1)"])
def test_wrong_settings(spec: str) -> None:
    with pytest.raises(InputError):
        make_method(spec)


class TestCost:
    def test_what_is_estimated(self, tiny_clip: Model) -> None:
        """By hand: 12 images of 256 crops, and 64 of each kept again; a crop is run once, class token and patches."""
        method = make_method("id-like")
        found = method.estimate(tiny_clip, CLASSES, 12, recipes_of(method, {}))
        assert found is not None
        vision = tiny_clip.vision  # type: ignore[attr-defined]
        assert found.memory == {"3,072 crops": 12 * (256 + 64) * tiny_clip.feature_dim * 4}
        tokens = 3072 * (vision.patch_count + 1)
        assert found.operations == tokens * vision.blocks * 24 * vision.width**2

    def test_crops_that_do_not_fit_are_refused_before_any_image_is_read(
        self, tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimate, "memory_of", lambda _: 100_000)
        with pytest.raises(InputError, match=r"id-like.*12,288 crops"):
            de.tune(tiny_clip, CLASSES, tmp_path / "absent", "id-like")

    def test_days_on_a_processor_are_told(
        self, tiny_clip: Model, crops: TrainSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimate, "CPU_SPEED", 1.0)
        with pytest.warns(UserWarning, match=r"GPU.* 4 crops"):
            de.tune(tiny_clip, CLASSES, crops, SMALL, recipe={"epochs": 1})
