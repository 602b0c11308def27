"""Every command that takes images meets the same folder of problems: all are listed, the rest is done, exit code 1."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaenergy.store.store import Store
from tests.cli.runner import Runner
from tests.data.hostile import PROBLEMS, hostile
from tests.labelled_pictures import write_pictures

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this platform")

CLASSES = "cat,dog"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    show = warnings.showwarning
    yield Runner(capsys)
    warnings.showwarning = show


@pytest.fixture
def problems(photos: Path) -> Iterator[Path]:
    with hostile(photos):
        yield photos


def check_listed(text: str) -> None:
    plain = " ".join(text.split())
    for name, part in PROBLEMS.items():
        assert name in plain, name
        assert part in plain, name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["score", "features", "calibrate", "evaluate", "choose", "tune"])
def test_listed_and_skipped(command: Runner, problems: Path, tiny_clip_folder: Path, tmp_path: Path, name: str) -> None:
    model = ["--model", tiny_clip_folder]
    out = tmp_path / "out"
    arguments = {
        "score": [problems, "--classes", CLASSES, *model],
        "features": [problems, "--out", out, *model],
        "calibrate": [problems, "--classes", CLASSES, "--out", out, *model],
        "evaluate": ["--id", problems, "--open", write_pictures(tmp_path / "open"), "--classes", CLASSES, *model],
        "choose": ["--id", problems, "--classes", CLASSES, "--score", "mcm,energy", *model],
        "tune": ["--train", problems, "--shots", 4, "--out", out, "--recipe", "epochs=1,views=1", *model],
    }[name]
    done = command(name, *arguments)
    assert done.code == 1, done.err
    check_listed(done.err)
    if name == "features":
        assert len(Store.open(out).readable) == 8
        # Nothing changed: the second run finds the same problems, and encodes nothing.
        again = command(name, *arguments)
        assert again.code == 1
        check_listed(again.err)
        from_store = command("score", out, "--classes", CLASSES, *model)
        assert from_store.code == 1
        check_listed(from_store.err)


@pytest.mark.parametrize("name", ["score", "features"])
def test_a_pipe_and_a_device_named_by_hand(
    command: Runner, problems: Path, tiny_clip_folder: Path, tmp_path: Path, name: str
) -> None:
    images = [problems / image for image in ("cat/pipe.png", "dog/zero.png", "dog/0.png", "cat/notes")]
    more = ["--out", tmp_path / "out"] if name == "features" else ["--classes", CLASSES]
    done = command(name, *images, *more, "--model", tiny_clip_folder)
    assert done.code == 1, done.err
    assert "Skipped 3 unreadable images" in " ".join(done.err.split())


def test_a_folder_that_was_locked_is_done_when_it_is_open(
    command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    hidden, folder = tmp_path / "elsewhere", photos / "cat"
    folder.rename(hidden)
    folder.symlink_to("nowhere")
    arguments = ["features", photos, "--out", tmp_path / "out", "--model", tiny_clip_folder]
    done = command(*arguments)
    assert (done.code, len(Store.open(tmp_path / "out").readable)) == (1, 4)
    folder.unlink()
    hidden.rename(folder)
    done = command(*arguments)
    assert (done.code, len(Store.open(tmp_path / "out"))) == (0, 8), done.err
    assert Store.open(tmp_path / "out").unreadable == []
    assert command(*arguments).code == 0


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "~nobody-of-this-name/x"])
def test_impossible_names(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path, name: str) -> None:
    model = ["--model", tiny_clip_folder]
    assert command("score", name, "--classes", CLASSES, *model).code == 2
    assert command("features", name, "--out", tmp_path / "out", *model).code == 2
    assert command("verify", name).code == 2
    # A NUL cannot come from a shell: it is refused before any command looks at it.
    assert command("features", name, photos, "--out", tmp_path / "out", *model).code == (2 if "\0" in name else 1)
    if not name.startswith("~"):
        assert command("features", photos, "--out", tmp_path / name, *model).code == 2


def test_verify(command: Runner, photos: Path, tiny_clip_folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert command("features", photos, "--out", store, "--model", tiny_clip_folder, "--shard-size", 3).code == 0
    done = command("verify", store)
    assert done.code == 0
    assert "8 images, every byte as it was written" in " ".join(done.out.split())
    assert command("verify", store, "--json").json == [{"store": str(store), "images": 8}]
    shard = Store.open(store).manifest.shards[1]
    data = bytearray((store / shard.name).read_bytes())
    data[shard.start] ^= 1
    (store / shard.name).write_bytes(data)
    done = command("verify", store)
    assert done.code == 2
    assert shard.name in done.err
    repaired = command("verify", store, "--repair", photos)
    assert repaired.code == 0
    assert shard.name in repaired.err
    assert command("verify", store).code == 0
    assert "--out" in command("features", photos).err
