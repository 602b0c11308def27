"""Images per second from JPEG files to features, compared with an eager loop fed by a PyTorch DataLoader, in turns.

    python bench/encoding.py [--model vit-b-16|lite] [--backend openvino] [--precision int8] [--images N] [--rounds N]

`vit-b-16` is a CLIP with an image tower of true ViT-B/16 shapes and random weights, written to disk as a checkpoint.
Its peer is transformers' own `CLIPModel.get_image_features` with its image processor (in Pillow form, the one that
needs no torchvision). The peer of `lite`, which transformers does not have, is the same tower in the same loop. The
DataLoader gets 0, 1 and 2 workers, and what was fastest of these counts. Both sides read the same 500 × 375 JPEGs, as
large as ImageNet's, which are made here, in batches of 32.

Goals: ≥ 1.0 times the peer's images per second in fp32, ≥ 2.5 times in int8, and a tower that is busy ≥ 95% of the
time: Σ seconds of each batch in the tower / (seconds of the run × batches side by side). Beside it the CPU milliseconds
of an image in each step: read (twice, as a feature store does, and hashed), decode, resize (crop and normalise, too),
tower, write (to a feature store, synced).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import deltaenergy as de
from deltaenergy.data.decode import open_image
from deltaenergy.data.items import ImageItem, hash_content
from deltaenergy.models.base import TowerModel
from deltaenergy.store.folder import LocalFolder
from random_store import random_shard

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.checkpoints import write_clip

BATCH, WIDTH, HEIGHT = 32, 500, 375
PEER_WORKERS = (0, 1, 2)
SHAPES = {"image_size": 224, "patch_size": 16, "width": 768, "layers": 12, "heads": 12, "projection": 512}


def made_up(folder: Path, count: int) -> list[Path]:
    """JPEGs with detail at several scales, so that a file is about as large as a photograph's."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        total = np.zeros((HEIGHT, WIDTH, 3), np.float32)
        for side, weight in ((5, 0.5), (30, 0.3), (240, 0.3)):
            noise = Image.fromarray(rng.integers(0, 256, (side * 3 // 4, side, 3), dtype=np.uint8))
            total += weight * np.asarray(noise.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
        Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(folder / f"{i:04}.jpg", quality=92)
    return sorted(folder.iterdir())


class Files(Dataset[torch.Tensor]):
    """Files as the peer's tower takes them."""

    def __init__(self, paths: Sequence[Path], prepare: Callable[[Image.Image], torch.Tensor]) -> None:
        self.paths, self.prepare = paths, prepare

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return self.prepare(image.convert("RGB"))


@dataclass
class Peer:
    """An eager loop over a DataLoader."""

    prepare: Callable[[Image.Image], torch.Tensor]
    tower: Callable[[torch.Tensor], torch.Tensor]
    workers: int = 0

    def encode(self, paths: Sequence[Path]) -> np.ndarray:
        """Unit features."""
        loader = DataLoader(Files(paths, self.prepare), BATCH, num_workers=self.workers)
        with torch.inference_mode():
            found = torch.cat([self.tower(pixels) for pixels in loader])
        return torch.nn.functional.normalize(found, dim=1).numpy()


def transformers_peer(folder: Path) -> Peer:
    from transformers import CLIPImageProcessorPil, CLIPModel

    processor, module = CLIPImageProcessorPil.from_pretrained(folder), CLIPModel.from_pretrained(folder).eval()

    def prepare(image: Image.Image) -> torch.Tensor:
        return processor(images=image, return_tensors="pt")["pixel_values"][0]

    def tower(pixels: torch.Tensor) -> torch.Tensor:
        found = module.get_image_features(pixel_values=pixels)
        return found if isinstance(found, torch.Tensor) else found.pooler_output

    return Peer(prepare, tower)


def same_tower(model: TowerModel) -> Peer:
    return Peer(lambda image: torch.from_numpy(model.preprocessing(image)), model.image_features)


@dataclass
class Watched:
    """A model whose time in the tower is noted, batch by batch."""

    model: TowerModel
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        run: Any = self.model.image_features

        def image_features(pixels: torch.Tensor) -> torch.Tensor:
            wall, cpu = time.perf_counter(), time.thread_time()
            found: torch.Tensor = run(pixels)
            self.seconds.append(time.perf_counter() - wall)
            self.cpu_seconds.append(time.thread_time() - cpu)
            return found

        self.model.image_features = image_features  # type: ignore[method-assign]

    def encode(self, paths: Sequence[Path]) -> tuple[np.ndarray, float, float]:
        """Features, seconds, and the part of them that the tower was busy."""
        self.seconds.clear(), self.cpu_seconds.clear()
        began = time.perf_counter()
        features = self.model.encode(list(paths), batch_size=BATCH).features
        wall = time.perf_counter() - began
        beside = min(torch.get_num_threads(), len(self.seconds)) if self.model.runs_side_by_side else 1
        return features, wall, sum(self.seconds) / (wall * beside)

    def tower_cpu(self, pixels: torch.Tensor) -> float:
        """CPU seconds of an image in the tower: of the last run, or where others compute for a thread, of one batch."""
        if self.model.runs_side_by_side and self.model.backend == "torch":
            return sum(self.cpu_seconds) / self.images
        return cpu(lambda: self.model.image_features(pixels)) / len(pixels)

    images: int = 0


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def split(watched: Watched, paths: Sequence[Path], folder: Path) -> dict[str, float]:
    """CPU milliseconds of an image in each step, alone in this thread but for the tower."""
    model, paths = watched.model, paths[:BATCH]
    contents = [path.read_bytes() for path in paths]
    pictures = [open_image(content) for content in contents]
    rows = np.random.default_rng(0).standard_normal((1024, model.feature_dim), dtype=np.float32)
    store = LocalFolder(folder / "store")

    def write() -> None:
        record, data = random_shard(store, 0, 0, rows)
        store.put(record.name, data)

    pixels = torch.from_numpy(np.stack([model.preprocessing(picture) for picture in pictures]))

    def read() -> None:
        for path in paths:
            path.read_bytes()
            hash_content(ImageItem(str(path), path))

    with torch.inference_mode():
        tower = watched.tower_cpu(pixels)
    found = {
        "read": cpu(read) / len(paths),
        "decode": cpu(lambda: [open_image(content) for content in contents]) / len(paths),
        "resize": cpu(lambda: [model.preprocessing(picture) for picture in pictures]) / len(paths),
        "tower": tower,
        "write": cpu(write) / len(rows),
    }
    return {name: 1000 * seconds for name, seconds in found.items()}


def measure(watched: Watched, peer: Peer, paths: list[Path], rounds: int, shown: str, goal: str, folder: Path) -> None:
    def peer_seconds(some: Sequence[Path]) -> tuple[np.ndarray, float]:
        began = time.perf_counter()
        return peer.encode(some), time.perf_counter() - began

    some = paths[: len(paths) // 2]
    watched.encode(some)
    trials = {}
    for peer.workers in PEER_WORKERS:
        trials[peer.workers] = len(some) / peer_seconds(some)[1]
    peer.workers = max(trials, key=lambda workers: trials[workers])
    each = ", ".join(f"{rate:.2f} with {workers}" for workers, rate in trials.items())
    print(f"{shown}: the peer's images per second by workers: {each}", flush=True)
    ratios, ours, theirs, busy, splits = [], [], [], [], []
    watched.images = len(paths)
    for _ in range(rounds):
        features, wall, part = watched.encode(paths)
        splits.append(split(watched, paths, folder))
        others, peer_wall = peer_seconds(paths)
        if watched.model.precision == "fp32":
            assert np.abs(features - others).max() < 1e-4, "both sides compute the same"
        ratios.append(peer_wall / wall)
        ours.append(len(paths) / wall)
        theirs.append(len(paths) / peer_wall)
        busy.append(part)
    print(
        f"{shown}: {statistics.median(ratios):.2f}x the peer ({min(ratios):.2f} to {max(ratios):.2f}; goal ≥ {goal}); "
        f"{statistics.median(ours):.2f} images per second ({min(ours):.2f} to {max(ours):.2f}), the peer "
        f"{statistics.median(theirs):.2f} ({min(theirs):.2f} to {max(theirs):.2f}) with {peer.workers} worker(s)"
    )
    print(f"{shown}: tower busy {min(busy):.1%} to {max(busy):.1%} of the time (goal ≥ 95%)")
    steps = (f"{name} {statistics.median(one[name] for one in splits):.2f}" for name in splits[0])
    print(f"{shown}: CPU ms per image: {', '.join(steps)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("vit-b-16", "lite"), default="vit-b-16")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--images", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["DELTAENERGY_CACHE"] = f"{folder}/cache"
        paths = made_up(folder / "pictures", given.images or (512 if given.model == "lite" else 128))
        kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
        options: dict[str, Any] = {}
        if (given.backend, given.precision) == ("openvino", "int8"):
            options["calibration_images"] = paths
        clip = folder / "vit-b-16"
        if given.model == "vit-b-16":
            write_clip(clip, text_width=48, **SHAPES)
        place = "lite" if given.model == "lite" else clip
        model = de.load_model(place, device="cpu", backend=given.backend, precision=given.precision, **options)
        peer = same_tower(de.load_model("lite", device="cpu")) if given.model == "lite" else transformers_peer(clip)
        shown = f"{given.model}, {given.backend} {given.precision}"
        print(f"{len(paths)} JPEGs of {kilobytes:.0f} kB; {torch.get_num_threads()} cores")
        goal = "2.5" if given.precision == "int8" else "1.0"
        measure(Watched(model), peer, paths, given.rounds, shown, goal, folder / "store")


if __name__ == "__main__":
    main()
