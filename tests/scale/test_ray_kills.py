"""Kills during `features --ray`: whatever dies, the finished store has the bytes of an undisturbed one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import deltaenergy as de
from tests.scale.conftest import content
from tests.scale.ray_kills import prepare, trial

pytest.importorskip("ray", reason="ray is not installed: make test-ray")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def undisturbed(tiny_clip: de.TowerModel, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store that one process made, in shards of two images."""
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    de.build_store(tiny_clip, pictures, store, shard_size=2, batch_size=2)
    return content(store)


@pytest.mark.parametrize(("target", "at"), [("worker", 5), ("driver", 3), ("raylet", 8), ("gcs", 2)])
def test_a_kill_costs_nothing_but_time(
    tiny_clip: de.TowerModel, pictures: Path, undisturbed: dict[str, bytes], tmp_path: Path, target: str, at: int
) -> None:
    trial(target, at, random.Random(at), tiny_clip, pictures, tmp_path / "store", undisturbed)
