"""Kill, damage and fuzz what this room reads and writes, and count: `python -m tests.store.campaigns [seed]`.

The tests run the same with fewer trials. An `AssertionError` names the trial that did harm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deltaenergy.data.items import ImageItem
from deltaenergy.errors import ArtifactError
from deltaenergy.scale.build import build_store, repair_store
from deltaenergy.store.shard import is_store
from deltaenergy.store.store import Store
from tests.data.archives import damaged, outcome, picture_bytes, picture_outcome, valid_archive
from tests.data.colour_model import MeanColour
from tests.faults.harness import Fault, Outcome, campaign
from tests.faults.kills import check_said

USERS_FILE = ("store/.mine.part", b"mine")
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "tiff_lzw")


def write_pictures(folder: Path, count: int) -> Path:
    """Small pictures: the second cannot be read, and the last is the first again."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "1.png").write_bytes(b"no picture")
    shutil.copy(folder / "0.png", folder / f"{count - 1}.png")
    return folder


# What there is before a run that is disturbed: nothing; the first shard; all of it, but an image has changed since; the
# first shard of an unfinished plan of other images; all of it, with damaged shards, which are to be repaired.
BEFORE = ("nothing", "some", "changed", "other plan", "damaged")
# The feature of the last image before it is changed.
_RED = np.array([1.0, 0.0, 0.0])


def store_faults(
    workspace: Path, before: str, *, count: int = 3, patches: bool = False, **options: Any
) -> Counter[str]:
    """Every fault at every file operation of a run that fills or repairs a store."""
    pictures = write_pictures(workspace / "pictures", count)
    model: Any = MeanColour()
    paths = sorted(pictures.iterdir())

    def build(folder: Path, images: object = pictures, **more: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build_store(model, images, folder / "store", shard_size=2, patches=patches, **more)

    def act(folder: Path) -> None:
        if before == "damaged":
            repair_store(folder / "store", pictures, model=model)
            return
        build(folder)
        if before == "changed":
            build(folder)  # removes the shard of before, which others may have been reading

    def prepare(folder: Path) -> None:
        if before == "some":
            build(folder, paths[:2])
        elif before == "changed":
            Image.new("RGB", (8, 8), "red").save(paths[-1])
            build(folder)
            shutil.copy(paths[0], paths[-1])
            os.utime(paths[-1], ns=(1, 1))
        elif before == "other plan":
            with contextlib.suppress(KeyboardInterrupt):
                build(folder, [*paths[:2], workspace / "missing.png"], progress=_stop_after_two)
        elif before == "damaged":
            build(folder)
            for name in ("00000-1.arrow", "00001-1.arrow"):
                (folder / "store" / name).write_bytes(b"damaged")
            os.utime(paths[-1], ns=(1, 1))  # its record changes with it
        if before != "nothing":
            (folder / USERS_FILE[0]).write_bytes(USERS_FILE[1])

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_said(fault, outcome)
        if before != "nothing":
            assert (folder / USERS_FILE[0]).read_bytes() == USERS_FILE[1]
        elif not is_store(folder / "store"):
            return
        try:
            store = Store.open(folder / "store")
        except ArtifactError:
            assert before == "damaged"
            assert outcome.ended != "done"
            return
        assert store.verify() == []
        assert before == "nothing" or len(store) >= 2, "what was there stays"
        names = [store.ids[row] for row in store.readable]
        for image, feature in zip(names, store.features(store.readable)):
            possible = [_feature(Path(image)), *([_RED] if before == "changed" and image == str(paths[-1]) else [])]
            assert any(np.allclose(feature, one, atol=1e-6) for one in possible), image
        assert store.complete or outcome.ended != "done"
        if outcome.ended == "done" and before != "other plan":
            assert (len(store), len(store.unreadable)) == (count, 1)

    return campaign(prepare, act, check, workspace / "trials", **options)


def _stop_after_two(done: int, total: int | None) -> None:
    if done >= 2:
        raise KeyboardInterrupt


def _feature(path: Path) -> np.ndarray:
    mean = np.asarray(Image.open(path), np.float64).mean((0, 1))
    return mean / np.linalg.norm(mean)


def damaged_stores(store: Path, rng: np.random.Generator, flips: int, cuts: int) -> Counter[str]:
    """Flip a bit of, or cut, any of a store's files: found when it is opened, or when every byte is read."""
    tried: Counter[str] = Counter()
    files = sorted(store.iterdir())
    for kind in ["bit flipped"] * flips + ["cut"] * cuts:
        path = files[int(rng.integers(0, len(files)))]
        before = path.read_bytes()
        data = bytearray(before)
        place = int(rng.integers(0, len(data)))
        if kind == "cut":
            del data[place:]
        else:
            data[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(data)
        try:
            (problem,) = Store.open(store).verify()
            assert problem.startswith(f"{path.name}: "), (kind, path.name, place)
            tried[f"{kind}: found by verify"] += 1
        except ArtifactError as error:
            assert path.name in str(error), (kind, path.name, place)
            tried[f"{kind}: refused on opening"] += 1
        finally:
            path.write_bytes(before)
    return tried


def damaged_archives(folder: Path, rng: np.random.Generator, count: int) -> Counter[str]:
    """Archives with damaged headers and contents: refused as a whole, or each picture read or refused."""
    return Counter(outcome(damaged(valid_archive(), rng), folder / "t.tar") for _ in range(count))


def damaged_pictures(rng: np.random.Generator, count: int) -> Counter[str]:
    """Pictures of every format with some bytes changed, removed or cut off: read, or refused with a reason."""
    tried: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow has much to say about them
        for i in range(count):
            data = bytearray(picture_bytes(FORMATS[i % len(FORMATS)]))
            for _ in range(int(rng.integers(1, 8))):
                place = int(rng.integers(0, 64 if rng.random() < 0.5 else len(data)))
                data[min(place, len(data) - 1)] ^= int(rng.integers(1, 256))
            if rng.random() < 0.2:
                del data[int(rng.integers(1, len(data))) :]
            tried[picture_outcome(ImageItem(f"picture {i}", bytes(data)))] += 1
    return tried


def main(seed: int) -> None:
    """Run all, more than the tests do."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        print("Faults at every file operation of a run that fills a feature store; the next run ended alike")
        for before in BEFORE:
            _show(f"{before} there before", store_faults(root / before, before, count=5, patches=True))
        print("Damaged feature stores")
        store = root / "store"
        build_store(MeanColour(), write_pictures(root / "pictures", 10), store, shard_size=4, patches=True)
        _show("one file each", damaged_stores(store, rng, 4000, 2000))
        print("Damaged images; each was read, or refused with a reason")
        _show("tar archives", damaged_archives(root, rng, 10_000))
        _show("pictures of nine formats", damaged_pictures(rng, 20_000))


def _show(what: str, tried: Counter[str]) -> None:
    print(f"  {what:26}", ", ".join(f"{kind} {count}" for kind, count in sorted(tried.items())), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
