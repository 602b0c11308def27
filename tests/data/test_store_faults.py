"""A store whose making is killed, or meets a full disk, at each of its file operations: nothing lost, nothing wrong."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deltaenergy.data.inputs import load_images
from deltaenergy.data.manifest import is_store
from deltaenergy.data.store import FeatureStore
from deltaenergy.data.store_writer import build_store
from tests.data.colour_model import MeanColour
from tests.faults.harness import Fault, Outcome, campaign
from tests.faults.kills import check_said

pytestmark = pytest.mark.filterwarnings("ignore")
USERS_FILE = ("store/.mine.part", b"mine")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(3)
    for i in range(5):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "2.png").write_bytes(b"no picture")
    shutil.copy(folder / "0.png", folder / "4.png")
    return folder


def fill(pictures: Path, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build_store(MeanColour(), pictures, folder / "store", shard_size=2, patches=True)


def run(pictures: Path, prepared: Path | None, workspace: Path, least_rows: int) -> Counter[str]:
    """Every fault at every operation that fills a store; `prepared` is what is there before."""
    expected = {
        item.id: MeanColour().encode([item], patches=False, batch_size=1, progress=None)
        for item in load_images(pictures)
    }

    def prepare(folder: Path) -> None:
        if prepared is not None:
            shutil.copytree(prepared, folder / "store")
            (folder / USERS_FILE[0]).write_bytes(USERS_FILE[1])

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_said(fault, outcome)
        if prepared is not None:
            assert (folder / USERS_FILE[0]).read_bytes() == USERS_FILE[1]
        if not is_store(folder / "store"):
            assert prepared is None
            return
        store = FeatureStore.open(folder / "store")
        assert store.verify() == []
        assert len(store) >= least_rows
        for image, row in zip(store.ids, store.features):
            np.testing.assert_allclose(row, expected[image].features[0], atol=1e-6)
        if outcome.ended == "done":
            assert store.complete
        if store.complete and prepared is None:
            assert (len(store), len(store.unreadable)) == (4, 1)

    return campaign(prepare, lambda folder: fill(pictures, folder), check, workspace)


def test_a_new_store(pictures: Path, tmp_path: Path) -> None:
    tried = run(pictures, None, tmp_path, least_rows=0)
    assert tried.total() > 200, tried


def test_a_store_that_is_gone_on_with(pictures: Path, tmp_path: Path) -> None:
    some = [pictures / f"{i}.png" for i in range(2)]
    build_store(MeanColour(), some, tmp_path / "some", shard_size=2, patches=True)
    tried = run(pictures, tmp_path / "some", tmp_path / "trials", least_rows=2)
    assert tried.total() > 100, tried


def test_a_store_that_is_repaired(pictures: Path, tmp_path: Path) -> None:
    build_store(MeanColour(), pictures, tmp_path / "whole", shard_size=2, patches=True)
    (tmp_path / "whole" / "00000.index.parquet").write_bytes(b"damaged")
    (tmp_path / "whole" / "00001.features.npy").write_bytes(b"damaged")

    def sound(folder: Path) -> None:
        shutil.copytree(tmp_path / "whole", folder / "store")

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_said(fault, outcome)

    tried = campaign(sound, lambda folder: fill(pictures, folder), check, tmp_path / "trials")
    assert tried.total() > 100, tried
