"""`BatchScorer`, `Encoder` and `read_store` inside Ray Data: the verdicts of `deltaenergy score`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.scale import BatchScorer, Encoder, read_store
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


@pytest.mark.parametrize("actors", [1, 2])
def test_a_store(ray: Any, scene: Scene, actors: int) -> None:
    """Also with as many actors as there are CPUs."""
    rows = read_store(scene.store)
    found = rows.map_batches(BatchScorer, fn_constructor_args=[str(scene.detector)], concurrency=actors, batch_size=4)
    assert told(found.take_all()) == expected(scene)


def test_the_rows_of_a_store(ray: Any, scene: Scene) -> None:
    store = de.Store.open(scene.store)
    rows = {row["id"]: row for row in read_store(scene.store).take_all()}
    assert sorted(rows) == sorted(store.ids)
    for row, (name, label) in enumerate(zip(store.ids, store.labels)):
        assert rows[name]["label"] == label
        if rows[name]["error"] is None:
            np.testing.assert_array_equal(rows[name]["features"], store.features([row])[0])
        else:
            assert rows[name]["features"] is None


@pytest.mark.parametrize("form", ["numpy", "pyarrow", "pandas"])
def test_features_in_each_form_of_batches(ray: Any, scene: Scene, tmp_path: Path, form: str) -> None:
    de.Store.open(scene.store).to_parquet(tmp_path / "parquet")
    data = ray.data.read_parquet(str(tmp_path / "parquet"))
    found = data.map_batches(
        BatchScorer, fn_constructor_args=[str(scene.detector)], concurrency=1, batch_size=9, batch_format=form
    )
    assert told(found.take_all()) == expected(scene)


def test_pictures(ray: Any, scene: Scene) -> None:
    pictures = ray.data.read_binary_files(str(scene.images), include_paths=True)
    found = told(pictures.map_batches(BatchScorer, fn_constructor_args=[str(scene.detector)], concurrency=1).take_all())
    for image, said in expected(scene).items():
        label, score, is_ood, error = found[image]
        assert (label, is_ood, error) == (said[0], said[2], said[3])
        assert score is None or score == pytest.approx(said[1], rel=1e-6)


def test_images_are_encoded_and_then_scored(ray: Any, scene: Scene, tiny_clip_folder: Path) -> None:
    """The steps of a pipeline of one's own, on two CPUs."""
    encoded = ray.data.read_binary_files(str(scene.images), include_paths=True).map_batches(
        Encoder, fn_constructor_args=[str(tiny_clip_folder)], concurrency=1, num_cpus=0.5, batch_size=8
    )
    scored = encoded.map_batches(BatchScorer, fn_constructor_args=[str(scene.detector)], concurrency=1, num_cpus=0.5)
    found = told(scored.take_all())
    for image, (label, score, is_ood, error) in expected(scene).items():
        assert (found[image][0], found[image][2], found[image][3]) == (label, is_ood, error)
        assert score is None or found[image][1] == pytest.approx(score, rel=1e-6)
