"""Twenty images through every way in: Python, command line, service, Ray, folder, store. All rows are equal.

Values are compared bit by bit. A column that two ways do not both have is not compared here: `test_columns` asks for
one list of columns.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.cli.main import run

Row = dict[str, Any]
CLASSES = ["cat", "dog", "red square"]
# The table that every way gives; `label_2, confidence_2, …` follow where more classes are requested.
COLUMNS = ["path", "label", "confidence", "score_name", "score", "p_value", "is_ood", "verdict", "answer"]


class Scene:
    """The images, a detector for them, and the rows that each way gives."""

    def __init__(self, folder: Path, model: Path) -> None:
        rng = np.random.default_rng(7)
        self.images, self.known = folder / "images", folder / "known"
        for i in range(40):
            place = (self.images if i < 20 else self.known) / CLASSES[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            side = 20 + i
            Image.fromarray(rng.integers(0, 256, (side, 40, 3), dtype=np.uint8)).save(place / f"{i:02}.png")
        self.folder, self.saved, self.store = folder, folder / "detector", folder / "images.store"
        classifier = de.ZeroShotClassifier(de.load_model(model), CLASSES)
        self.detector = de.Detector(classifier, "delta-energy").calibrate(self.known, keep=0.6, confidence=None)
        self.detector.save(self.saved)
        self.files = sorted(str(file) for file in self.images.rglob("*.png"))
        self.built = de.build_store(classifier.model, self.images, self.store)
        self.rows = cache(self._rows)

    def _rows(self, way: str) -> list[Row]:
        rows: list[Row] = getattr(self, f"by_{way}")()
        return rows

    def by_predict(self) -> list[Row]:
        return as_rows(self.detector.predict(self.images))

    def by_stream(self) -> list[Row]:
        return as_rows(self.detector.stream(self.images))

    def by_files(self) -> list[Row]:
        return as_rows(self.detector.predict(self.files))

    def by_loaded_detector(self) -> list[Row]:
        return as_rows(de.Detector.load(self.saved).predict(self.images))

    def by_store_object(self) -> list[Row]:
        return as_rows(self.detector.predict(self.built))

    def by_store_path(self) -> list[Row]:
        return as_rows(self.detector.predict(self.store))

    def by_table(self) -> list[Row]:
        rows: list[Row] = self.detector.predict(self.images).to_table().to_pylist()
        return rows

    def by_csv(self) -> list[Row]:
        with self._command("verdicts.csv").open(encoding="utf-8", newline="") as file:
            return [read_cells(row) for row in csv.DictReader(file)]

    def by_jsonl(self) -> list[Row]:
        return [json.loads(line) for line in self._command("verdicts.jsonl").read_text(encoding="utf-8").splitlines()]

    def by_parquet(self) -> list[Row]:
        rows: list[Row] = pq.read_table(self._command("verdicts.parquet")).to_pylist()
        return rows

    def by_json(self) -> list[Row]:
        return find_rows(json.loads(self._run("score", str(self.images), "--detector", str(self.saved), "--json")))

    def by_score_of_store(self) -> list[Row]:
        return find_rows(json.loads(self._run("score", str(self.store), "--detector", str(self.saved), "--json")))

    def by_ray(self) -> list[Row]:
        arguments = "score", str(self.images), "--detector", str(self.saved), "--ray", "local", "--workers", "1"
        self._run(*arguments, "--out", str(self.folder / "ray.parquet"))
        rows: list[Row] = pq.read_table(self.folder / "ray.parquet").to_pylist()
        return rows

    def by_scorer(self) -> list[Row]:
        """What Ray Data runs, without Ray."""
        pictures = {"path": self.files, "bytes": [Path(file).read_bytes() for file in self.files]}
        rows: list[Row] = de.scale.BatchScorer(self.saved)(pictures).to_pylist()
        return rows

    def by_service(self) -> list[Row]:
        files = [("files", (file, Path(file).read_bytes(), "image/png")) for file in self.files]
        return self._post("verdicts", data={"detector": "d"}, files=files)

    def by_service_features(self) -> list[Row]:
        features = self.detector.classifier.model.encode_images(self.files)
        rows = self._post("features", json={"detector": "d", "features": features.tolist()})
        return [{**row, "path": file} for row, file in zip(rows, self.files, strict=True)]

    def _command(self, name: str) -> Path:
        self._run("score", str(self.images), "--detector", str(self.saved), "--out", str(self.folder / name))
        return self.folder / name

    def _run(self, *arguments: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            run(arguments)
        assert not ended.value.code
        return printed.getvalue()

    def _post(self, route: str, **request: Any) -> list[Row]:
        pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
        from starlette.testclient import TestClient

        from deltaenergy.serve.app import create_app
        from deltaenergy.serve.server import make_engine

        engine = make_engine([("d", self.detector)], self.detector.classifier.model, None)
        with TestClient(create_app(engine)) as client:
            answer = client.post(f"/v1/{route}", **request)
        assert answer.status_code == 200, answer.text
        rows: list[Row] = answer.json()["images"]
        return rows


def as_rows(verdicts: Iterable[de.Verdict]) -> list[Row]:
    return [verdict.to_dict() for verdict in verdicts]


def find_rows(answer: Any) -> list[Row]:
    """The list of rows in what `--json` prints."""
    if isinstance(answer, list):
        return answer
    rows: list[Row] = next(part for part in answer.values() if isinstance(part, list) and len(part) == 20)
    return rows


def read_cells(row: dict[str, str]) -> Row:
    """Cells of CSV as what they mean."""
    meant: Row = {}
    for name, cell in row.items():
        if name in {"confidence", "score", "p_value"}:
            meant[name] = float(cell)
        else:
            meant[name] = {"True": True, "False": False, "true": True, "false": False}.get(cell, cell)
    return meant


def image_of(row: Row) -> str:
    """Which image a row is of, however its column is called: the part of its path that is the same everywhere."""
    return Path(row.get("path", row.get("id", ""))).name


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, tiny_clip_folder: Path) -> Scene:
    return Scene(tmp_path_factory.mktemp("parity"), tiny_clip_folder)


WAYS = sorted(name.removeprefix("by_") for name in vars(Scene) if name.startswith("by_") and name != "by_predict")
VALUES = COLUMNS[1:]
# The service makes batches of what comes in at the same time, and the last bits of a feature depend on its batch.
BATCHED_BY_TIME = 1e-5
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


def cases(columns: Iterable[str]) -> list[Any]:
    found = []
    for way in WAYS:
        for column in columns:
            marks = [needs_ray] if way == "ray" else []
            found.append(pytest.param(way, column, marks=marks, id=f"{way}-{column}"))
    return found


@pytest.mark.parametrize(("way", "column"), cases(["images", *VALUES]))
def test_rows_are_those_of_predict(scene: Scene, way: str, column: str) -> None:
    expected, found = scene.rows("predict"), scene.rows(way)
    if column == "images":
        assert list(map(image_of, found)) == list(map(image_of, expected))
        return
    values, wanted = ({image_of(row): row[column] for row in rows} for rows in (found, expected))
    if way == "service" and column in {"score", "confidence"}:
        # A score near zero is the difference of larger numbers, whose rounding it has.
        largest = max(map(abs, wanted.values()))
        assert values == pytest.approx(wanted, rel=BATCHED_BY_TIME, abs=BATCHED_BY_TIME * largest)
    else:
        assert values == wanted


@pytest.mark.parametrize(("way", "column"), cases(["columns"]))
def test_columns_are_those_of_the_one_table(scene: Scene, way: str, column: str) -> None:
    assert all(list(row)[: len(COLUMNS)] == COLUMNS for row in scene.rows(way)), column


@pytest.mark.parametrize("call", ["top_k", "predict_proba"])
def test_confidences_are_those_of_predict(scene: Scene, call: str) -> None:
    """The same images, the same softmax, the same bits."""
    detector = scene.detector
    if call == "top_k":
        found = [(label, value) for ((label, value),) in detector.top_k(scene.images, 1)]
    else:
        table = detector.predict_proba(scene.images)
        found = [(CLASSES[row.argmax()], float(row.max())) for row in table]
    assert found == [(row["label"], row["confidence"]) for row in scene.rows("predict")]


def test_images_are_of_both_verdicts(scene: Scene) -> None:
    """Otherwise equal rows would say little."""
    assert {row["is_ood"] for row in scene.rows("predict")} == {True, False}
    assert len(scene.rows("predict")) == 20
