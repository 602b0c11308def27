"""Score a feature store, or a folder of images, in Ray Data, write the verdicts as they come, and count them.

    python examples/ray_score.py photos.store detector/ verdicts.parquet
    python examples/ray_score.py photos/ detector/ verdicts.parquet

`deltaenergy score photos.store --detector detector/ --out verdicts.parquet --ray local` writes the same table, and can
be resumed. This is for pipelines that run in Ray Data anyway: the verdicts are one step among others.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import ray

import deltaenergy as de


def main(images: str, detector: str, out: str) -> None:
    detector, images = str(Path(detector).absolute()), str(Path(images).absolute())
    if (Path(images) / "store.json").is_file():
        data = de.scale.read_store(images)
    else:
        data = ray.data.read_binary_files(images, include_paths=True)
    # Ray Data needs a CPU for reading: an actor that takes half of one leaves it.
    scored = data.map_batches(de.scale.BatchScorer, fn_constructor_args=[detector], concurrency=1, num_cpus=0.5)
    counts: Counter[str | None] = Counter()
    writer = None
    for batch in scored.iter_batches(batch_format="pyarrow"):
        writer = writer or pq.ParquetWriter(out, batch.schema)
        writer.write_table(batch)
        counts.update(batch["verdict"].to_pylist())
    if writer is not None:
        writer.close()
    for verdict, count in sorted(counts.items(), key=str):
        print(f"{verdict or 'could not be read'}: {count}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
