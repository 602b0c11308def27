"""Figure 1: masks, energies, heatmaps and statistics against float64 NumPy and SciPy, by loops over images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import deltaenergy as de
from deltaenergy.classifiers.base import Inputs
from deltaenergy.errors import InputError
from deltaenergy.explanation.methods import ExplainedModel, get_method, make_maps
from deltaenergy.models.base import TowerModel
from deltaenergy.report.page import render_page
from deltaenergy.stats.metrics import Estimate, auroc
from deltaenergy.theory import figure1 as figure1_module
from deltaenergy.theory.figure1 import (
    AGAINST_CONTROL,
    BEFORE,
    FOR_CONTROL,
    MASK_AGAINST,
    MASK_FOR,
    STAYS,
    check_masks,
    claims,
    correlation_differences,
    correlations,
    detection,
    direction_maps,
    figure1,
    make_masks,
    mask_statistics,
    masked_result,
    texts_of,
)
from deltaenergy.theory.page import figure1_sections
from tests.report.checks import check_page

NAMES = ["dog", "cat", "red car"]


@pytest.fixture(scope="module")
def classifier(tiny_clip: TowerModel) -> de.Classifier:
    return de.ZeroShotClassifier(tiny_clip, NAMES)


def unit(*shape: int, seed: int) -> torch.Tensor:
    values = np.random.default_rng(seed).normal(size=shape)
    return torch.from_numpy(values / np.linalg.norm(values, axis=-1, keepdims=True))


def masks_of(z: torch.Tensor, texts: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    return make_masks(z, texts, torch.Generator().manual_seed(seed))


def test_masks_worked_by_hand() -> None:
    """P = (+, −, 0): the one masks the second, the other the first, and neither the third."""
    found = masks_of(torch.tensor([[0.6, -0.8, 0.0]]), torch.tensor([[0.5, 0.5, 0.5]]))
    assert found[MASK_AGAINST].tolist() == [[1, 0, 1]]
    assert found[MASK_FOR].tolist() == [[0, 1, 1]]


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.integers(2, 24), st.sampled_from([0.01, 1.0]))
def test_results_by_the_formula(seed: int, images: int, classes: int, dimension: int, tau: float) -> None:
    z, t = unit(images, dimension, seed=seed), unit(classes, dimension, seed=seed + 1)
    named = (z @ t.T).argmax(dim=1)
    masks = masks_of(z, texts_of(t, named), seed)
    found = {name: masked_result(z, t, mask, named, tau, np.zeros(images)) for name, mask in masks.items()}
    for i in range(images):
        before = int(np.argmax([float(z[i] @ t[k]) for k in range(classes)]))
        products = [float(z[i, j] * t[before, j]) for j in range(dimension)]
        for name, drops in ((BEFORE, lambda p: False), (MASK_AGAINST, lambda p: p < 0), (MASK_FOR, lambda p: p > 0)):
            kept = np.array([0.0 if drops(p) else float(z[i, j]) for j, p in enumerate(products)])
            similarities = np.array([kept @ t[k].numpy() for k in range(classes)])
            result = found[name]
            assert result.similarity[i] == pytest.approx(similarities[before], abs=1e-9)
            assert result.top[i] == pytest.approx(similarities.max(), abs=1e-9)
            logits = similarities / tau
            energy = -(logits.max() + np.log(np.exp(logits - logits.max()).sum()))
            assert result.energy[i] == pytest.approx(energy, rel=1e-9, abs=1e-7)
            assert result.masked[i] == pytest.approx(np.mean([drops(p) for p in products]))
            # z · w is the masked similarity, which is what a heatmap of w shows.
            w = masks[name][i] * t[before]
            assert float(z[i] @ w) == pytest.approx(similarities[before], abs=1e-9)
        # What counts against the class is gone, so it gains; then what supports it, so nothing is left.
        assert found[MASK_AGAINST].similarity[i] >= found[BEFORE].similarity[i] - 1e-12
        assert found[MASK_FOR].similarity[i] <= 1e-12
    for name, control in ((MASK_AGAINST, AGAINST_CONTROL), (MASK_FOR, FOR_CONTROL)):
        assert torch.equal(masks[name].sum(1), masks[control].sum(1))


def test_texts_of_each_image_are_their_own() -> None:
    texts, positions = unit(3, 4, 8, seed=1), torch.tensor([2, 0, 3])
    for i, k in enumerate(positions.tolist()):
        assert torch.equal(texts_of(texts, positions)[i], texts[i, k])
        assert torch.equal(texts_of(texts[0], positions)[i], texts[0, k])


def test_controls_come_from_their_source_alone() -> None:
    z, t = unit(4, 16, seed=0), unit(4, 16, seed=1)
    one, same, other = (masks_of(z, t, seed)[AGAINST_CONTROL] for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 6), st.booleans())
def test_correlations_by_an_independent_reference(seed: int, images: int, side: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    before, after = (rng.normal(size=(images, side, side)) for _ in range(2))
    if ties:
        before, after = before.round(), after.round()
    found = correlations(torch.from_numpy(before), torch.from_numpy(after))
    for i in range(images):
        a, b = before[i].ravel(), after[i].ravel()
        constant = len(set(a)) == 1 or len(set(b)) == 1
        assert found[i] == pytest.approx(0.0 if constant else spearmanr(a, b).statistic, abs=1e-9)


def test_a_heatmap_that_is_the_same_everywhere_correlates_with_none() -> None:
    flat, other = torch.ones(1, 3, 3), torch.arange(9.0).reshape(1, 3, 3)
    assert correlations(flat, other) == correlations(other, flat) == correlations(flat, flat) == 0


def test_a_classifier_of_another_kind_is_refused(tiny_clip: de.Model) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    outputs = classifier(Inputs(torch.eye(2, classifier.model.feature_dim)))
    check_masks(classifier, outputs)
    with pytest.raises(InputError, match="not z · t"):
        check_masks(classifier, replace(outputs, similarities=outputs.similarities + 0.1))


def test_statistics_by_loops_over_images(classifier: de.Classifier, tiny_clip: TowerModel, photos: Path) -> None:
    found = figure1(classifier, photos / "dog", photos / "cat", batch_size=3, panels=2)
    texts = classifier.text_features.double().numpy()
    for one, folder in zip(found.sets.values(), (photos / "dog", photos / "cat")):
        encoded = tiny_clip.encode(folder, patches=True)
        assert encoded.patches is not None
        features, patches = encoded.features.astype(np.float64), encoded.patches.astype(np.float64)
        left: dict[str, list[float]] = {MASK_AGAINST: [], MASK_FOR: []}
        energies: dict[str, list[float]] = {MASK_AGAINST: [], MASK_FOR: []}
        stays: dict[str, list[bool]] = {MASK_AGAINST: [], MASK_FOR: []}
        for z, u in zip(features, patches):
            named = int((texts @ z).argmax())
            product = z * texts[named]
            for mask, kept in ((MASK_AGAINST, product >= 0), (MASK_FOR, product <= 0)):
                changed = texts @ (z * kept)
                left[mask].append(spearmanr(u @ texts[named], u @ (kept * texts[named])).statistic)
                energies[mask].append(np.log(np.exp(100 * texts @ z).sum()) - np.log(np.exp(100 * changed).sum()))
                stays[mask].append(int(changed.argmax()) == named)
        statistics = mask_statistics(one)
        for mask in (MASK_AGAINST, MASK_FOR):
            assert one.results[mask].correlation == pytest.approx(left[mask], abs=0.05)
            assert statistics[mask].correlation.value == pytest.approx(np.mean(left[mask]), abs=0.05)
            assert statistics[mask].energy.value == pytest.approx(np.mean(energies[mask]), rel=1e-3, abs=1e-3)
            assert statistics[mask].class_stays.value == pytest.approx(np.mean(stays[mask]))
        assert one.results[BEFORE].correlation == pytest.approx(1)
        assert one.delta == pytest.approx(de.scores.delta_energy(features @ texts.T), abs=1e-3)
        assert len(one.panels) == 2 and list(one.panels[0].maps) == [BEFORE, MASK_AGAINST, MASK_FOR]
    deltas = [one.delta for one in found.sets.values()]
    assert detection(found).value == pytest.approx(auroc(*deltas))


def test_neither_batches_nor_panels_change_a_number(classifier: de.Classifier, photos: Path) -> None:
    one = figure1(classifier, photos / "dog", photos / "cat", batch_size=1, panels=0).sets["known"]
    other = figure1(classifier, photos / "dog", photos / "cat", batch_size=8, panels=3).sets["known"]
    assert one.panels == () and sorted({panel.row for panel in other.panels}) == [panel.row for panel in other.panels]
    assert len(other.panels) == 3
    for mask in (MASK_AGAINST, MASK_FOR):
        assert one.results[mask].correlation == pytest.approx(other.results[mask].correlation, abs=0.05)
        assert one.results[mask].energy == pytest.approx(other.results[mask].energy, abs=1e-2)


@pytest.mark.parametrize("name", ["value-path", "grad-cam", "occlusion"])
@pytest.mark.parametrize("tuned", [False, True])
def test_one_run_of_the_encoder_gives_the_maps_of_many(
    name: str, tuned: bool, tiny_clip: TowerModel, photos: Path
) -> None:
    """The methods themselves, which run the encoder for every direction, say the same; an adapter bends z."""
    model = de.load_model("lite") if name == "grad-cam" else tiny_clip
    assert isinstance(model, TowerModel)
    classifier: de.Classifier = de.ZeroShotClassifier(model, NAMES)
    if tuned:
        classifier = de.tune(model, ["dog", "cat"], photos, "clip-adapter", shots=2, views=1, recipe={"epochs": 1})
    by, method = ExplainedModel(classifier, model), get_method(name, model)
    (batch,) = model.stream(photos / "dog", patches=True, batch_size=8)
    assert batch.pixels is not None
    maps = direction_maps(method, by, batch)
    for seed in range(2):
        directions = torch.randn(len(batch.items), model.feature_dim, generator=torch.Generator().manual_seed(seed))

        def target_of(rows: torch.Tensor, directions: torch.Tensor = directions) -> Any:
            return lambda inputs: (inputs.outputs.features * directions[rows]).sum(dim=1)

        expected = make_maps(method, by, batch.pixels, target_of)
        assert torch.allclose(maps(directions), expected, atol=1e-5 * float(expected.abs().max() + 1))


@pytest.mark.parametrize(
    ("interval", "holds"),
    [
        # AUROC, correlation with P_j < 0 masked, with P_j > 0 masked, their difference, share that keeps the class.
        ([(0.51, 0.9), (0.71, 0.9), (0.1, 0.69), (0.01, 0.5), (0.1, 0.49)], 5),
        ([(0.49, 0.9), (0.69, 0.9), (0.1, 0.71), (-0.01, 0.5), (0.1, 0.51)], 0),
    ],
)
def test_a_claim_holds_only_if_the_whole_interval_says_so(
    classifier: de.Classifier,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    interval: list[tuple[float, float]],
    holds: int,
) -> None:
    found = figure1(classifier, photos / "dog", photos / "cat")
    detected, kept, removed, gap, stay = (Estimate((low + high) / 2, low, high) for low, high in interval)
    statistics = mask_statistics(found.sets["known"])
    statistics[MASK_AGAINST] = replace(statistics[MASK_AGAINST], correlation=kept)
    statistics[MASK_FOR] = replace(statistics[MASK_FOR], correlation=removed, class_stays=stay)
    apart = correlation_differences(found.sets["known"])
    apart[next(iter(apart))] = gap
    monkeypatch.setattr(figure1_module, "detection", lambda _: detected)
    monkeypatch.setattr(figure1_module, "mask_statistics", lambda _: statistics)
    monkeypatch.setattr(figure1_module, "correlation_differences", lambda _: apart)
    told = claims(found)
    assert len(told) == 5 and sum(one.holds for one in told) == holds
    assert f"{kept.value:.2f}" in told[1].found and f"{removed.value:.2f}" in told[2].found


def test_claims_say_what_the_numbers_say(classifier: de.Classifier, photos: Path) -> None:
    found = figure1(classifier, photos / "dog", photos / "cat")
    known = found.sets["known"]
    _, stays, moves, more, _ = claims(found)
    statistics = mask_statistics(known)
    assert stays.holds == (statistics[MASK_AGAINST].correlation.low > STAYS)
    assert moves.holds == (statistics[MASK_FOR].correlation.high < STAYS)
    gap = known.results[MASK_AGAINST].correlation - known.results[MASK_FOR].correlation
    assert f"{gap.mean():.2f}".replace("-", "−") in more.found


def test_the_sections_of_a_page(classifier: de.Classifier, photos: Path) -> None:
    (photos / "dog" / "broken.jpg").write_bytes(b"not an image")
    found = figure1(classifier, photos / "dog", photos / "cat", panels=2)
    page = check_page(render_page("Figure 1", "on photos", figure1_sections(found)))
    # Of each image that was drawn and could be read: the image itself, and three heatmaps, each with words.
    known, unknown = found.sets.values()
    assert len(page.all("img")) == 4 * (len(known.panels) + 2) and len(unknown.panels) == 2
    assert any("what supports" in (image["alt"] or "") for image in page.all("img"))
    assert "P_j > 0 masked" in page.text and all(one.claim in page.text for one in claims(found))
    assert [one.id.split("/")[-1] for one in known.unreadable] == ["broken.jpg"] and len(known) == 4


def test_wrong_use_is_told(classifier: de.Classifier, photos: Path, tmp_path: Path, tiny_clip: TowerModel) -> None:
    with pytest.raises(InputError, match="Unknown `method` 'grad-cm'"):
        figure1(classifier, photos, photos, method="grad-cm")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match="one readable unknown image"):
        figure1(classifier, photos, tmp_path / "bad")
    with pytest.raises(InputError, match="needs a classifier"):
        figure1(tiny_clip, photos, photos)  # type: ignore[arg-type]
    de.build_store(tiny_clip, photos, tmp_path / "store")
    with pytest.raises(InputError, match="feature store"):
        figure1(classifier, tmp_path / "store", photos)
