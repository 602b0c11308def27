"""Fill a feature store through Ray Data, and through as many processes of `--workers`: images per second of both.

    python bench/ray_features.py [images, 2000 by default] [workers, 2 by default]

Same machine, same images, same run, in turns; `lite` encodes JPEGs of 500 × 375 pixels. Starting Ray, or the processes,
is part of the time, as it is for a user; a run over few images shows what that is. The stores must have the same bytes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import deltaenergy as de
from encoding import made_up

FEW, ROUNDS = 64, 2


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def main(images: int, workers: int) -> None:
    model = de.load_model("lite")
    with tempfile.TemporaryDirectory() as name:
        paths = made_up(Path(name) / "images", images)
        for count in (FEW, images):
            seconds: dict[str, list[float]] = {"ray": [], "workers": []}
            for turn in range(ROUNDS):
                for way, address in (("ray", "local"), ("workers", None)):
                    store = Path(name) / f"{way}-{count}-{turn}"
                    began = time.perf_counter()
                    de.build_store(model, paths[:count], store, workers=workers, ray=address)
                    seconds[way].append(time.perf_counter() - began)
            first, *others = [contents(Path(name) / f"{way}-{count}-{turn}") for way in seconds for turn in (0, 1)]
            assert all(other == first for other in others), "the bytes differ"
            best = {way: min(found) for way, found in seconds.items()}
            each = ", ".join(f"{way} {best[way]:.1f} s ({count / best[way]:.0f} images/s)" for way in best)
            print(
                f"{count:,} images, {workers} workers: {each}; Ray takes {best['ray'] / best['workers']:.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [2_000, 2][len(given) :]))
