"""A store whose making is killed at any moment, and gone on with, ends with the same bytes as one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deltaenergy.store.store import Store
from tests.store.shards import contents

# A model that needs no torch, so that a process starts quickly: the feature is the picture's mean colour.
PROGRAM = """
import os, signal, sys, time
from types import SimpleNamespace
import numpy as np
from deltaenergy.data.items import load_rgb
from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.items import Unreadable
from deltaenergy.scale.build import build_store

class MeanColour:
    feature_dim = 3
    def describe(self):
        return {"name": "mean-colour", "fingerprint": "1"}
    def encode(self, images, *, patches, batch_size, progress):
        features, items, unreadable = [], [], []
        for item in images:
            time.sleep(0.002)
            try:
                mean = np.asarray(load_rgb(item), np.float32).mean((0, 1))
            except UnreadableImage as error:
                unreadable.append(Unreadable(item.id, str(error)))
            else:
                features.append(mean / np.linalg.norm(mean))
                items.append(item)
        array = np.array(features, np.float32).reshape(-1, 3)
        return SimpleNamespace(features=array, items=items, unreadable=unreadable, patches=array[:, None])

def main(photos, out, kill_at):
    seen = 0
    def count(event, arguments):
        nonlocal seen
        if event in {"open", "os.rename", "os.remove", "os.chmod"} and str(arguments[0]).startswith(out):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    if kill_at:
        sys.addaudithook(count)
    print("begun", flush=True)
    build_store(MeanColour(), photos, out, shard_size=4, patches=True)

main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(3)
    for i in range(30):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i:02d}.png")
    (folder / "13.png").write_bytes(b"no picture")
    (folder / "25.png").write_bytes((folder / "02.png").read_bytes())
    return folder


def start(pictures: Path, out: Path, kill_at: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(pictures), str(out), str(kill_at)], stdout=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def uninterrupted(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stores") / "whole"
    with start(pictures, out) as process:
        assert process.wait(300) == 0
    return out


def check(out: Path, uninterrupted: Path) -> None:
    assert contents(out) == contents(uninterrupted)
    store = Store.open(out)
    assert len(store) == len(set(store.ids)) == 30
    assert len(store.unreadable) == 1
    assert store.verify() == []
    np.testing.assert_array_equal(store.features([2]), store.features([25]))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this platform")
def test_killed_at_every_kind_of_file_operation(pictures: Path, uninterrupted: Path, tmp_path: Path) -> None:
    choose = random.Random(5)
    kills = 0
    out = tmp_path / "store"
    while True:
        # First at each of the operations that begin a store. A run that goes on opens its old shards before it does
        # anything new, so later runs get further before they are killed.
        kill_at = kills + 1 if kills < 6 else choose.randint(8, 30 + 10 * kills)
        with start(pictures, out, kill_at) as process:
            if process.wait(300) == 0:
                break
            assert process.returncode == -signal.SIGKILL
            kills += 1
    assert kills >= 8
    check(out, uninterrupted)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this platform")
def test_killed_at_random_times(pictures: Path, uninterrupted: Path, tmp_path: Path) -> None:
    choose = random.Random(11)
    out = tmp_path / "store"
    for _ in range(5):
        with start(pictures, out) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(choose.uniform(0, 0.08))
            os.kill(process.pid, signal.SIGKILL)
    with start(pictures, out) as process:
        assert process.wait(300) == 0
    check(out, uninterrupted)
