"""`evaluate` against the pieces called by hand, on pictures whose answers are known."""

from __future__ import annotations

import contextlib
import itertools
import json
import math

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from deltaenergy import Detector, ZeroShotClassifier
from deltaenergy.errors import InputError
from deltaenergy.evaluation import Group, ImageSet, evaluate
from deltaenergy.stats.metrics import RankedScores
from tests.colours import ColourModel, paint, paint_sets

CLASSES = ["red", "green", "blue"]


@pytest.fixture
def sets(tmp_path):
    return paint_sets(tmp_path)


@pytest.fixture
def classifier():
    return ZeroShotClassifier(ColourModel(), CLASSES)


def run(classifier, sets, scores=("mcm",), **options):
    return evaluate(
        classifier,
        scores if scores is None else list(scores),
        [("known", sets / "known")],
        [("dark", sets / "dark")],
        [("grey", sets / "grey")],
        **options,
    )


def by_hand(classifier, folder):
    """mcm of every picture, without the code under test."""
    paths = sorted(folder.rglob("*.png"))
    means = np.array([np.asarray(Image.open(path), dtype=float).mean((0, 1)) for path in paths])
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    return np.exp(unit).max(1) / np.exp(unit).sum(1)


def test_tables_agree_with_the_pieces_called_by_hand(classifier, sets):
    found = run(classifier, sets)
    assert [(row.set, row.group, row.images) for row in found.accuracy] == [
        ("known", Group.ID, 19),
        ("dark", Group.SHIFTED, 18),
    ]
    # One blue picture lies in the red folder.
    assert found.accuracy[0].accuracy.value == pytest.approx(18 / 19)
    assert found.accuracy[1].accuracy.value == 1
    values = {name: by_hand(classifier, sets / name) for name in ("known", "dark", "grey")}
    assert [(row.closed, row.open) for row in found.detection] == [("known", "grey"), ("dark", "grey")]
    for row in found.detection:
        labels = np.r_[np.ones(row.closed_images), np.zeros(row.open_images)]
        expected = roc_auc_score(labels, np.r_[values[row.closed], values[row.open]])
        assert row.metrics["auroc"].value == pytest.approx(expected)
    threshold = found.thresholds["mcm"]
    assert (values["known"] >= threshold - 1e-6).sum() == math.ceil(0.95 * 19)
    kept = {row.set: row.kept.value for row in found.kept}
    assert kept["grey"] == pytest.approx((values["grey"] >= threshold - 1e-6).mean())


def test_the_seed_reaches_the_intervals(classifier, sets, tmp_path):
    for i in range(12):
        paint(tmp_path / "other" / f"{i}.png", (220, 9 * i, 5 * i))
    values = [by_hand(classifier, folder) for folder in (sets / "known", tmp_path / "other")]
    intervals = set()
    for seed in (1, 2):
        known, other = [("known", sets / "known")], [("other", tmp_path / "other")]
        found = evaluate(classifier, ["mcm"], known, [], other, seed=seed, resamples=40).detection[0].metrics["auroc"]
        expected = RankedScores(*values).estimates(resamples=40, seed=seed)["auroc"]
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))
        intervals.add((found.low, found.high))
    assert len(intervals) == 2


def test_shifted_images_do_not_set_the_threshold(classifier, sets, tmp_path):
    for i in range(30):
        paint(tmp_path / "pale" / "red" / f"{i}.png", (220, 150 + i, 140))
    known, grey = [("known", sets / "known")], [("grey", sets / "grey")]
    alone = evaluate(classifier, ["mcm"], known, [], grey)
    beside = evaluate(classifier, ["mcm"], known, [("pale", tmp_path / "pale")], grey)
    assert beside.thresholds == alone.thresholds


def test_every_score_is_evaluated_on_images_encoded_once(classifier, sets, monkeypatch):
    encoded = []
    original = ColourModel.image_features
    monkeypatch.setattr(
        ColourModel, "image_features", lambda self, pixels: encoded.append(len(pixels)) or original(self, pixels)
    )
    found = run(classifier, sets, ["mcm", "msp", "max-logit", "delta-energy", "multi-delta-energy"])
    assert sum(encoded) == 19 + 18 + 8
    assert {row.score for row in found.detection} == set(found.scores) == set(found.thresholds)
    assert len(found.scores) == 5 and found.primary == "mcm"


def test_features_give_what_images_give(classifier, sets):
    from_images = run(classifier, sets, ["mcm", "energy"])
    features = {}
    for name in ("known", "dark", "grey"):
        features[name] = classifier.model.encode_images(sets / name)
    labels = [path.parent.name for path in sorted((sets / "known").rglob("*.png"))]
    found = evaluate(
        classifier,
        ["mcm", "energy"],
        [ImageSet("known", features["known"], labels)],
        [("dark", features["dark"])],
        [("grey", features["grey"])],
    )
    assert found.detection == from_images.detection
    assert found.accuracy == from_images.accuracy[:1]  # the dark set has no labels here


def test_several_sets_are_pooled(classifier, sets):
    found = evaluate(
        classifier,
        ["mcm"],
        [("reds", sets / "known" / "red"), ("others", [sets / "known" / "green", sets / "known" / "blue"])],
        open_sets=[("first", [sets / "grey" / f"{i}.png" for i in range(3)]), ("grey", [sets / "grey" / "7.png"])],
    )
    assert {(row.closed, row.open) for row in found.detection} == {
        ("all known sets", "first"),
        ("all known sets", "grey"),
        ("all known sets", "all open sets"),
    }
    pooled = found.detection[-1]
    assert (pooled.closed_images, pooled.open_images) == (19, 4)
    assert [len(one) for one in found.sets] == [7, 12, 3, 1]
    assert [item.id.split("/")[-2] for item in found.sets[1].scored.items] == ["green"] * 6 + ["blue"] * 6
    np.testing.assert_array_equal(
        found.values("mcm", "all known sets"), np.r_[found.values("mcm", "reds"), found.values("mcm", "others")]
    )


def test_thresholds_and_fit_of_a_detector_are_kept(classifier, sets):
    detector = Detector(classifier, "multi-delta-energy").calibrate(sets / "dark", keep=0.8)
    state = {name: tensor.clone() for name, tensor in detector.score_state.items()}
    assert state
    found = run(detector, sets, ["multi-delta-energy", "mcm"])
    assert found.thresholds["multi-delta-energy"] == detector.threshold
    assert set(found.calibrations) == {"multi-delta-energy"}
    assert all((detector.score_state[name] == tensor).all() for name, tensor in state.items())
    verdicts = detector.predict(sets / "grey")
    np.testing.assert_allclose(found.values("multi-delta-energy", "grey"), [v.score for v in verdicts], atol=1e-5)
    assert list(found.is_ood(found.sets[2], "multi-delta-energy")) == [v.is_ood for v in verdicts]


def test_a_score_of_nan_is_never_kept(classifier, sets):
    found = run(classifier, sets)
    known = found.sets[0].scored.values["mcm"]
    known[:] = np.nan
    assert found.is_ood(found.sets[0]).all()


def test_unreadable_pictures_are_listed_and_left_out(classifier, sets):
    (sets / "known" / "blue" / "broken.png").write_bytes(b"not a picture")
    (sets / "grey" / "empty.png").write_bytes(b"")
    found = run(classifier, sets)
    assert [image.id.rsplit("/", 1)[-1] for image in found.unreadable] == ["broken.png", "empty.png"]
    assert [len(one) for one in found.sets] == [19, 18, 8]
    assert found.accuracy[0].accuracy.value == pytest.approx(18 / 19)  # labels stay with their pictures


def test_a_set_without_one_readable_picture(classifier, sets, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"'bad' .*a\.png"):
        evaluate(classifier, ["mcm"], [("known", sets / "known")], open_sets=[("bad", tmp_path / "broken")])


def test_limit_draws_a_repeatable_sample(classifier, sets):
    first, again, other = (run(classifier, sets, limit=5, seed=seed) for seed in (1, 1, 2))
    ids = [[item.id for one in found.sets for item in one.scored.items] for found in (first, again, other)]
    assert ids[0] == ids[1] != ids[2]
    assert [len(one) for one in first.sets] == [5, 5, 5]


def test_progress_counts_all_images_once(classifier, sets, monkeypatch):
    seen = []

    @contextlib.contextmanager
    def shown(what):
        yield lambda done, total: seen.append((done, total)) if what == "Encoding images" else None

    monkeypatch.setattr("deltaenergy.evaluation.run.stage", shown)
    run(classifier, sets, on="batch=4")
    assert seen[-1] == (45, 45)
    assert all(a[0] < b[0] for a, b in itertools.pairwise(seen)) and {total for _, total in seen} == {45}


def test_json_is_plain_and_complete(classifier, sets):
    record = json.loads(json.dumps(run(classifier, sets).to_dict(), allow_nan=False))
    row = record["detection"][0]
    assert row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
    assert {"fpr95", "fpr95_ood", "aupr_in", "aupr_out"} <= set(row)
    assert record["provenance"]["classes_hash"] == classifier.classes_hash


def test_keep_gives_the_fpr_columns_their_name(classifier, sets):
    assert "fpr80" in run(classifier, sets, keep=0.8).detection[0].metrics


def test_without_open_sets_there_is_accuracy_only(classifier, sets):
    found = evaluate(classifier, ["mcm"], [("known", sets / "known")])
    assert found.detection == [] and found.accuracy[0].images == 19


# --- labels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["Dark_Red", "dark-red", "dark  RED"])
def test_folder_names_match_classes_whatever_their_case_and_separators(tmp_path, folder):
    paint(tmp_path / "x" / folder / "0.png", (200, 0, 0))
    paint(tmp_path / "x" / "blue" / "0.png", (0, 0, 200))
    found = evaluate(ZeroShotClassifier(ColourModel(), ["dark red", "blue"]), ["mcm"], [("x", tmp_path / "x")])
    assert found.accuracy[0].images == 2 and found.accuracy[0].accuracy.value == 1


def test_decomposed_accents_match(tmp_path):
    # Some file systems store é as e and an accent.
    paint(tmp_path / "x" / "cafe\u0301 red" / "0.png", (200, 0, 0))
    found = evaluate(ZeroShotClassifier(ColourModel(), ["caf\u00e9 red", "blue"]), ["mcm"], [("x", tmp_path / "x")])
    assert found.accuracy[0].images == 1


def test_duplicate_class_names_count_as_one_class(tmp_path, sets):
    with pytest.warns(UserWarning, match="Duplicate class names"):
        classifier = ZeroShotClassifier(ColourModel(), ["green", "red", "blue", "red"])
    found = evaluate(classifier, ["mcm"], [("dark", sets / "dark")])
    assert found.accuracy[0].accuracy.value == 1


def test_a_folder_of_an_id_set_that_is_no_class(classifier, sets):
    paint(sets / "known" / "yelow" / "0.png", (200, 200, 0))
    with pytest.raises(InputError, match=r"known set 'known'.*'yelow'"):
        run(classifier, sets)


def test_folders_that_mean_something_else(classifier, tmp_path, sets):
    paint(tmp_path / "by date" / "monday" / "0.png", (200, 0, 0))
    with pytest.warns(UserWarning, match=r"'monday'.*accuracy"):
        found = evaluate(classifier, ["mcm"], [("by date", tmp_path / "by date")], open_sets=[("g", sets / "grey")])
    assert found.accuracy == [] and len(found.detection) == 1


def test_an_open_set_with_a_known_class(classifier, sets):
    paint(sets / "grey" / "Red" / "0.png", (200, 0, 0))
    with pytest.warns(UserWarning, match=r"open set 'grey'.*'Red'"):
        run(classifier, sets)


# --- wrong use -------------------------------------------------------------------------------------------------


def test_an_image_in_two_groups(classifier, sets):
    with pytest.raises(InputError, match="one folder inside the other"):
        evaluate(classifier, ["mcm"], [("known", sets / "known")], open_sets=[("red", sets / "known" / "red")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit"),
        ({"keep": 0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"scores": []}, "at least one score"),
        ({"scores": ["mcm", "mcn,energy"]}, "Did you mean 'mcm'"),
        ({"scores": ["mcn"]}, "Did you mean 'mcm'"),
    ],
)
def test_wrong_arguments(classifier, sets, options, message):
    with pytest.raises(InputError, match=message):
        run(classifier, sets, **options)


def test_a_detector_without_threshold_is_measured_like_its_classifier(classifier, sets):
    found, alone = run(Detector(classifier, "mcm"), sets, None), run(classifier, sets, ["mcm"])
    assert found.detection == alone.detection and found.kept == alone.kept and not found.calibrations


def test_no_id_set_two_sets_of_one_name_and_wrong_labels(classifier, sets):
    with pytest.raises(InputError, match="at least one ID set"):
        evaluate(classifier, ["mcm"], [], open_sets=[("grey", sets / "grey")])
    with pytest.raises(InputError, match="Two sets are named 'x'"):
        evaluate(classifier, ["mcm"], [("x", sets / "known")], open_sets=[("x", sets / "grey")])
    with pytest.raises(InputError, match="19 images but 1 labels"):
        evaluate(classifier, ["mcm"], [("x", sets / "known", ["red"])])
