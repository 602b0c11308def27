"""Calibration images that a detector keeps: which they are, what is kept of them, and their way to disk and back."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.cli.main import run
from deltaenergy.detector.reference_images import SIDE, KeptImages
from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json, write_json
from deltaenergy.files.artifact import sealed
from deltaenergy.scoring import score_images
from deltaenergy.source import as_source, load_images
from tests.detector.test_detector import unit_features


@pytest.fixture(scope="module")
def classifier(tiny_clip: de.Model) -> de.Classifier:
    return de.ZeroShotClassifier(tiny_clip, ["dog", "cat", "red car"])


def kept(detector: de.Detector) -> KeptImages:
    assert detector.kept_images is not None
    return detector.kept_images


def test_rows_are_those_of_the_calibration_scores(classifier: de.Classifier, photos: Path) -> None:
    detector = de.Detector(classifier, "max-logit").calibrate(photos, confidence=None, keep_images=True)
    found, items = kept(detector), {item.id: item for item in load_images(photos)}
    assert sorted(found.names) == sorted(items)
    features = classifier.model.encode_images([items[name] for name in found.names], batch_size=8)
    assert found.features == pytest.approx(features, abs=1e-5)
    cosines = classifier.similarities(features)
    assert found.named.tolist() == cosines.argmax(axis=1).tolist()
    assert found.similarity == pytest.approx(cosines.max(axis=1), abs=1e-5)
    # max-logit is the largest similarity, so that these are the calibration scores, ascending.
    assert found.similarity == pytest.approx(detector.calibration_scores, abs=1e-6)
    for name, data in zip(found.names, found.thumbnails):
        with Image.open(io.BytesIO(data)) as small, Image.open(name) as picture:
            square = min(picture.size)
            left, top = (picture.width - square) // 2, (picture.height - square) // 2
            assert small.format == "JPEG" and small.size == (min(SIDE, square),) * 2
            mean = np.asarray(picture.convert("RGB").crop((left, top, left + square, top + square)), float).mean((0, 1))
            assert np.asarray(small, float).mean((0, 1)) == pytest.approx(mean, abs=6)


def test_a_fitted_score_keeps_the_images_that_set_its_threshold(classifier: de.Classifier) -> None:
    features = unit_features(60)
    detector = de.Detector(classifier, "react").calibrate(features, 0.9, keep_images=True)
    found = kept(detector)
    assert len(found) == len(detector.calibration_scores) == 60
    rows = [int(name.removeprefix("row ")) for name in found.names]
    assert len(set(rows)) == len(rows)
    assert found.features == pytest.approx(features[rows])
    known, scorer = detector.require_calibration(), detector.scorer
    every = score_images(classifier, [scorer], as_source(found.features)).by_fold["react"]
    assert known.folds is not None
    assert every[np.arange(60), known.folds] == pytest.approx(known.scores, abs=1e-6)
    assert set(found.thumbnails) == {b""}  # features have no pictures


def test_saved_and_loaded(classifier: de.Classifier, photos: Path, tmp_path: Path) -> None:
    detector = de.Detector(classifier, "mcm").calibrate(photos, confidence=None, keep_images=True)
    detector.save(tmp_path / "detector")
    loaded = de.Detector.load(tmp_path / "detector", model=classifier.model)
    before, after = kept(detector), kept(loaded)
    assert after.names == before.names and after.thumbnails == before.thumbnails
    for name in ("features", "named", "similarity"):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    # It goes on from there: saved again, it still has them.
    loaded.save(tmp_path / "again")
    assert kept(de.Detector.load(tmp_path / "again", model=classifier.model)).thumbnails == before.thumbnails


def test_detectors_without_them_are_as_before(classifier: de.Classifier, photos: Path, tmp_path: Path) -> None:
    detector = de.Detector(classifier, "mcm").calibrate(photos, confidence=None, keep_images=True)
    detector.calibrate(photos, confidence=None)
    assert detector.kept_images is None
    detector.save(tmp_path / "detector")
    # Nothing in the files says a word of kept images, so that these are what earlier versions wrote.
    assert "kept_images" not in read_json(tmp_path / "detector" / "detector.json")
    assert de.Detector.load(tmp_path / "detector", model=classifier.model).kept_images is None


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda kept: kept["names"].pop(), "7 names for 8 kept images"),
        (lambda kept: kept.update(format="kept images 9"), "kept images 1"),
        (lambda kept: kept.update(names=[3] * 8), "a text"),
        (lambda kept: kept.pop("names"), "is missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    classifier: de.Classifier, photos: Path, tmp_path: Path, change: object, message: str
) -> None:
    de.Detector(classifier, "mcm").calibrate(photos, confidence=None, keep_images=True).save(tmp_path / "detector")
    path = tmp_path / "detector" / "detector.json"
    record = read_json(path)
    change(record["kept_images"])  # type: ignore[operator]
    write_json(path, sealed(record))
    with pytest.raises(ArtifactError, match=message):
        de.Detector.load(tmp_path / "detector", model=classifier.model)


def test_tensors_without_a_record_are_refused(classifier: de.Classifier, photos: Path, tmp_path: Path) -> None:
    de.Detector(classifier, "mcm").calibrate(photos, confidence=None, keep_images=True).save(tmp_path / "detector")
    path = tmp_path / "detector" / "detector.json"
    record = read_json(path)
    del record["kept_images"]
    write_json(path, sealed(record))
    with pytest.raises(ArtifactError, match=r"kept\..* is not known here"):
        de.Detector.load(tmp_path / "detector", model=classifier.model)


def test_from_the_command_line(photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    words = [photos, "--classes", "dog,cat", "--model", tiny_clip_folder, "--score", "mcm", "--keep-images"]
    with pytest.raises(SystemExit) as stop:
        run(["calibrate", *map(str, words), "--out", str(tmp_path / "detector")])
    assert not stop.value.code
    assert len(kept(de.Detector.load(tmp_path / "detector"))) == 8
