"""Kills during `features --ray`: whatever dies, the finished store has the bytes of an undisturbed one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import deltaenergy as de
from tests.cli.runner import Runner
from tests.scale.conftest import content, draw
from tests.scale.ray_kills import run_and_kill

pytest.importorskip("ray", reason="ray is not installed: make test-ray")
IMAGES = 40


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = draw(tmp_path_factory.mktemp("pictures"), IMAGES - 1, 3)
    (folder / "010-damaged.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def undisturbed(tiny_clip: de.TowerModel, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store that one process made, in shards of two images."""
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    de.build_store(tiny_clip, pictures, store, shard_size=2, batch_size=2)
    return content(store)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys)


@pytest.mark.parametrize(("target", "at"), [("worker", 5), ("driver", 3), ("raylet", 8)])
def test_a_kill_costs_nothing_but_time(
    command: Runner,
    pictures: Path,
    undisturbed: dict[str, bytes],
    tiny_clip_folder: Path,
    tmp_path: Path,
    target: str,
    at: int,
) -> None:
    store = tmp_path / "store"
    base = ["features", pictures, "--model", tiny_clip_folder, "--shard-size", 2, "--batch-size", 2, "--out", store]
    rng = random.Random(at)

    def shards() -> int:
        return len(list(store.glob("*.index.parquet")))

    code = run_and_kill(target, shards, at, rng, *base, "--ray", "--workers", 1)
    # A worker is started again; a driver may be done before the kill; actors go on for a while without their raylet.
    assert code in {"worker": (1,), "driver": (-9, 1), "raylet": (1, 2)}[target]
    done = {name: data for name, data in content(store).items() if name[0] != "." and name != "store.json"}
    assert done.items() <= undisturbed.items(), "what is there is right already"
    assert command(*base).code == 1
    assert content(store) == undisturbed
