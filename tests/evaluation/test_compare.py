"""Detectors side by side: each as `evaluate` measures it alone, and the differences against plain resampling."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from deltaenergy import Detector, ZeroShotClassifier
from deltaenergy.errors import InputError
from deltaenergy.evaluation import compare, evaluate
from deltaenergy.report import write_report
from deltaenergy.stats.metrics import fpr, paired_differences, paired_mean_difference
from tests.colours import ColourModel, paint_sets
from tests.report.checks import check_page


@pytest.fixture
def sets(tmp_path):
    return paint_sets(tmp_path)


@pytest.fixture
def detectors(sets):
    good = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    return {
        "plain": Detector(good, "mcm"),
        "calibrated": Detector(good, "max-logit").calibrate(sets / "dark"),
    }


def run(detectors, sets, **options):
    return compare(
        detectors,
        [("known", sets / "known")],
        [("dark", sets / "dark")],
        [("grey", sets / "grey")],
        resamples=60,
        **options,
    )


def test_each_is_measured_as_it_is_alone_and_images_are_encoded_once(detectors, sets, monkeypatch):
    encoded = []
    original = ColourModel.image_features
    monkeypatch.setattr(
        ColourModel, "image_features", lambda self, pixels: encoded.append(len(pixels)) or original(self, pixels)
    )
    found = run(detectors, sets)
    assert sum(encoded) == 19 + 18 + 8
    assert list(found.evaluations) == ["plain", "calibrated"] and found.baseline == "plain"
    for name, detector in detectors.items():
        alone = evaluate(
            detector,
            None,
            [("known", sets / "known")],
            [("dark", sets / "dark")],
            [("grey", sets / "grey")],
            resamples=60,
        )
        assert found.evaluations[name].accuracy == alone.accuracy
        assert found.evaluations[name].detection == alone.detection
        assert found.evaluations[name].kept == alone.kept


def test_differences_are_those_of_the_figures(detectors, sets):
    found = run(detectors, sets)
    first, second = found.evaluations.values()
    by = {(row.metric, row.closed, row.open): row for row in found.differences}
    assert {row.name for row in found.differences} == {"calibrated"}
    for before, after in zip(first.accuracy, second.accuracy):
        assert by["accuracy", before.set, ""].change.value == after.accuracy.value - before.accuracy.value
    for before, after in zip(first.detection, second.detection):
        for metric, value in after.metrics.items():
            change = by[metric, before.closed, before.open].change
            assert change.value == pytest.approx(value.value - before.metrics[metric].value)
            assert change.low <= change.value + 1e-12 and change.value <= change.high + 1e-12
    kept = by["kept", "", "grey"].change.value
    assert kept == pytest.approx(second.kept[-1].kept.value - first.kept[-1].kept.value)


def test_paired_differences_are_those_of_plain_resampling():
    rng = np.random.default_rng(3)
    known, unknown = rng.normal(1, 1, 40), rng.normal(0, 1, 30)
    first = known, unknown
    second = known + rng.normal(0.3, 0.2, 40), unknown + rng.normal(0, 0.2, 30)
    found = paired_differences(first, second, 0.9, resamples=50, seed=7)
    # The draws as they are documented: a generator for each group, images with replacement.
    id_rng, ood_rng = np.random.default_rng(7).spawn(2)
    ids, oods = id_rng.integers(40, size=(50, 40)), ood_rng.integers(30, size=(50, 30))
    labels = np.r_[np.ones(40), np.zeros(30)]
    changes: dict[str, list[float]] = {"auroc": [], "fpr90": []}
    for some, others in zip(ids, oods):
        areas = [roc_auc_score(labels, np.r_[k[some], u[others]]) for k, u in (first, second)]
        rates = [fpr(k[some], u[others], 0.9) for k, u in (first, second)]
        changes["auroc"].append(areas[1] - areas[0])
        changes["fpr90"].append(rates[1] - rates[0])
    for name, drawn in changes.items():
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert found[name].low == pytest.approx(low) and found[name].high == pytest.approx(high)


def test_pairs_that_agree_differ_by_nothing_and_pairing_narrows_the_interval():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 60), rng.normal(0, 1, 60)
    same = paired_differences((known, unknown), (2 * known + 1, 2 * unknown + 1), resamples=40)
    assert all(value == (0, 0, 0) for value in same.values())
    noisy = known + rng.normal(0, 0.05, 60), unknown + rng.normal(0, 0.05, 60)
    shuffled = rng.permutation(noisy[0]), rng.permutation(noisy[1])
    paired = paired_differences((known, unknown), noisy, resamples=200)["auroc"]
    unpaired = paired_differences((known, unknown), shuffled, resamples=200)["auroc"]
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_the_mean_difference_has_the_normal_intervals_width():
    rng = np.random.default_rng(1)
    first, second = rng.random(400) < 0.7, rng.random(400) < 0.8
    found = paired_mean_difference(first, second, resamples=4000)
    change = second.astype(float) - first
    assert found.value == pytest.approx(change.mean())
    half = 1.96 * change.std() / np.sqrt(400)
    assert found.low == pytest.approx(change.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(change.mean() + half, abs=0.1 * half)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_differences(([1], [2]), ([1, 2], [2])), "same images"),
        (lambda: paired_mean_difference([], []), "one number per image"),
    ],
)
def test_what_cannot_be_paired_is_an_error(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_wrong_use(detectors, sets):
    with pytest.raises(InputError, match="at least two detectors"):
        run({"plain": detectors["plain"]}, sets)
    with pytest.raises(InputError, match="at least one ID set"):
        compare(detectors, [])


def test_report_and_json(detectors, sets, tmp_path):
    (sets / "grey" / "broken.png").write_bytes(b"?")
    found = run({"<b>plain": detectors["plain"], "calibrated": detectors["calibrated"]}, sets)
    assert [image.id for image in found.unreadable] == [str(sets / "grey" / "broken.png")]
    write_report(found, tmp_path / "compared.html")
    page = check_page((tmp_path / "compared.html").read_text(encoding="utf-8"))
    text = " ".join(page.text.replace("\u00a0", " ").split())
    assert "calibrated against <b>plain" in text and "Side by side" in text and "Difference to <b>plain" in text
    assert "broken.png" in text and "ECE" in text and "AURC" in text
    written = json.loads(json.dumps(found.to_dict()))
    assert written["baseline"] == "<b>plain" and set(written["detectors"]) == {"<b>plain", "calibrated"}
    assert {row["detector"] for row in written["differences"]} == {"calibrated"}
