"""Fixtures that many tests share."""

from __future__ import annotations

import copy
import functools
import gc
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from hypothesis import settings

from tests.checkpoints import write_clip
from tests.labelled_pictures import CLASSES, write_pictures

if TYPE_CHECKING:
    from deltaenergy import Model
    from deltaenergy.tuning.prepare import TrainSet

# How long an example takes says nothing about the code on a machine that does other things too.
settings.register_profile("campaign", deadline=None)
settings.register_profile("sample", deadline=None, max_examples=40)
settings.load_profile("sample")

# The commands and their options are made once, not for each call.
typer.main.get_command = functools.cache(typer.main.get_command)

_COLLECT = gc.get_threshold()


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """The garbage collector runs as often as at first: a command makes it run less."""
    gc.set_threshold(*_COLLECT)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real pictures and CLIP features; tests that use it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DELTAENERGY_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip("set DELTAENERGY_TEST_DATA to the folder with real pictures to run this test")
    return folder


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_the_disk() -> Iterator[None]:
    """What tests write need not survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_lite() -> Iterator[None]:
    """Tests share the weights of the bundled model, 80 MB; each load gives an object of its own."""
    from deltaenergy.models.lite import model

    load, folder = model.load_lite, model.FOLDER
    once = functools.cache(load)

    @functools.wraps(load)
    def load_once(device: Any, dtype: Any) -> Any:
        if folder != model.FOLDER:
            return load(device, dtype)
        model._say_what_it_is()
        return copy.copy(once(device, dtype))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "load_lite", load_once)
        yield


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the test's own, so that no test reads or writes the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("DELTAENERGY_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores mine every 2,000th word of WordNet: all 70,000 would take minutes for each class list."""
    from deltaenergy.scores.negatives.pools import Pool, wordnet_pool

    def some_words(exclude: Iterable[str]) -> Pool:
        pool = wordnet_pool(exclude)
        return Pool(pool.nouns[::2000], pool.adjectives[::2000])

    monkeypatch.setattr("deltaenergy.scores.negatives.mining.wordnet_pool", some_words)


@pytest.fixture(scope="session")
def tiny_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CLIP checkpoint (random weights) in transformers format."""
    return write_clip(tmp_path_factory.mktemp("checkpoints") / "tiny-clip")


@pytest.fixture(scope="session")
def tiny_clip(tiny_clip_folder: Path) -> Model:
    """The tiny CLIP, loaded. Session-wide: do not change it."""
    from deltaenergy import load_model

    return load_model(tiny_clip_folder)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of eight small pictures in two class folders, `dog` and `cat`."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture(scope="session")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six pictures of each of three classes."""
    return write_pictures(tmp_path_factory.mktemp("coloured") / "train")


@pytest.fixture(scope="session")
def train_set(tiny_clip: Model, coloured: Path) -> TrainSet:
    """Four shots per class with three views, with all that a method may look at."""
    from deltaenergy.core.needs import Need
    from deltaenergy.tuning.prepare import prepare_training

    needs = frozenset({Need.PATCHES, Need.STATES, Need.PIXELS})
    return prepare_training(tiny_clip, CLASSES, coloured, shots=4, seed=1, views=3, needs=needs)
