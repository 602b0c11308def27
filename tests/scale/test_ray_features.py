"""`features --ray`: the finished store has the bytes that one process makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from deltaenergy.scale.ray import ShardActor
from tests.cli.runner import Runner
from tests.scale.conftest import Scene, draw
from tests.scale.kills import content
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
    assert "only 2 CPUs" in command(*base, "--out", tmp_path / "other", "--ray", "local", "--workers", 3).err


def test_images_in_memory_cannot_be_handed_out(tiny_clip: de.TowerModel, pictures: Path, tmp_path: Path) -> None:
    from PIL import Image

    with pytest.raises(de.errors.InputError, match="'image 0'"):
        de.build_store(tiny_clip, [Image.open(pictures / "000.png")], tmp_path / "store", ray="local")


def test_a_device_that_ray_does_not_hand_out(
    ray: Any, tiny_clip: de.TowerModel, pictures: Path, tmp_path: Path
) -> None:
    with pytest.raises(de.errors.InputError, match="auto, cpu or cuda"):
        de.build_store(tiny_clip, pictures, tmp_path / "store", ray="local", device="cuda:1")


def test_an_actor_says_what_is_wrong(scene: Scene, tmp_path: Path) -> None:
    settings = {"model": {"name": "lite"}}
    answer = ShardActor({**settings, "store": str(tmp_path)}, "cpu")({"shard": 0})
    assert answer["kind"] == "ArtifactError" and str(tmp_path) in answer["error"]
    finished = ShardActor({**settings, "store": str(scene.store)}, "cpu")({"shard": 0})
    assert finished == {"shard": 0, "error": None, "kind": None}, "without a plan, another run has finished it"
