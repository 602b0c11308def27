"""Linear probes, centroids, CLAP and LP++ against scikit-learn and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import TrainBatch
from deltaenergy.classifiers.clap import Clap, ClapClassifier
from deltaenergy.classifiers.linear_probe import GRID, choose_c, fit_logistic, held_out_in
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES

NAMES = ["a", "b", "c"]


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def clusters(seed: int, per_class: int = 7, dim: int = 12, noise: float = 0.5) -> tuple[Any, Any]:
    """Unit features (N, D) around three directions, class by class, and their labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, dim))
    labels = np.repeat([0, 1, 2], per_class)
    return unit(centres[labels] + noise * np.sqrt(dim) * rng.normal(size=(len(labels), dim))), labels


def sklearn_fit(features: Any, labels: Any, c: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, tol=1e-10, max_iter=20000).fit(features, labels)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), c=st.sampled_from([0.1, 1.0, 10.0, 100.0]), noise=st.sampled_from([0.2, 1.0]))
def test_the_solver_finds_what_scikit_learn_finds(seed: int, c: float, noise: float) -> None:
    features, labels = clusters(seed, noise=noise)
    found = fit_logistic(torch.from_numpy(features), torch.from_numpy(labels), 3, c)
    expected = sklearn_fit(features, labels, c)
    np.testing.assert_allclose(found.weight, expected.coef_, atol=1e-4 * max(1, np.abs(expected.coef_).max()))
    # A constant on all biases changes no probability.
    bias = found.bias.numpy()
    np.testing.assert_allclose(bias - bias.mean(), expected.intercept_ - expected.intercept_.mean(), atol=1e-3)
    probabilities = torch.softmax(found.logits(torch.from_numpy(features)), dim=1)
    np.testing.assert_allclose(probabilities, expected.predict_proba(features), atol=1e-4)


def test_c_has_the_lowest_cross_validated_cross_entropy_of_scikit_learn() -> None:
    chosen = set()
    for seed, noise in ((0, 0.3), (1, 1.0), (2, 3.0), (3, 0.6)):
        features, labels = clusters(seed, noise=noise)
        losses = {}
        for c in GRID:
            losses[c] = 0.0
            for fold in range(5):
                held_out = np.arange(len(labels)) % 7 % 5 == fold
                found = sklearn_fit(features[~held_out], labels[~held_out], c).predict_log_proba(features[held_out])
                losses[c] -= found[np.arange(held_out.sum()), labels[held_out]].sum()
        best = choose_c(torch.from_numpy(features), torch.from_numpy(labels), 3)
        assert best == min(losses, key=lambda c: losses[c]), losses
        chosen.add(best)
    assert len(chosen) > 1  # else any constant would have passed


def test_folds_are_fixed_and_hold_out_no_class_whole() -> None:
    labels = torch.tensor([0, 1, 0, 2, 2, 0, 0, 0, 0])
    assert held_out_in(labels).tolist() == [0, -1, 1, 0, 1, 2, 3, 4, 0]
    assert choose_c(torch.eye(2), torch.tensor([0, 1]), 2) == 10.0


def test_linear_probe_predicts_what_scikit_learn_predicts(tmp_path: Path) -> None:
    """Through `tune` on a model without texts: probabilities softmax(L s), and C in the record."""
    features, labels = clusters(4)
    model = de.PrecomputedModel(12, logit_scale=30)
    tuned = de.tune(model, NAMES, de.LabelledFeatures(features, labels), "linear-probe(c=10)", shots=7)
    others, _ = clusters(5)
    # The sample is in another order, and the objective does not depend on it.
    expected = sklearn_fit(features, labels, 10.0).predict_proba(others)
    np.testing.assert_allclose(softmax(30 * tuned.similarities(others).astype(np.float64)), expected, atol=1e-4)
    assert tuned.record["chosen"] == {"c": 10.0} and tuned.record["epochs"] == []
    chosen = de.tune(model, NAMES, de.LabelledFeatures(features, labels), "linear-probe", shots=7)
    assert chosen.record["chosen"]["c"] in GRID
    np.testing.assert_allclose(
        tuned.patch_similarities(torch.from_numpy(others)), tuned.similarities(others), atol=1e-6
    )
    tuned.save(tmp_path / "probe")
    again = de.Classifier.load(tmp_path / "probe", model=model)
    assert again.chosen() == {"c": 10.0}
    np.testing.assert_array_equal(again.similarities(others), tuned.similarities(others))


def test_centroids_by_hand() -> None:
    """Class a: (1,0) and (0,1), mean direction (1,1)/√2. Class b: (−1,0) alone."""
    model = de.PrecomputedModel(2)
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    with pytest.warns(UserWarning, match="Fewer than 2 training images"):
        tuned = de.tune(model, ["a", "b"], de.LabelledFeatures(rows, [0, 0, 1]), "centroids", shots=2)
    half = 0.5**0.5
    found = tuned.similarities(np.array([[0.6, 0.8], [-1.0, 0.0]]))
    np.testing.assert_allclose(found, [[1.4 * half, -0.6], [-half, 1.0]], atol=1e-6)


def test_centroids_and_probes_learn_from_the_test_view(tiny_clip: Model, train_set: TrainSet) -> None:
    features = unit(tiny_clip.encode_images(train_set.sample.items).astype(np.float64))
    labels = np.array(train_set.sample.labels)
    means = unit(np.stack([features[labels == k].mean(axis=0) for k in range(3)]))
    tuned = de.tune(tiny_clip, CLASSES, train_set, "centroids")
    np.testing.assert_allclose(tuned.text_features, means, atol=1e-5)
    assert tuned.record["views"] == "test"
    probe = de.tune(tiny_clip, CLASSES, train_set, "linear-probe(c=100)")
    expected = sklearn_fit(features, labels, 100.0).predict_proba(features)
    logits = tiny_clip.logit_scale * probe.similarities(features).astype(np.float64)
    np.testing.assert_allclose(softmax(logits), expected, atol=1e-3)


def clap_start(length: float = 10.0) -> tuple[ClapClassifier, Any, Any, Any]:
    features, labels = clusters(6, per_class=2)
    texts = unit(np.random.default_rng(7).normal(size=(3, 12)))
    model = de.PrecomputedModel(12, logit_scale=5, class_vectors=(NAMES, texts))
    recipe = {"epochs": 1, "warmup_epochs": 0, "momentum": 0.0, "lr": 0.3}
    spec = f"clap(length={length})"
    tuned = de.tune(model, NAMES, de.LabelledFeatures(features, labels), spec, shots=2, recipe=recipe)
    assert isinstance(tuned, ClapClassifier)
    return tuned, features, labels, texts


def test_clap_multipliers_and_first_step() -> None:
    """From w = ℓt the penalty is flat, so the first step is along CE alone: ∂CE/∂w = (1 − ttᵀ) L Σ(p − y)z / (ℓN)."""
    tuned, features, labels, texts = clap_start(length=4.0)
    probabilities = softmax(5 * features @ texts.T)
    own = probabilities[np.arange(6), labels].reshape(3, 2).mean(axis=1)
    np.testing.assert_allclose(tuned.multipliers, own, atol=1e-6)
    by_text = 5 * (probabilities - np.eye(3)[labels]).T @ features / 6
    by_prototype = (by_text - (by_text * texts).sum(axis=1, keepdims=True) * texts) / 4
    np.testing.assert_allclose(tuned.prototypes, 4 * texts - 0.3 * by_prototype, atol=1e-6)
    np.testing.assert_allclose(tuned.text_features, unit(tuned.prototypes.double().numpy()), atol=1e-6)


def test_clap_loss_away_from_the_texts() -> None:
    tuned, features, labels, texts = clap_start()
    tuned.double()
    moved = 10 * texts + np.random.default_rng(8).normal(size=(3, 12))
    tuned.prototypes.data.copy_(torch.from_numpy(moved))
    tuned.frozen_texts.copy_(torch.from_numpy(texts))
    tuned.train()
    batch = TrainBatch(torch.from_numpy(features), labels=torch.from_numpy(labels))
    losses = tuned.losses(tuned(batch), batch)
    expected = (tuned.multipliers.numpy() * ((moved - 10 * texts) ** 2).sum(axis=1)).sum() / 3
    assert losses["λ‖w−t‖²"].item() == pytest.approx(expected, rel=1e-9)
    chance = softmax(5 * features @ unit(moved).T)[np.arange(6), labels]
    assert losses["ce"].item() == pytest.approx(-np.log(chance).mean(), rel=1e-9)


def test_clap_is_held_where_zero_shot_is_right(tiny_clip: Model, train_set: TrainSet) -> None:
    """A longer ℓ is a stronger hold: the texts move less."""
    moved = []
    for length in (1, 10):
        tuned = de.tune(tiny_clip, CLASSES, train_set, f"clap(length={length})", recipe={"epochs": 40})
        assert isinstance(tuned, ClapClassifier) and tuned.method == Clap(length=length)
        moved.append(float((tuned.text_features - tuned.frozen_texts).norm()))
    assert moved[0] > moved[1] > 0


@pytest.mark.parametrize("rounds", [1, 9, 10, 37])
def test_lp_plus_plus_is_its_recursion(rounds: int) -> None:
    """The two blocks in loops over images and classes."""
    features, labels = clusters(9, per_class=3)
    texts = unit(np.random.default_rng(10).normal(size=(3, 12)) + 0.4)
    model = de.PrecomputedModel(12, logit_scale=50, class_vectors=(NAMES, texts))
    train = de.LabelledFeatures(features, labels)
    tuned = de.tune(model, NAMES, train, f"lp++(rounds={rounds})", shots=3)
    n = len(labels)
    w = np.stack([features[labels == k].sum(axis=0) for k in range(3)])
    alpha = np.full(3, 250 * np.mean([(features[labels == k] @ texts[k]).mean() for k in range(3)]))
    largest = np.linalg.eigvalsh(features.T @ features)[-1]
    alpha_step = n / (4 * max((features @ texts[k] @ (features @ texts[k])) for k in range(3)))
    speed = np.zeros_like(w)
    for number in range(1, rounds + 1):
        by_w, by_alpha = np.zeros_like(w), np.zeros(3)
        for z, y in zip(features, labels):
            p = softmax(np.array([[z @ (w[k] + alpha[k] * texts[k]) for k in range(3)]]))[0]
            for k in range(3):
                by_w[k] += (p[k] - (k == y)) * z / n
                by_alpha[k] += (p[k] - (k == y)) * (z @ texts[k]) / n
        speed = 0.9 * speed + by_w
        w = w - 4 * n / largest * speed
        if number % 10 == 0:
            alpha = alpha - alpha_step * by_alpha
    others, _ = clusters(11)
    expected = others @ (w + alpha[:, None] * texts).T / 50
    np.testing.assert_allclose(tuned.similarities(others), expected, atol=1e-5)


def test_methods_without_texts_need_none_and_the_others_say_so() -> None:
    features, labels = clusters(12)
    train, model = de.LabelledFeatures(features, labels), de.PrecomputedModel(12)
    for method in ("centroids", "linear-probe"):
        assert (de.tune(model, NAMES, train, method).similarities(features).argmax(axis=1) == labels).mean() > 0.7
    for method in ("clap", "lp++"):
        with pytest.raises(InputError, match="class vectors"):
            de.tune(model, NAMES, train, method)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("linear-probe(c=0)", "linear-probe: c"),
        ("clap(length=0)", "clap: length must be"),
        ("lp++(rounds=0)", r"lp\+\+: rounds"),
        ("clap(templates=['a photo'])", "clap: templates must be"),
    ],
)
def test_wrong_settings_are_explained(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_method(spec)
