"""The paper's figure: every statistic again by NumPy and SciPy from the model's own features, and the page and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation.methods import Subject, get_method, make_maps
from deltaenergy.models.base import TowerModel
from deltaenergy.stats.metrics import Estimate, auroc
from deltaenergy.theory import figure1_statistics as figure_statistics
from deltaenergy.theory.directions import direction_maps
from deltaenergy.theory.figure1 import paper_figure
from deltaenergy.theory.figure1_page import run_paper_figure
from deltaenergy.theory.figure1_statistics import STAYS, claims, detection, mask_statistics
from deltaenergy.theory.masking import BEFORE, KEEPS, KEEPS_CONTROL, REMOVES
from tests.report.checks import check_page

NAMES = ["dog", "cat", "red car"]


@pytest.fixture(scope="module")
def classifier(tiny_clip: TowerModel) -> de.Classifier:
    return de.ZeroShotClassifier(tiny_clip, NAMES)


def test_statistics_by_loops_over_images(classifier: de.Classifier, tiny_clip: TowerModel, photos: Path) -> None:
    found = paper_figure(classifier, photos / "dog", photos / "cat", batch_size=3, panels=2)
    texts = classifier.text_features.double().numpy()
    for one, folder in ((found.known, photos / "dog"), (found.unknown, photos / "cat")):
        encoded = tiny_clip.encode(folder, patches=True)
        assert encoded.patches is not None
        features, patches = encoded.features.astype(np.float64), encoded.patches.astype(np.float64)
        correlations: dict[str, list[float]] = {KEEPS: [], REMOVES: []}
        energies: dict[str, list[float]] = {KEEPS: [], REMOVES: []}
        stays: dict[str, list[bool]] = {KEEPS: [], REMOVES: []}
        for z, u in zip(features, patches):
            named = int((texts @ z).argmax())
            product = z * texts[named]
            for mask, left in ((KEEPS, product >= 0), (REMOVES, product <= 0)):
                changed = texts @ (z * left)
                correlations[mask].append(spearmanr(u @ texts[named], u @ (left * texts[named])).statistic)
                energies[mask].append(np.log(np.exp(100 * texts @ z).sum()) - np.log(np.exp(100 * changed).sum()))
                stays[mask].append(int(changed.argmax()) == named)
        statistics = mask_statistics(one)
        for mask in (KEEPS, REMOVES):
            assert one.same_class[mask].correlation == pytest.approx(correlations[mask], abs=0.05)
            assert statistics[mask].correlation.value == pytest.approx(np.mean(correlations[mask]), abs=0.05)
            assert statistics[mask].energy.value == pytest.approx(np.mean(energies[mask]), rel=1e-3, abs=1e-3)
            assert statistics[mask].class_stays.value == pytest.approx(np.mean(stays[mask]))
        deltas = de.scores.delta_energy(features @ texts.T)
        assert one.delta == pytest.approx(deltas, abs=1e-3)
        assert len(one.panels) == 2 and one.panels[0].maps[BEFORE].shape == one.panels[0].maps[KEEPS].shape
    assert detection(found).value == pytest.approx(auroc(found.known.delta, found.unknown.delta))


def test_neither_batches_nor_panels_change_a_figure(classifier: de.Classifier, photos: Path) -> None:
    one = paper_figure(classifier, photos / "dog", photos / "cat", batch_size=1, panels=0)
    other = paper_figure(classifier, photos / "dog", photos / "cat", batch_size=8, panels=3)
    assert one.known.panels == () and len(other.known.panels) == 3
    for mask in (KEEPS, REMOVES):
        assert one.known.same_class[mask].correlation == pytest.approx(
            other.known.same_class[mask].correlation, abs=0.05
        )
        assert one.known.seen[mask].energy == pytest.approx(other.known.seen[mask].energy, abs=1e-2)


@pytest.mark.parametrize("name", ["value-path", "grad-cam", "occlusion"])
def test_one_run_of_the_tower_gives_the_maps_of_many(name: str, tiny_clip: TowerModel, photos: Path) -> None:
    """The methods themselves, which run the tower for every direction, say the same."""
    model = de.load_model("lite") if name == "grad-cam" else tiny_clip
    assert isinstance(model, TowerModel)
    subject = Subject(de.ZeroShotClassifier(model, NAMES), model)
    method = get_method(name, model)
    (batch,) = model.stream(photos / "dog", patches=True, batch_size=8)
    assert batch.pixels is not None
    maps = direction_maps(method, subject, batch.features, batch.pixels, batch.patches)
    for seed in range(2):
        directions = torch.randn(len(batch.items), model.feature_dim, generator=torch.Generator().manual_seed(seed))

        def target_of(rows: torch.Tensor, directions: torch.Tensor = directions) -> object:
            return lambda inputs: (inputs.features * directions[rows]).sum(dim=1)

        expected = make_maps(method, subject, batch.pixels, target_of)  # type: ignore[arg-type]
        assert torch.allclose(maps(directions), expected, atol=1e-5 * float(expected.abs().max() + 1))


def test_claims_say_what_the_figures_say(classifier: de.Classifier, photos: Path) -> None:
    found = paper_figure(classifier, photos / "dog", photos / "cat")
    told = {one.claim: one for one in claims(found)}
    statistics = mask_statistics(found.known)
    assert told["Attention stays where P_j < 0 is masked"].holds == (statistics[KEEPS].correlation.low > STAYS)
    assert told["Attention moves where P_j > 0 is masked"].holds == (statistics[REMOVES].correlation.high < STAYS)
    assert (
        f"{statistics[KEEPS].correlation.value:.2f}".replace("-", "−")
        in told["Attention stays where P_j < 0 is masked"].found
    )
    gap = found.known.same_class[KEEPS].correlation - found.known.same_class[REMOVES].correlation
    assert (
        f"{gap.mean():.2f}".replace("-", "−") in told["It stays more under the first mask than under the second"].found
    )


@pytest.mark.parametrize(
    ("interval", "holds"),
    [
        # AUROC, correlation with P_j < 0 masked, with P_j > 0 masked, their difference, share still named the same.
        (
            {
                "auroc": (0.51, 0.9),
                "keeps": (0.71, 0.9),
                "removes": (0.1, 0.69),
                "gap": (0.01, 0.5),
                "stay": (0.1, 0.49),
            },
            5,
        ),
        (
            {
                "auroc": (0.49, 0.9),
                "keeps": (0.69, 0.9),
                "removes": (0.1, 0.71),
                "gap": (-0.01, 0.5),
                "stay": (0.1, 0.51),
            },
            0,
        ),
    ],
)
def test_a_claim_holds_only_if_the_whole_interval_says_so(
    classifier: de.Classifier, photos: Path, monkeypatch: pytest.MonkeyPatch, interval: dict[str, Any], holds: int
) -> None:
    found = paper_figure(classifier, photos / "dog", photos / "cat")
    estimate = {name: Estimate((low + high) / 2, low, high) for name, (low, high) in interval.items()}
    statistics = dict(mask_statistics(found.known))
    statistics[KEEPS] = replace(statistics[KEEPS], correlation=estimate["keeps"])
    statistics[REMOVES] = replace(statistics[REMOVES], correlation=estimate["removes"], class_stays=estimate["stay"])
    apart = {
        **figure_statistics.correlation_differences(dict(found.known.same_class)),
        "keeps − removes": estimate["gap"],
    }
    monkeypatch.setattr(figure_statistics, "detection", lambda _: estimate["auroc"])
    monkeypatch.setattr(figure_statistics, "mask_statistics", lambda _: statistics)
    monkeypatch.setattr(figure_statistics, "correlation_differences", lambda _: apart)
    told = claims(found)
    assert len(told) == 5 and sum(one.holds for one in told) == holds


def test_page_and_json(classifier: de.Classifier, photos: Path, tmp_path: Path) -> None:
    (photos / "dog" / "broken.jpg").write_bytes(b"no picture")
    out = tmp_path / "out" / "figure.html"
    out.parent.mkdir()
    found = run_paper_figure(classifier, photos / "dog", photos / "cat", out, panels=2, command="typed <this>")
    page = check_page(out.read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    assert "typed <this>" in text and "P_j > 0 masked" in text and "broken.jpg" in text
    # Of each image that was drawn and could be read: the picture itself, and three maps, each with words in its place.
    assert len(page.all("img")) == 4 * (len(found.known.panels) + 2) and len(found.unknown.panels) == 2
    assert any("what speaks for" in (image["alt"] or "") for image in page.all("img"))
    saved = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert [one["holds"] for one in saved["claims"]] == [one.holds for one in claims(found)]
    rows = saved["sets"]["known"]["rows"]
    assert len(rows) == 4 and rows[0]["masks"][KEEPS_CONTROL]["named"] in NAMES
    assert saved["sets"]["known"]["unreadable"][0]["path"].endswith("broken.jpg")
    assert found.unreadable


def test_wrong_use_is_told(classifier: de.Classifier, photos: Path, tmp_path: Path, tiny_clip: TowerModel) -> None:
    with pytest.raises(InputError, match=r"must end in \.html"):
        run_paper_figure(classifier, photos, photos, tmp_path / "figure.txt")
    with pytest.raises(InputError, match="Unknown method 'grad-cm'"):
        paper_figure(classifier, photos, photos, method="grad-cm")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match="one readable unknown image"):
        paper_figure(classifier, photos, tmp_path / "bad")
    with pytest.raises(InputError, match="takes a classifier"):
        paper_figure(tiny_clip, photos, photos)  # type: ignore[arg-type]
    from deltaenergy import build_store

    build_store(tiny_clip, photos, tmp_path / "store")
    with pytest.raises(InputError, match="feature store"):
        paper_figure(classifier, tmp_path / "store", photos)
