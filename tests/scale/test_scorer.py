"""`Scorer` on batches of features, pictures and lines of a store: the verdicts of `deltaenergy score`, to the bit."""

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
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.scale import Scorer
from tests.cli.runner import Runner
from tests.scale.conftest import Scene, draw

COLUMNS = verdict_columns()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys)


def lines_of(store: Path) -> pa.Table:
    """The index of a store as one table, as Ray Data reads it, with the number of each line's shard."""
    tables = []
    for path in sorted(store.glob("*.index.parquet")):
        table = pq.read_table(path)
        if "shard" not in table.column_names:
            number = pa.array([int(path.name[:5])] * len(table), pa.int32())
            table = table.append_column("shard", number)
        tables.append(table.replace_schema_metadata(None))
    return pa.concat_tables(tables)


def scored_by_command(command: Runner, images: Path, detector: Path, folder: Path) -> tuple[pa.Table, str]:
    out = folder / "verdicts.parquet"
    result = command("score", images, "--detector", detector, "--out", out)
    return pq.read_table(out), result.err


def as_pandas(table: pa.Table) -> Any:
    pytest.importorskip("pandas", reason="pandas is not installed")
    return table.to_pandas()


def as_arrays(table: pa.Table) -> dict[str, Any]:
    """As Ray Data hands it over: texts as objects, whole numbers with gaps as floats with NaN."""
    found = {name: np.array(table[name].to_pylist(), object) for name in table.column_names}
    return {**found, "row": table["row"].to_numpy(zero_copy_only=False).astype(np.float64)}


@pytest.mark.parametrize("form", [lambda table: table, as_arrays, as_pandas])
@pytest.mark.parametrize("size", [3, 100])
def test_lines_of_a_store_get_the_verdicts_of_score(
    scene: Scene, command: Runner, tmp_path: Path, size: int, form: Any
) -> None:
    lines = lines_of(scene.store)
    scorer = Scorer(scene.detector, scene.store)
    found = pa.concat_tables([scorer(form(lines.slice(start, size))) for start in range(0, len(lines), size)])
    assert found["path"].to_pylist() == lines["id"].to_pylist(), "every line gives a row, in order"
    readable = found.filter(pa.compute.is_null(found["error"]))
    expected, told = scored_by_command(command, scene.store, scene.detector, tmp_path)
    assert readable.select(COLUMNS).equals(expected)
    (damaged,) = found.filter(pa.compute.is_valid(found["error"])).to_pylist()
    assert f"{damaged['path']}: {damaged['error']}" in " ".join(told.split())
    assert all(damaged[name] is None for name in COLUMNS[1:])


def test_lines_that_share_a_picture_or_were_replaced(
    tiny_clip: de.TowerModel, scene: Scene, command: Runner, tmp_path: Path
) -> None:
    images, store = draw(tmp_path / "images", 6, 4), tmp_path / "store"
    (images / "copy.png").write_bytes((images / "001.png").read_bytes())
    de.build_store(tiny_clip, images, store, shard_size=3)
    (images / "002.png").write_bytes((draw(tmp_path / "other", 1, 5) / "000.png").read_bytes())
    de.build_store(tiny_clip, images, store, shard_size=3)
    lines = lines_of(store)
    assert len(lines) == 8 and len(set(lines["id"].to_pylist())) == 7, "one line was replaced"
    expected, _ = scored_by_command(command, store, scene.detector, tmp_path)
    scorer = Scorer(scene.detector, store)
    found = pa.concat_tables([scorer(lines.slice(start, 2)) for start in range(0, 8, 2)])
    assert found["error"].null_count == len(found) == 7
    rows = {row["path"]: row for row in found.select(COLUMNS).to_pylist()}
    assert rows == {row["path"]: row for row in expected.to_pylist()}


def test_lines_say_their_shard(scene: Scene) -> None:
    with pytest.raises(InputError, match="shard"):
        Scorer(scene.detector, scene.store)(lines_of(scene.store).drop_columns(["shard"]))


@pytest.mark.parametrize("form", ["lists", "array", "objects", "tensors"])
def test_features_get_the_verdicts_of_score(scene: Scene, command: Runner, tmp_path: Path, form: str) -> None:
    store = de.FeatureStore.open(scene.store)
    features = np.array(store.features)
    column = {
        "lists": lambda: pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1]),
        "array": lambda: features,
        "objects": lambda: np.array([*features, None], object)[:-1],
        "tensors": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(features),
    }[form]()
    batch = {"id": store.ids, "features": column}
    given = pa.table(batch) if form in ("lists", "tensors") else batch
    expected, _ = scored_by_command(command, scene.store, scene.detector, tmp_path)
    assert Scorer(scene.detector)(given).select(COLUMNS).equals(expected)


def test_rows_without_features_keep_a_row(scene: Scene) -> None:
    store = de.FeatureStore.open(scene.store)
    one = store.features[0].tolist()
    batch = pa.table({"path": ["a", "b", "c"], "features": [None, one, one], "error": [None, None, "it was lost"]})
    found = Scorer(scene.detector)(batch).to_pylist()
    assert [row["error"] for row in found] == ["it has no features", None, "it was lost"]
    assert [row["label"] is None for row in found] == [True, False, True]


def test_pictures_get_the_verdicts_of_score(scene: Scene, command: Runner, tmp_path: Path) -> None:
    files = sorted(scene.images.iterdir())
    batch = {"path": [str(file) for file in files], "bytes": [file.read_bytes() for file in files]}
    batch = {name: np.array([*values, None], object) for name, values in batch.items()}
    batch["path"][-1] = "nothing"
    found = Scorer(scene.detector)(batch)
    expected, told = scored_by_command(command, scene.images, scene.detector, tmp_path)
    assert found["path"].to_pylist() == batch["path"].tolist()
    assert found.filter(pa.compute.is_null(found["error"])).select(COLUMNS).equals(expected)
    damaged, nothing = (row for row in found.to_pylist() if row["error"])
    assert damaged["path"].endswith("damaged.png") and damaged["error"] in told and damaged["score"] is None
    assert nothing["error"] == "it has no bytes"


def test_an_empty_batch_has_the_same_columns(scene: Scene) -> None:
    scorer = Scorer(scene.detector, scene.store)
    lines = lines_of(scene.store)
    assert scorer(lines.slice(0, 0)).schema == scorer(lines).schema
    assert scorer(lines.slice(0, 0)).num_rows == 0


def test_what_is_wrong_is_said(scene: Scene, tiny_clip: de.TowerModel, tmp_path: Path) -> None:
    lines, scorer = lines_of(scene.store), Scorer(scene.detector, scene.store)
    width = tiny_clip.feature_dim
    unit = [1.0] + [0.0] * (width - 1)
    for batch, words in [
        ({"id": ["a"], "size": [1]}, "columns id, size cannot be scored"),
        ({"features": [unit]}, "needs the column id or path"),
        ({"id": [3], "features": [unit]}, "3 in row 0, which is no text"),
        ({"id": ["a"], "features": [unit[:-1]]}, f"{width - 1} columns"),
        ({"id": ["a", "b"], "features": [unit, unit[:-1]]}, "lists of equally many numbers"),
        ({"id": ["a"], "features": [[2 * value for value in unit]]}, "unit length"),
        ([1, 2], "batch of type list"),
    ]:
        with pytest.raises(InputError, match=words):
            scorer(batch)
    with pytest.raises(InputError, match="has no shard 77"):
        scorer(lines.set_column(lines.column_names.index("shard"), "shard", pa.array([77] * len(lines))))
    with pytest.raises(ArtifactError, match="row 99"):
        scorer(lines.set_column(lines.column_names.index("row"), "row", pa.array([99] * len(lines))))
    with pytest.raises(InputError, match="name it as well"):
        Scorer(scene.detector)(lines)
    de.Detector(de.ZeroShotClassifier(tiny_clip, ["a", "b"]), "mcm").save(tmp_path / "raw")
    with pytest.raises(InputError, match="no threshold"):
        Scorer(tmp_path / "raw")


def test_a_store_of_another_model_is_refused(scene: Scene, tmp_path: Path) -> None:
    lite = de.build_store(de.load_model("lite"), draw(tmp_path / "few", 2, 1), tmp_path / "lite")
    with pytest.raises(ArtifactError, match="another model"):
        Scorer(scene.detector, lite.path)


def test_nothing_of_it_imports_ray() -> None:
    script = (
        "import sys, deltaenergy as de; assert 'deltaenergy.scale' not in sys.modules\n"
        "de.scale.Scorer; print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
