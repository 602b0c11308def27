"""TaskRes against its formula in NumPy, and with EBM attached."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import TrainBatch
from deltaenergy.classifiers.ebm import Ebm
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.task_res import TaskRes
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_begins_as_zero_shot(tiny_clip: Model, train_set: TrainSet) -> None:
    built = TaskRes().build(tiny_clip, CLASSES, train_set.images, torch.Generator())
    expected = de.ZeroShotClassifier(tiny_clip, CLASSES).text_features
    torch.testing.assert_close(built.text_features, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", ["task-res(alpha=0.7)", "task-res(alpha=0.7)+ebm(weight=2)"])
def test_learns_a_residual_and_nothing_else(tiny_clip: Model, train_set: TrainSet, coloured: Path, method: str) -> None:
    tuned = de.tune(tiny_clip, CLASSES, train_set, method, recipe={"epochs": 3})
    state = {name: tensor.double().numpy() for name, tensor in tuned.state_dict().items()}
    assert set(state) == {"residual", "frozen_texts", "text_features"}
    assert np.abs(state["residual"]).max() > 1e-4
    zero_shot = de.ZeroShotClassifier(tiny_clip, CLASSES).text_features
    np.testing.assert_allclose(state["frozen_texts"], zero_shot, atol=1e-6)
    texts = unit(state["frozen_texts"] + 0.7 * state["residual"])
    np.testing.assert_allclose(state["text_features"], texts, atol=1e-6)
    z = tiny_clip.encode_images(coloured)
    np.testing.assert_allclose(tuned.similarities(coloured), z @ texts.T, atol=1e-6)


def test_first_step_is_gradient_descent_on_cross_entropy() -> None:
    """One step of plain SGD from x = 0, in NumPy: ∂CE/∂x = α (1 − t tᵀ) L Σ_i (p_i − onehot_i) z_i / B."""
    rng = np.random.default_rng(0)
    z, t = unit(rng.normal(size=(6, 8))), unit(rng.normal(size=(3, 8)))
    labels = np.array([0, 1, 2, 0, 1, 2])
    model = de.PrecomputedModel(8, logit_scale=20, class_vectors=(["a", "b", "c"], t))
    recipe = {"epochs": 1, "warmup_lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    train = de.LabelledFeatures(z, labels)
    tuned = de.tune(model, ["a", "b", "c"], train, "task-res(alpha=0.5)", recipe=recipe, shots=2)
    logits = 20 * z @ t.T
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    by_text = 20 * (p - np.eye(3)[labels]).T @ z / 6
    by_residual = 0.5 * (by_text - (by_text * t).sum(axis=1, keepdims=True) * t)
    np.testing.assert_allclose(tuned.residual.numpy(), -0.01 * by_residual, atol=1e-7)


def test_ebm_masks_by_the_moved_texts() -> None:
    """The whole loss of task-res+ebm, for texts that have left the frozen ones."""
    rng = np.random.default_rng(1)
    z, t, x = unit(rng.normal(size=(5, 10))), unit(rng.normal(size=(3, 10))), rng.normal(size=(3, 10))
    labels = np.array([0, 1, 2, 1, 0])
    model = de.PrecomputedModel(10, logit_scale=10, class_vectors=(["a", "b", "c"], t))
    method = make_method("task-res+ebm(weight=2,p=0.4,loss_tau=0.1)")
    built = method.build_empty(model, ["a", "b", "c"]).double()
    built.frozen_texts.copy_(torch.from_numpy(t))
    built.residual.data.copy_(torch.from_numpy(x))
    built.train()
    batch = TrainBatch(torch.from_numpy(z), labels=torch.from_numpy(labels))
    outputs = built(batch)
    (term,) = method.terms
    assert isinstance(term, Ebm)
    total = built.losses(outputs, batch)["ce"] + term(outputs, batch)[0]
    texts = unit(t + 0.5 * x)
    logits = 10 * z @ texts.T
    expected = float(-(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(5), labels].mean())
    changes = []
    for row in z:
        kept = np.argsort(-(row * texts[np.argmax(texts @ row)]))[:4]
        masked = np.where(np.isin(np.arange(10), kept), row, 0)
        changes.append(np.log(np.exp(texts @ row / 0.1).sum()) - np.log(np.exp(texts @ masked / 0.1).sum()))
    assert total.item() == pytest.approx(expected + 2 * math.exp(np.mean(changes)), rel=1e-10)


def test_wrong_settings_are_explained(tiny_clip: Model, train_set: TrainSet) -> None:
    with pytest.raises(InputError, match="task-res: alpha"):
        make_method("task-res(alpha=0)")
    with pytest.raises(InputError, match="templates must be"):
        make_method("task-res(templates=['a photo'])")
    tuned = de.tune(tiny_clip, CLASSES, train_set, "task-res", recipe={"epochs": 1})
    with pytest.raises(InputError, match="tune it"):
        tuned.with_classes(["cat", "wolf"])
    assert len(list(make_method("task-res").candidates(3))) == 3
