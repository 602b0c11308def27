"""Other programs read a store: its Arrow files as they are, or its Parquet export (docs/feature-store.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from deltaenergy.errors import InputError
from deltaenergy.scale.build import build_store
from deltaenergy.store.store import Store
from tests.data.archives import picture_bytes
from tests.data.colour_model import MeanColour

Rows = list[tuple[str, str | None, npt.NDArray[np.float32] | None]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two shards; an image in the second was changed, so its first version is still there; one cannot be read."""
    folder = tmp_path_factory.mktemp("readers")
    for i in range(5):
        (folder / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (folder / "photos" / "ab"[i % 2] / f"{i}.png").write_bytes(picture_bytes("PNG", i))
    (folder / "photos" / "a" / "4.png").write_bytes(b"not an image")
    build_store(MeanColour(), folder / "photos", folder / "store", shard_size=3)
    (folder / "photos" / "b" / "3.png").write_bytes(picture_bytes("PNG", 9))
    store = build_store(MeanColour(), folder / "photos", folder / "store")
    assert len(list((folder / "store").glob("*.arrow"))) == 3
    return store


@pytest.fixture(scope="module")
def parquet(store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exported") / "parquet"
    store.to_parquet(folder)
    return str(folder / "*.parquet")


def expected(store: Store) -> Rows:
    features = iter(store.features(store.readable))
    errors = store.index["error"].to_pylist()
    return [
        (name, label, None if error else next(features)) for name, label, error in zip(store.ids, store.labels, errors)
    ]


def check(found: Iterator[dict[str, Any]], store: Store) -> None:
    rows, wanted = list(found), expected(store)
    assert [(row["id"], row["label"]) for row in rows] == [row[:2] for row in wanted]
    assert sum(row["features"] is None for row in rows) == 1
    for row, (_, _, feature) in zip(rows, wanted):
        np.testing.assert_array_equal(row["features"], feature)  # exactly: the same float32


def test_pyarrow(store: Store, parquet: str) -> None:
    check(iter(pa.dataset.dataset(store.files, format="ipc").to_table().to_pylist()), store)
    for file, of in zip(sorted(Path(parquet).parent.iterdir()), store.files):
        assert pq.read_table(file).equals(pa.ipc.open_file(of).read_all())


def test_pandas(store: Store) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.concat(map(pandas.read_feather, store.files))
    check(iter(frame.to_dict("records")), store)


def test_polars(store: Store, parquet: str) -> None:
    polars = pytest.importorskip("polars")
    check(polars.scan_ipc(store.files).collect().iter_rows(named=True), store)
    check(polars.read_parquet(parquet).iter_rows(named=True), store)


def test_duckdb(store: Store, parquet: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    shards = pa.dataset.dataset(store.files, format="ipc")  # named in the query
    assert shards is not None
    check(iter(duckdb.sql("from shards").to_arrow_table().to_pylist()), store)
    check(
        iter(duckdb.sql(f"from '{parquet}' order by file_index, file_row_number").to_arrow_table().to_pylist()), store
    )


def test_datasets(store: Store, parquet: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for kind, files in (("arrow", store.files), ("parquet", parquet)):
        found = datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(tmp_path / kind))
        check(iter(found), store)


def test_an_export_overwrites_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="not empty"):
        store.to_parquet(tmp_path)


def test_half_precision_is_exported_as_single(store: Store, tmp_path: Path) -> None:
    photos = Path(store.ids[0]).parent.parent
    half = build_store(MeanColour(), photos, tmp_path / "half", dtype="float16")
    half.to_parquet(tmp_path / "parquet")
    column = pq.read_table(tmp_path / "parquet" / "00000.parquet")["features"]
    assert column.type.value_type == pa.float32()
    np.testing.assert_array_equal(np.array(column.drop_null().to_pylist()), half.features(half.readable))
