"""`features --ray`: the finished store has the bytes that one process makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from deltaenergy.scale import RayActors
from deltaenergy.scale.ray_features import ShardActor
from tests.cli.runner import Runner
from tests.scale.conftest import content, draw
from tests.scale.ray_here import own_ray

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


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with own_ray() as started:
        yield started


def test_the_bytes_are_those_of_one_process(
    ray: Any, command: Runner, pictures: Path, undisturbed: dict[str, bytes], tiny_clip_folder: Path, tmp_path: Path
) -> None:
    base = ["features", pictures, "--model", tiny_clip_folder, "--shard-size", 2, "--on", "batch=2"]
    result = command(*base, "--out", tmp_path / "store", "--ray", "local")
    assert result.code == 1 and "010-damaged.png" in result.err
    assert content(tmp_path / "store") == undisturbed
    again = command(*base, "--out", tmp_path / "store", "--ray", "local", "--workers", 1)
    assert again.code == 1 and content(tmp_path / "store") == undisturbed
    assert "this Ray has 2 CPU(s)" in command(*base, "--out", tmp_path / "other", "--ray", "local", "--workers", 3).err


def test_pictures_in_memory_cannot_be_handed_out(tiny_clip: de.TowerModel, pictures: Path, tmp_path: Path) -> None:
    from PIL import Image

    with pytest.raises(de.errors.InputError, match="other processes"):
        de.build_store(tiny_clip, [Image.open(pictures / "000.png")], tmp_path / "store", fill=RayActors())
    with pytest.raises(de.errors.InputError, match="give auto, cpu or cuda"):
        RayActors(device="cuda:1")


def test_an_actor_says_what_is_wrong(tmp_path: Path) -> None:
    settings = {"store": str(tmp_path), "digest": "", "model": {"name": "lite"}, "device": "cpu", "batch_size": 2}
    actor = ShardActor({**settings, "threads": None})
    assert actor.prepare() is None and actor.work(0) is None, "without a plan, another run has finished it"
