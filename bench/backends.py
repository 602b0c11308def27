"""Images per second of each backend and precision compared with eager torch, in the same run, in turns.

`lite`, and a CLIP with an image tower of true ViT-B/16 shapes and random weights. Batches of random pixels, so that
nothing but the tower is timed; OpenVINO's 8-bit ranges are set on 32 made-up images, on which speed does not depend.
Whether a backend says the same as torch is another question, which `deltaenergy check-model` answers on real images.
What is not installed is left out. Peer: the same model with backend="torch". Time of this process alone (CPU seconds),
with as many threads as torch uses.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.checkpoints import write_clip

ROUNDS, BATCH = 5, 8
VARIANTS = (("torch", "int8"), ("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "int8"))


def made_up(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(32):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        coarse.resize((224, 224), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return folder


def seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def measure(name: str | Path, shown: str, pictures: Path) -> None:
    models: dict[str, TowerModel] = {"torch fp32": de.load_model(name, device="cpu")}
    for backend, precision in VARIANTS:
        options: dict[str, Any] = (
            {"calibration_images": pictures} if backend == "openvino" and precision == "int8" else {}
        )
        began = time.perf_counter()
        try:
            models[f"{backend} {precision}"] = de.load_model(name, backend=backend, precision=precision, **options)
        except InputError as error:
            print(f"{shown}, {backend} {precision}: left out ({error})")
            continue
        print(f"{shown}, {backend} {precision}: loaded in {time.perf_counter() - began:.0f} s", flush=True)
    side = models["torch fp32"].preprocessing.crop
    pixels = torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
    times: dict[str, list[float]] = {key: [] for key in models}
    with torch.inference_mode():
        for model in models.values():
            model.image_features(pixels)  # the first run of a shape also sets it up
        for _ in range(ROUNDS):
            for key, model in models.items():
                times[key].append(seconds(lambda model=model: model.image_features(pixels)) / BATCH)  # type: ignore[misc]
    for key, found in times.items():
        ratios = sorted(torch_time / own for torch_time, own in zip(times["torch fp32"], found))
        rate = 1 / statistics.median(found)
        print(
            f"{shown}, {key}: {1000 * statistics.median(found):.0f} CPU ms per image, {rate:.1f} per CPU second, "
            f"{statistics.median(ratios):.2f}x torch ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DELTAENERGY_CACHE"] = f"{folder}/cache"
        pictures = made_up(Path(folder) / "pictures")
        measure("lite", "lite", pictures)
        clip = write_clip(
            Path(folder) / "vit-b-16", image_size=224, patch_size=16, width=768, layers=12, heads=12, text_width=48,
            projection=512,
        )  # fmt: skip
        measure(clip, "ViT-B/16", pictures)


if __name__ == "__main__":
    main()
