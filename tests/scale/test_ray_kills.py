"""Kills during `features --ray` and `score --ray`: whatever dies, the result has the bytes of an undisturbed one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import deltaenergy as de
from tests.scale.kills import content
from tests.scale.ray_kills import Filling, Scoring, prepare, trial, verdicts

pytest.importorskip("ray", reason="ray is not installed: make test-ray")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def store(tiny_clip: de.TowerModel, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that one process made, in shards of two images."""
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    de.build_store(tiny_clip, pictures, store, shard_size=2, batch_size=2)
    return store


@pytest.mark.parametrize(("target", "at"), [("worker", 5), ("driver", 3), ("raylet", 8), ("gcs", 2)])
def test_a_kill_costs_nothing_but_time(
    tiny_clip: de.TowerModel, pictures: Path, store: Path, tmp_path: Path, target: str, at: int
) -> None:
    trial(target, at, random.Random(at), Filling(tiny_clip, pictures, tmp_path / "store", content(store)))


def test_killed_while_scoring(tiny_clip: de.TowerModel, store: Path, tmp_path: Path) -> None:
    detector, table = verdicts(tmp_path, tiny_clip, store)
    assert len(table.splitlines()) == 24, "a heading, and 23 pictures that can be read"
    for target, at in (("worker", 4), ("driver", 6), ("gcs", 2)):
        trial(target, at, random.Random(at), Scoring(detector, store, tmp_path / target / "verdicts.csv", table))
