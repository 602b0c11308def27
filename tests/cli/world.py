"""A user's folder that hostile calls are made in, and a look at whether they changed it."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

import numpy as np
from PIL import Image

import deltaenergy as de
from deltaenergy import Detector, Model, ZeroShotClassifier
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.detector.saved import RECORD
from deltaenergy.files.artifact import read_bound, write_bound
from tests.benchmarks.small import TEXT, small_spec

World = dict[str, Path]


def make_world(root: Path, model: Model, model_folder: Path) -> World:
    """Images of two classes, others, a table of pairs, a benchmark and its results, a detector; by name."""
    for folder in ("images/cat", "images/dog", "others"):
        write_images(root / folder, ["0.png", "1.png", "2.png"])
    names = [f"{label}/{i}.png,a {label} {i}" for label in ("cat", "dog") for i in range(3)]
    (root / "images" / "pairs.csv").write_text("path,text\n" + "\n".join(names), encoding="utf-8")
    (root / "spec.yaml").write_text(TEXT.replace("methods: [msp, delta-energy]", "methods: [msp]"), encoding="utf-8")
    (root / "empty.jpg").touch()
    classifier = ZeroShotClassifier(model, ["cat", "dog"])
    Detector(classifier, "mcm").calibrate(root / "images").save(root / "detector")
    de.sort(de.score(root / "others", root / "detector"), root / "sorted", "link")
    de.build_store(model, root / "images", root / "store")
    save_tampered(classifier, root)
    if hasattr(os, "mkfifo"):
        os.mkfifo(root / "pipe")  # whoever opens it waits for a writer
    (root / "words.txt").write_text("hut\nmoss\nink\nquilt\n", encoding="utf-8")
    run_benchmark(small_spec(), model, DataRoot(), root / "results", methods=["msp"], seeds=[1])
    return {
        **{name: root / name for name in ("images", "others", "detector", "results")},
        "root": root,
        "model": model_folder,
        "empty": root / "empty.jpg",
        "pairs": root / "images" / "pairs.csv",
        "spec": root / "spec.yaml",
        "pipe": root / "pipe",
        "sorted": root / "sorted",
        "store": root / "store",
        "tampered": root / "tampered",
        "words": root / "words.txt",
    }


def save_tampered(classifier: ZeroShotClassifier, root: Path) -> None:
    """A detector that learned infinity, in files that fit together."""
    Detector(classifier, "react").calibrate(root / "images").save(root / "tampered")
    record, tensors = read_bound(root / "tampered", RECORD)
    bounds = {key: tensor + math.inf for key, tensor in tensors.items() if key.endswith("bound")}
    write_bound(root / "tampered", RECORD, record, {**tensors, **bounds})


def write_images(folder: Path, names: list[str]) -> Path:
    """Small noise under these names."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(names))
    for name in names:
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(folder / name, format="PNG")
    return folder


def content(world: World) -> dict[Path, tuple[int, str]]:
    """Time and hash of every file in the user's folder and the model's."""
    files = [path for place in (world["root"], world["model"]) for path in sorted(place.rglob("*")) if path.is_file()]
    return {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}
