"""Score a feature store, or a folder of pictures, in Ray Data, and count the verdicts.

    python examples/ray_score.py photos.store detector/ verdicts/
    python examples/ray_score.py photos/ detector/ verdicts/

`deltaenergy score photos.store --detector detector/ --out verdicts.parquet --ray` writes one table, and goes on where
it stopped. This is for pipelines that live in Ray Data anyway: the verdicts are one step among others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray

import deltaenergy as de


def main(images: str, detector: str, out: str) -> None:
    detector, images = str(Path(detector).absolute()), str(Path(images).absolute())
    if (Path(images) / "store.json").is_file():
        data = ray.data.read_parquet(images, include_paths=True)
        given = [detector, images]
    else:
        data = ray.data.read_binary_files(images, include_paths=True)
        given = [detector]
    # Ray Data needs a CPU for reading: an actor that takes half of one leaves it.
    scored = data.map_batches(de.scale.Scorer, fn_constructor_args=given, concurrency=1, num_cpus=0.5)
    scored.write_parquet(out)
    for row in ray.data.read_parquet(out).groupby("verdict").count().take_all():
        print(f"{row['verdict'] or 'could not be read'}: {row['count()']}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
