"""The masking experiment: masks, energies and maps against float64 NumPy, by loops over images and entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import deltaenergy as de
from deltaenergy.classifiers.base import Inputs
from deltaenergy.errors import InputError
from deltaenergy.theory.masking import (
    BEFORE,
    KEEPS,
    KEEPS_CONTROL,
    REMOVES,
    REMOVES_CONTROL,
    agreement,
    agreements,
    check_masks,
    masked_views,
    masks,
    patch_maps,
)


def unit(*shape: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def test_masks_worked_by_hand() -> None:
    """P = (+, −, 0): keeps masks the second, removes the first, and neither the third."""
    found = masks(np.array([[0.6, -0.8, 0.0]]), np.array([[0.5, 0.5, 0.5]]))
    assert found[KEEPS].tolist() == [[1, 0, 1]]
    assert found[REMOVES].tolist() == [[0, 1, 1]]


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.integers(2, 24), st.sampled_from([0.01, 1.0]))
def test_views_by_the_formula(seed: int, images: int, classes: int, dimension: int, tau: float) -> None:
    z, t = unit(images, dimension, seed=seed), unit(classes, dimension, seed=seed + 1)
    found = masked_views(z, t, tau, controls=torch.Generator().manual_seed(seed))
    for i in range(images):
        named = int(np.argmax([z[i] @ t[k] for k in range(classes)]))
        products = [z[i, j] * t[named, j] for j in range(dimension)]
        for name, drops in ((BEFORE, lambda p: False), (KEEPS, lambda p: p < 0), (REMOVES, lambda p: p > 0)):
            masked = np.array([0.0 if drops(p) else z[i, j] for j, p in enumerate(products)])
            similarities = np.array([masked @ t[k] for k in range(classes)])
            view = found[name]
            assert float(view.similarity[i]) == pytest.approx(similarities[named], abs=1e-9)
            assert float(view.top[i]) == pytest.approx(similarities.max(), abs=1e-9)
            logits = similarities / tau
            energy = -(logits.max() + np.log(np.exp(logits - logits.max()).sum()))
            assert float(view.energy[i]) == pytest.approx(energy, rel=1e-9, abs=1e-7)
            # z · w is the masked similarity, which is what a map of w shows.
            assert float(torch.as_tensor(z[i]) @ view.for_class[i]) == pytest.approx(similarities[named], abs=1e-9)
            assert float(torch.as_tensor(z[i]) @ view.for_named[i]) == pytest.approx(similarities.max(), abs=1e-9)
        # What speaks against the class is gone, so that it gains; then what speaks for it, so that nothing is left.
        assert found[KEEPS].similarity[i] >= found[BEFORE].similarity[i] - 1e-12
        assert found[REMOVES].similarity[i] <= 1e-12
    for name, control in ((KEEPS, KEEPS_CONTROL), (REMOVES, REMOVES_CONTROL)):
        assert torch.equal(found[name].mask.sum(1), found[control].mask.sum(1))


def test_texts_of_each_image_are_their_own() -> None:
    z, t = unit(3, 8, seed=0), unit(3, 4, 8, seed=1)
    together = masked_views(z, t)
    for i in range(3):
        alone = masked_views(z[i : i + 1], t[i])
        for name, view in together.items():
            assert torch.allclose(view.energy[i], alone[name].energy[0])
            assert torch.equal(view.mask[i], alone[name].mask[0])


def test_controls_come_from_their_source_alone() -> None:
    z, t = unit(4, 16, seed=0), unit(3, 16, seed=1)
    one, same, other = (
        masked_views(z, t, controls=torch.Generator().manual_seed(seed))[KEEPS_CONTROL].mask for seed in (0, 0, 1)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_patch_maps_are_products_in_rows() -> None:
    patches, directions = unit(2, 9, 5, seed=0), unit(2, 5, seed=1)
    maps = patch_maps(torch.as_tensor(patches))(torch.as_tensor(directions))
    assert maps.shape == (2, 3, 3)
    for i in range(2):
        for row in range(3):
            for column in range(3):
                assert float(maps[i, row, column]) == pytest.approx(patches[i, 3 * row + column] @ directions[i])
    with pytest.raises(InputError, match="square"):
        patch_maps(torch.zeros(1, 8, 5))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 6), st.booleans())
def test_agreement_by_an_independent_reference(seed: int, images: int, side: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    before, after = (rng.normal(size=(images, side, side)) for _ in range(2))
    if ties:
        before, after = before.round(), after.round()
    found = agreement(before, after)
    for i in range(images):
        a, b = before[i].ravel(), after[i].ravel()
        constant = len(set(a)) == 1 or len(set(b)) == 1
        assert found.correlation[i] == pytest.approx(0.0 if constant else spearmanr(a, b).statistic, abs=1e-9)
        if not ties:
            count = -(-(side * side) // 4)
            shared = set(np.argsort(a)[-count:]) & set(np.argsort(b)[-count:])
            assert found.overlap[i] == pytest.approx(len(shared) / count)
            assert found.peak_stays[i] == (a.argmax() == b.argmax())
    same = agreement(before, before)
    assert same.overlap == pytest.approx(1) and same.peak_stays.all()


def test_agreements_are_with_the_map_before() -> None:
    """One text and patches that are unit vectors: the map is the text itself, of which the mask takes entries."""
    z = np.array([[0.5, -0.5, 0.5, 0.5]])
    t = np.array([[0.8, 0.4, 0.4, 0.2]])
    views = masked_views(z, t)
    found = agreements(views, patch_maps(torch.eye(4, dtype=torch.float64)[None]))
    kept, removed = np.array([0.8, 0, 0.4, 0.2]), np.array([0, 0.4, 0, 0])
    assert found[KEEPS].correlation[0] == pytest.approx(spearmanr(t[0], kept).statistic)
    assert found[REMOVES].correlation[0] == pytest.approx(spearmanr(t[0], removed).statistic)
    assert found[KEEPS].peak_stays[0] and not found[REMOVES].peak_stays[0]


def test_a_classifier_of_another_kind_is_refused(tiny_clip: de.Model) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    features = torch.eye(2, classifier.model.feature_dim)
    outputs = classifier(Inputs(features))
    check_masks(classifier, outputs)
    from dataclasses import replace

    with pytest.raises(InputError, match="not z · t"):
        check_masks(classifier, replace(outputs, similarities=outputs.similarities + 0.1))


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(InputError, match="texts"):
        masked_views(unit(2, 8, seed=0), unit(3, 7, seed=1))
    with pytest.raises(InputError, match="shape of features"):
        masks(unit(2, 8, seed=0), unit(3, 8, seed=1))
    with pytest.raises(InputError, match="one shape"):
        agreement(np.zeros((1, 2, 2)), np.zeros((1, 3, 3)))
