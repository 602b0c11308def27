"""`Scorer` inside Ray Data: the verdicts of `deltaenergy score` from a store's index, features and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltaenergy as de
from deltaenergy.scale import Scorer
from tests.scale.conftest import Scene
from tests.scale.ray_here import own_ray

pytest.importorskip("ray.data", reason="ray is not installed: make test-ray")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with own_ray() as started:
        yield started


def expected(scene: Scene) -> dict[str, Any]:
    """By image: what the detector says of the store, or why it says nothing."""
    found = de.Detector.load(scene.detector).predict(scene.store)
    said = {verdict.path: (verdict.label, verdict.score, verdict.is_ood, None) for verdict in found}
    return said | {image.id: (None, None, None, image.reason) for image in found.unreadable}


def told(rows: list[dict[str, Any]]) -> dict[str, Any]:
    assert len({row["path"] for row in rows}) == len(rows)
    return {row["path"]: (row["label"], row["score"], row["is_ood"], row["error"]) for row in rows}


def test_the_index_of_a_store(ray: Any, scene: Scene) -> None:
    lines = ray.data.read_parquet(str(scene.store), include_paths=True)
    found = lines.map_batches(
        Scorer, fn_constructor_args=[str(scene.detector), str(scene.store)], concurrency=1, batch_size=4
    )
    assert told(found.take_all()) == expected(scene)


@pytest.mark.parametrize("form", ["numpy", "pyarrow", "pandas"])
def test_features_in_each_form_of_batches(ray: Any, scene: Scene, tmp_path: Path, form: str) -> None:
    store = de.FeatureStore.open(scene.store)
    flat = pa.array(store.features.ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, store.feature_dim)
    pq.write_table(pa.table({"id": store.ids, "features": column}), tmp_path / "features.parquet")
    data = ray.data.read_parquet(str(tmp_path / "features.parquet"))
    found = data.map_batches(
        Scorer, fn_constructor_args=[str(scene.detector)], concurrency=1, batch_size=9, batch_format=form
    )
    readable = {image: said for image, said in expected(scene).items() if said[-1] is None}
    assert told(found.take_all()) == readable


def test_pictures(ray: Any, scene: Scene) -> None:
    pictures = ray.data.read_binary_files(str(scene.images), include_paths=True)
    found = told(pictures.map_batches(Scorer, fn_constructor_args=[str(scene.detector)], concurrency=1).take_all())
    for image, said in expected(scene).items():
        label, score, is_ood, error = found[image]
        assert (label, is_ood, error) == (said[0], said[2], said[3])
        assert score is None or score == pytest.approx(said[1], rel=1e-6)
