"""Detectors: thresholds, p-values, verdicts, and their files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.calibration import Calibration
from deltaenergy.detector.guarantee import Guarantee
from deltaenergy.detector.verdict import verdict_columns
from deltaenergy.errors import ArtifactError, InputError, NotFittedError
from deltaenergy.files import read_json, write_json
from deltaenergy.files.artifact import sealed
from deltaenergy.scoring import Scored
from deltaenergy.stats.thresholds import threshold_at
from tests.checkpoints import write_clip
from tests.sampling import examples


def unit_features(count: int, seed: int = 0, dimension: int = 16) -> np.ndarray:
    features = np.random.default_rng(seed).normal(size=(count, dimension))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def classifier(tiny_clip: de.Model) -> de.Classifier:
    return de.ZeroShotClassifier(tiny_clip, ["dog", "cat", "red car"])


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0]),
)
def test_the_threshold_keeps_the_requested_share_and_is_the_largest_that_does(values: list[int], keep: float) -> None:
    ascending = np.sort(np.array(values, dtype=np.float64))
    threshold = threshold_at(ascending, keep)
    needed = math.ceil(keep * len(values) - 1e-9)
    assert (ascending >= threshold).sum() >= needed
    larger = ascending[ascending > threshold]
    assert len(larger) == 0 or (ascending >= larger.min()).sum() < max(1, needed)


def test_verdicts_worked_by_hand(classifier: de.Classifier) -> None:
    """Twenty known images, 90% kept: the threshold is score ⌊0.1 · 21⌋ = 2, and p-values count ties and all."""
    detector = de.Detector(classifier, "max-logit").calibrate(unit_features(20), 0.9)
    cosines = classifier.similarities(unit_features(20))
    ascending = np.sort(cosines.max(axis=1).astype(np.float64))
    assert detector.threshold == pytest.approx(ascending[1])
    test = unit_features(7, seed=1)
    similarities = classifier.similarities(test)
    for row, verdict in zip(similarities.astype(np.float64), detector.predict(test)):
        exps = np.exp(100.0 * (row - row.max()))
        assert verdict.label == classifier.classes[row.argmax()]
        assert verdict.confidence == pytest.approx(1 / exps.sum(), rel=1e-3)
        assert verdict.score == pytest.approx(row.max(), abs=1e-7)  # a float32 cosine
        assert verdict.p_value == pytest.approx((1 + (ascending <= row.max()).sum()) / 21)
        assert verdict.is_ood == (row.max() < ascending[1])


def test_conformal_p_values_are_valid_on_exchangeable_data(classifier: de.Classifier) -> None:
    """P(p ≤ a) ≤ a: over many splits of one pool, the share of p-values at most 0.1 stays near or below 0.1."""
    detector = de.Detector(classifier, "energy")
    rng = np.random.default_rng(0)
    rejected = []
    for _ in range(200):
        pool = rng.normal(size=60)
        detector.calibration = Calibration(np.sort(pool[:50]), Guarantee(0.95, None, 50))
        rejected.append((detector.p_values(pool[50:]) <= 0.1).mean())
    assert np.mean(rejected) <= 0.1 + 3 * np.std(rejected) / math.sqrt(len(rejected))


def test_scores_do_not_depend_on_the_batch(classifier: de.Classifier, photos: Path) -> None:
    detector = de.Detector(classifier, "delta-energy").calibrate(photos)
    together = [verdict.score for verdict in detector.predict(photos, batch_size=8)]
    alone = [verdict.score for verdict in detector.predict(photos, batch_size=1)]
    paths = sorted((path for path in photos.rglob("*.png")), reverse=True)
    backwards = [verdict.score for verdict in detector.predict(paths, batch_size=3)]
    np.testing.assert_allclose(alone, together, rtol=1e-4)
    np.testing.assert_allclose(backwards[::-1], together, rtol=1e-4)


def test_unreadable_images_are_listed_and_the_rest_is_done(classifier: de.Classifier, photos: Path) -> None:
    (photos / "cat" / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="1 of the calibration images"):
        detector = de.Detector(classifier, "delta-energy").calibrate(photos)
    predictions = detector.predict(photos)
    assert len(predictions) == 8
    assert [Path(image.id).name for image in predictions.unreadable] == ["broken.png"]
    assert predictions.to_table().num_rows == 8
    assert predictions.to_table().column_names == verdict_columns()


def test_use_before_calibration_is_a_named_error(classifier: de.Classifier) -> None:
    with pytest.raises(NotFittedError, match="calibrate"):
        de.Detector(classifier, "delta-energy").predict(unit_features(2))


@pytest.mark.parametrize("keep", [0, -0.1, 1.01, float("nan")])
def test_a_senseless_keep_rate_is_refused(classifier: de.Classifier, keep: float) -> None:
    with pytest.raises(InputError, match="`keep` must be"):
        de.Detector(classifier, "delta-energy").calibrate(unit_features(3), keep=keep)


def scored(values: list[float]) -> Scored:
    count = len(values)
    return Scored(
        items=[ImageItem(f"{i}.png", b"") for i in range(count)],
        unreadable=[],
        features=np.zeros((count, 16), np.float32),
        top=np.zeros((count, 1), np.int64),
        top_confidence=np.full((count, 1), 0.5, np.float32),
        values={"energy": np.array(values)},
    )


def test_a_score_of_nan_is_never_known(classifier: de.Classifier) -> None:
    """Nine calibration scores: the smallest p-value is 1/10, and NaN gets it, as −∞ does."""
    detector = de.Detector(classifier, "energy").calibrate_scored(scored([float(i) for i in range(9)]), keep=1.0)
    nan, low, tie, high = detector.judge(scored([math.nan, -math.inf, 0.0, 100.0]))
    assert nan.is_ood is True and nan.p_value == 0.1
    assert low.is_ood is True and low.p_value == 0.1
    assert tie.is_ood is False and tie.p_value == 0.2
    assert high.is_ood is False and high.p_value == 1.0


def test_calibration_scores_of_nan_are_an_error_that_names_the_image(classifier: de.Classifier) -> None:
    detector = de.Detector(classifier, "energy")
    with pytest.raises(InputError, match=r"image 1\.png.* 1 more"):
        detector.calibrate_scored(scored([1.0, math.nan, math.nan]))
    assert detector.threshold is None


def test_nothing_to_calibrate_on_is_an_error(classifier: de.Classifier, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning), pytest.raises(InputError, match="at least one readable"):
        de.Detector(classifier, "delta-energy").calibrate([tmp_path / "broken.png"])
    with pytest.raises(InputError, match="NaN or infinity in 1 row"):
        de.Detector(classifier, "delta-energy").calibrate(np.full((1, 16), np.nan))


def test_a_saved_detector_gives_the_same_verdicts(classifier: de.Classifier, tmp_path: Path) -> None:
    detector = de.Detector(classifier, "delta-energy(tau=0.1,c=1)").calibrate(unit_features(30), keep=0.8)
    detector.save(tmp_path / "detector")
    loaded = de.Detector.load(tmp_path / "detector", model=classifier.model)
    assert list(loaded.predict(unit_features(9, seed=3))) == list(detector.predict(unit_features(9, seed=3)))
    assert loaded.score.spec == "delta-energy(tau=0.1,c=1)"
    names = sorted(path.name for path in (tmp_path / "detector").iterdir())
    assert len(names) == 2 and names[0].startswith("detector-") and names[1] == "detector.json"


def test_a_detector_names_its_model(tiny_clip_folder: Path, tmp_path: Path) -> None:
    classifier = de.ZeroShotClassifier(de.load_model(tiny_clip_folder), ["dog", "cat"], templates=["{}", "a {}"])
    de.Detector(classifier, "delta-energy").calibrate(unit_features(5)).save(tmp_path)
    loaded = de.Detector.load(tmp_path)
    assert loaded.classifier.model.fingerprint == classifier.model.fingerprint
    assert loaded.classifier.templates == ("{}", "a {}")


def test_a_threshold_from_another_model_is_refused(classifier: de.Classifier, tmp_path: Path) -> None:
    de.Detector(classifier, "delta-energy").calibrate(unit_features(5)).save(tmp_path / "detector")
    other = de.load_model(write_clip(tmp_path / "other", seed=7, hidden_act="gelu"))
    with pytest.raises(ArtifactError, match=r"(?s)activation.*fingerprint"):
        de.Detector.load(tmp_path / "detector", model=other)


def test_damaged_detector_folders_are_refused(classifier: de.Classifier, tmp_path: Path) -> None:
    folder = tmp_path / "detector"
    with pytest.raises(ArtifactError, match="not a folder"):
        de.Detector.load(folder)
    de.Detector(classifier, "delta-energy").calibrate(unit_features(5)).save(folder)
    record = read_json(folder / "detector.json")

    def expect(changed: object, message: str) -> None:
        write_json(folder / "detector.json", sealed(changed) if isinstance(changed, dict) else changed)
        with pytest.raises(ArtifactError, match=message):
            de.Detector.load(folder, model=classifier.model)

    expect({**record, "classes": ["dog", "cat", "cow"]}, "class list was changed")
    expect({**record, "format": 99}, "format 99")
    expect([], "format None")
    expect({**record, "calibration": {**record["calibration"], "slack": "low"}}, r"calibration.slack is 'low'")
    expect({**record, "classifier": {"method": "zero-shoot", "record": {}}}, "Did you mean 'zero-shot'")
    expect({key: value for key, value in record.items() if key != "score"}, "'score' is missing")
    write_json(folder / "detector.json", record)
    write_json(folder / "detector.json", {**record, "deltaenergy": "0"})
    with pytest.raises(ArtifactError, match="changed after it was written"):
        de.Detector.load(folder, model=classifier.model)
    write_json(folder / "detector.json", record)
    (tensors,) = folder.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match=r"\.safetensors is damaged"):
        de.Detector.load(folder, model=classifier.model)
    tensors.unlink()
    with pytest.raises(ArtifactError, match="does not exist"):
        de.Detector.load(folder, model=classifier.model)
    (folder / "detector.json").write_text("{")
    with pytest.raises(ArtifactError, match="cannot be read as JSON"):
        de.Detector.load(folder, model=classifier.model)


def test_a_failed_save_leaves_the_old_detector(
    classifier: de.Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    de.Detector(classifier, "delta-energy").calibrate(unit_features(5)).save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        de.Detector(classifier, "delta-energy").calibrate(unit_features(9)).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_record_is_readable_json(classifier: de.Classifier, tmp_path: Path) -> None:
    de.Detector(classifier, "delta-energy").calibrate(unit_features(5), keep=0.9).save(tmp_path)
    record = json.loads((tmp_path / "detector.json").read_text())
    assert record["classes"] == ["dog", "cat", "red car"]
    known = record["calibration"]
    assert (known["keep"], known["confidence"], known["images"]) == (0.9, None, 5)
    assert isinstance(known["threshold"], float) and known["guarantee"].endswith("needs 9 images.")
    assert record["model"]["activation"] == "quick_gelu"
