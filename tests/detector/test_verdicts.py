"""The one table of verdicts: columns, rows, batches, and what is known before a stream has ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import deltaenergy as de
from deltaenergy.detector.verdict import COLUMNS, verdict_columns, verdict_schema
from deltaenergy.detector.verdicts import Verdicts, VerdictStream
from deltaenergy.errors import InputError, UnreadableImagesError
from tests.colours import ColourModel, paint_sets
from tests.detector.made import made

CLASSES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def detector(sets: Path) -> de.Detector:
    return de.Detector(de.ZeroShotClassifier(ColourModel(), CLASSES), "delta-energy").calibrate(sets / "dark")


def test_columns_worked_by_hand() -> None:
    assert verdict_columns() == list(COLUMNS)
    assert verdict_columns(3)[len(COLUMNS) :] == ["label_2", "confidence_2", "label_3", "confidence_3"]
    assert verdict_schema(2).field("confidence_2").type == pa.float64()


def test_a_row_worked_by_hand() -> None:
    known, unknown = made(["a.jpg", "b.jpg"], ["dog", "cat"], [1.5, -2.0], [False, True], [0.25, np.nan]).rows()
    assert known == {
        "path": "a.jpg",
        "label": "dog",
        "confidence": 0.5,
        "score_name": "energy",
        "score": 1.5,
        "p_value": 0.25,
        "is_ood": False,
        "verdict": "known",
        "answer": "dog",
        "more_like": None,
    }
    assert (unknown["label"], unknown["answer"], unknown["verdict"]) == ("cat", "none of these", "none of these")
    assert unknown["p_value"] is None


def test_without_a_threshold_there_is_no_verdict(detector: de.Detector, sets: Path) -> None:
    verdicts = made(["a"], ["dog"], [1.0], None, [np.nan])
    (row,) = verdicts.rows()
    assert row["is_ood"] is row["verdict"] is row["answer"] is row["p_value"] is None and row["label"] == "dog"
    assert verdicts.to_table().to_pylist() == verdicts.rows() and verdicts.counts.rejected is None
    with pytest.raises(de.errors.NotFittedError):
        de.Detector(detector.classifier, "mcm").predict(sets / "known")


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_the_table_is_the_rows(detector: de.Detector, sets: Path, top_k: int) -> None:
    verdicts = detector.predict(sets / "known", top_k=top_k)
    table = verdicts.to_table()
    assert table.to_pylist() == verdicts.rows() == [verdict.to_dict() for verdict in verdicts]
    assert table.schema == verdict_schema(min(top_k, 3))
    shares = detector.predict_proba(sets / "known")
    for verdict, row in zip(verdicts, shares):
        best = np.argsort(-row, kind="stable")[: min(top_k, 3)]
        assert verdict.top == tuple((CLASSES[i], float(row[i])) for i in best)
        assert (verdict.label, verdict.confidence) == verdict.top[0]
    assert detector.top_k(sets / "known", top_k) == [list(verdict.top) for verdict in verdicts]


def test_probabilities_are_the_softmax(detector: de.Detector, sets: Path) -> None:
    cosines = detector.classifier.similarities(sets / "known").astype(np.float64)
    logits = cosines * detector.classifier.model.logit_scale
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(detector.predict_proba(sets / "known"), expected, atol=1e-5)


def test_probabilities_need_every_image(detector: de.Detector, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"?")
    with pytest.raises(UnreadableImagesError):
        detector.predict_proba(tmp_path)
    with pytest.raises(InputError, match="k must be"):
        detector.top_k(tmp_path, 0)


def test_a_stream_knows_its_counts_at_its_end(detector: de.Detector, sets: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"?")
    images = [sets / "known", tmp_path, sets / "grey"]
    stream = detector.stream(images, batch_size=4)
    next(stream)
    for name in ("unreadable", "counts"):
        with pytest.raises(InputError, match=name):
            getattr(stream, name)
    rest = list(stream)
    whole = detector.predict(images, batch_size=4)
    assert [verdict.path for verdict in rest] == list(whole.paths)[1:]
    assert stream.counts == whole.counts and stream.counts.unreadable == 1
    assert whole.counts.images == len(whole) and whole.counts.rejected == sum(bool(v.is_ood) for v in whole)
    assert [image.id for image in stream.unreadable] == [image.id for image in whole.unreadable]


def test_batches_come_one_by_one_with_their_images(detector: de.Detector, sets: Path) -> None:
    stream = detector.stream(sets / "known", batch_size=4)
    parts = []
    for part in stream.batches():
        assert [item.id for item in part.items] == list(part.paths)
        parts.append(part)
    assert len(parts) > 1
    whole = Verdicts.concat(parts)
    assert list(whole) == list(detector.predict(sets / "known")) and not whole.items


def test_no_image_at_all(detector: de.Detector, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"?")
    verdicts = detector.predict(tmp_path, top_k=2)
    assert len(verdicts) == 0 and len(verdicts.unreadable) == 1
    assert verdicts.to_table().schema == verdict_schema(2) and verdicts.counts.rejected == 0
    assert list(VerdictStream([verdicts])) == []


def test_names_that_utf8_cannot_hold_are_escaped_in_tables() -> None:
    verdicts = made(["\udcff.jpg"], ["\ud800"], [0.0], [False])
    assert verdicts[0].path == "\udcff.jpg"
    assert verdicts.to_table().to_pylist()[0]["path"] == r"\udcff.jpg"


def test_indexing_is_that_of_a_list(detector: de.Detector, sets: Path) -> None:
    verdicts = detector.predict(sets / "known")
    listed = list(verdicts)
    assert verdicts[-1] == listed[-1] and verdicts[2:5] == listed[2:5] and listed[3] in verdicts
    with pytest.raises(IndexError):
        verdicts[len(listed)]
