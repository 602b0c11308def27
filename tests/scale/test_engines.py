"""`BatchScorer` and `Encoder` on batches of features and images: the verdicts of `deltaenergy score`, to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltaenergy as de
from deltaenergy.detector.verdict import verdict_columns
from deltaenergy.errors import InputError
from deltaenergy.scale import BatchScorer, Encoder
from tests.cli.runner import Runner
from tests.scale.conftest import Scene

COLUMNS = verdict_columns()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys)


def rows_of(store: Path) -> pa.Table:
    """All columns of a store as one table: a row per image."""
    return pa.concat_tables(pa.ipc.open_file(path).read_all() for path in sorted(store.glob("*.arrow")))


def scored_by_command(command: Runner, images: Path, detector: Path, folder: Path) -> tuple[pa.Table, str]:
    out = folder / "verdicts.parquet"
    result = command("score", images, "--detector", detector, "--out", out)
    return pq.read_table(out), result.err


def as_pandas(table: pa.Table) -> Any:
    pytest.importorskip("pandas", reason="pandas is not installed")
    return table.to_pandas()


def as_nullable(table: pa.Table) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return table.to_pandas(types_mapper={pa.string(): pandas.StringDtype()}.get)


def as_arrays(table: pa.Table) -> dict[str, Any]:
    """As Ray Data hands it over: texts and lists as objects."""
    found = {}
    for name in table.column_names:
        found[name] = np.empty(len(table), object)
        found[name][:] = table[name].to_pylist()
    return found


@pytest.mark.parametrize("form", [lambda table: table, as_arrays, as_pandas, as_nullable])
@pytest.mark.parametrize("size", [3, 100])
def test_rows_of_a_store_get_the_verdicts_of_score(
    scene: Scene, command: Runner, tmp_path: Path, size: int, form: Any
) -> None:
    rows = rows_of(scene.store)
    scorer = BatchScorer(scene.detector)
    found = pa.concat_tables([scorer(form(rows.slice(start, size))) for start in range(0, len(rows), size)])
    assert found["path"].to_pylist() == rows["id"].to_pylist(), "every row gives one, in order"
    readable = found.filter(pa.compute.is_null(found["error"]))
    expected, told = scored_by_command(command, scene.store, scene.detector, tmp_path)
    assert readable.select(COLUMNS).equals(expected)
    (damaged,) = found.filter(pa.compute.is_valid(found["error"])).to_pylist()
    assert f"{damaged['path']}: {damaged['error']}" in " ".join(told.split())
    assert all(damaged[name] is None for name in COLUMNS[1:])


@pytest.mark.parametrize("form", ["lists", "array", "objects", "tensors"])
def test_features_get_the_verdicts_of_score(scene: Scene, command: Runner, tmp_path: Path, form: str) -> None:
    store = de.Store.open(scene.store)
    features = store.features(store.readable)
    column = {
        "lists": lambda: pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1]),
        "array": lambda: features,
        "objects": lambda: np.array([*features, None], object)[:-1],
        "tensors": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(features),
    }[form]()
    batch = {"id": [store.ids[row] for row in store.readable], "features": column}
    given = pa.table(batch) if form in ("lists", "tensors") else batch
    expected, _ = scored_by_command(command, scene.store, scene.detector, tmp_path)
    assert BatchScorer(scene.detector)(given).select(COLUMNS).equals(expected)


def test_rows_without_features_keep_a_row(scene: Scene) -> None:
    store = de.Store.open(scene.store)
    one = store.features([0])[0].tolist()
    batch = pa.table({"path": ["a", "b", "c"], "features": [None, one, one], "error": [None, None, "it was lost"]})
    found = BatchScorer(scene.detector)(batch).to_pylist()
    assert [row["error"] for row in found] == ["it has no features", None, "it was lost"]
    assert [row["label"] is None for row in found] == [True, False, True]


def test_pictures_get_the_verdicts_of_score(scene: Scene, command: Runner, tmp_path: Path) -> None:
    files = sorted(scene.images.iterdir())
    batch = {"path": [str(file) for file in files], "bytes": [file.read_bytes() for file in files]}
    batch = {name: np.array([*values, None], object) for name, values in batch.items()}
    batch["path"][-1] = "nothing"
    found = BatchScorer(scene.detector)(batch)
    expected, told = scored_by_command(command, scene.images, scene.detector, tmp_path)
    assert found["path"].to_pylist() == batch["path"].tolist()
    assert found.filter(pa.compute.is_null(found["error"])).select(COLUMNS).equals(expected)
    damaged, nothing = (row for row in found.to_pylist() if row["error"])
    assert damaged["path"].endswith("damaged.png") and damaged["error"] in told and damaged["score"] is None
    assert nothing["error"] == "it has no bytes"


def test_an_encoder_gives_the_features_of_the_model(scene: Scene, tiny_clip_folder: Path, tiny_clip: de.Model) -> None:
    files = sorted(scene.images.iterdir())
    batch = {"path": [str(file) for file in files], "bytes": [file.read_bytes() for file in files], "label": ["x"] * 23}
    encoder = Encoder(tiny_clip_folder)
    for given in (batch, pa.table(batch), as_pandas(pa.table(batch))):
        found = encoder(given)
        assert found.column_names == ["path", "label", "error", "features"]
        assert found["path"].to_pylist() == batch["path"]
        damaged = [row for row in found.to_pylist() if row["error"] is not None]
        assert len(damaged) == 1 and damaged[0]["features"] is None and "damaged" in damaged[0]["path"]
        rows = np.array([row["features"] for row in found.to_pylist() if row["error"] is None], np.float32)
        np.testing.assert_array_equal(rows, tiny_clip.encode(scene.images).features)
    # One step after the other: what is encoded can be scored.
    scored = BatchScorer(scene.detector)(encoder(batch))
    assert scored["error"].null_count == 22
    np.testing.assert_allclose(
        [row["score"] for row in scored.to_pylist() if row["error"] is None],
        [verdict.score for verdict in de.Detector.load(scene.detector).predict(scene.images)],
        rtol=1e-6,
    )
    with pytest.raises(InputError, match="bytes"):
        encoder({"path": ["a"]})


def test_an_empty_batch_has_the_same_columns(scene: Scene) -> None:
    scorer, rows = BatchScorer(scene.detector), rows_of(scene.store)
    assert scorer(rows.slice(0, 0)).schema == scorer(rows).schema
    assert scorer(rows.slice(0, 0)).num_rows == 0


def test_what_is_wrong_is_said(scene: Scene, tiny_clip: de.TowerModel, tmp_path: Path) -> None:
    scorer = BatchScorer(scene.detector)
    width = tiny_clip.feature_dim
    unit = [1.0] + [0.0] * (width - 1)
    for batch, words in [
        ({"id": ["a"], "size": [1]}, "It has id, size"),
        ({"features": [unit]}, "needs the column id or path"),
        ({"id": [3], "features": [unit]}, "3 in row 0"),
        ({"id": ["a"], "features": [unit[:-1]]}, f"{width - 1} columns"),
        ({"id": ["a", "b"], "features": [unit, unit[:-1]]}, "lists of equally many numbers"),
        ({"id": ["a"], "features": [[2 * value for value in unit]]}, "unit length"),
        ([1, 2], "batch of type list"),
    ]:
        with pytest.raises(InputError, match=words):
            scorer(batch)
    de.Detector(de.ZeroShotClassifier(tiny_clip, ["a", "b"]), "mcm").save(tmp_path / "raw")
    with pytest.raises(InputError, match="no threshold"):
        BatchScorer(tmp_path / "raw")


def test_nothing_of_it_imports_ray() -> None:
    script = (
        "import sys, deltaenergy as de; assert 'deltaenergy.scale' not in sys.modules\n"
        "de.scale.BatchScorer; print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
