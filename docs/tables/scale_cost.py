"""What a number of images costs: `python docs/tables/scale_cost.py [CPU milliseconds per image] [cores]`.

Assumptions: each image takes the same time, cores do not slow each other down, and no core waits for images. Only the
time per image was measured; the rest is multiplication.
"""

from __future__ import annotations

import argparse

from output import print_table

# CPU milliseconds per image: read and hash, decode, resize, encode, write (bench/encoding.py, upper ends), plan and
# commit (bench/plan_traffic.py).
STEPS = {
    "`lite`, torch fp32": (0.2, 1.6, 2.9, 29, 0.2, 0.1),
    "`lite`, OpenVINO int8": (0.2, 1.4, 2.8, 9.2, 0.3, 0.1),
    "ViT-B/16, torch int8": (0.2, 1.5, 2.9, 304, 0.02, 0.1),
    "ViT-B/16, torch fp32": (0.2, 1.9, 3.4, 498, 0.3, 0.1),
}
PLAN_MS = 0.02  # in the driver, the only part that is not distributed
IMAGE_BYTES, FEATURE_DIM, INDEX_BYTES = 88_000, 512, 100
SHARD, SHARD_RECORD_BYTES = 1_024, 350


def hours(images: float, milliseconds: float) -> float:
    """Core hours."""
    return images * milliseconds / 3.6e6


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("milliseconds", type=float, nargs="?", help="CPU milliseconds per image")
    parser.add_argument("cores", type=int, nargs="?", default=64)
    given = parser.parse_args()
    steps = STEPS if given.milliseconds is None else {"yours": (given.milliseconds,)}
    rows = []
    for model, each in steps.items():
        total = sum(each)
        days = [hours(1e9, total) / count / 24 for count in (given.cores, 1000)]
        numbers = zip((hours(1e6, total), hours(1e9, total), *days), (1, 0, 1, 1))
        rows.append([model, f"{total:.1f}", *(f"{number:,.{digits}f}" for number, digits in numbers)])
    columns = ["model", "CPU ms per image", "core hours per million", "per 10⁹", f"days for 10⁹ on {given.cores} cores"]
    print_table("cost", [*columns, "on 1,000"], rows, None)
    print()
    rows = []
    for images in (1e6, 1e7, 1e8, 1e9):
        sizes = [images * IMAGE_BYTES, images * FEATURE_DIM * 4, images * FEATURE_DIM * 2, images * INDEX_BYTES]
        rows.append([f"{images:,.0f}", *(f"{size / 1e9:,.1f} GB" for size in sizes), f"{images / SHARD:,.0f}"])
        rows[-1] += [f"{images / SHARD * SHARD_RECORD_BYTES / 1e6:,.1f} MB", f"{hours(images, PLAN_MS):,.2f} h"]
    columns = ["images", "files", "features float32", "float16", "indices", "shards", "manifest", "the driver plans"]
    print_table("sizes", columns, rows, None)


if __name__ == "__main__":
    main()
