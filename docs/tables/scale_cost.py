"""What a number of images costs: `python docs/tables/scale_cost.py [CPU milliseconds per image] [cores]`.

Assumptions: each image takes the same time, cores do not slow each other down, and no core waits for images. Only the
time per image was measured; the rest is multiplication.
"""

from __future__ import annotations

import sys

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
    own = float(sys.argv[1]) if len(sys.argv) > 1 else None
    cores = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    steps = {"yours": (own,)} if own is not None else STEPS
    print(f"| model | CPU ms per image | core hours per million | per 10⁹ | days for 10⁹ on {cores} cores | on 1,000 |")
    print("|---|---:|---:|---:|---:|---:|")
    for model, each in steps.items():
        total = sum(each)
        days = [hours(1e9, total) / count / 24 for count in (cores, 1000)]
        numbers = f"{hours(1e6, total):,.1f} | {hours(1e9, total):,.0f} | {days[0]:,.1f} | {days[1]:,.1f}"
        print(f"| {model} | {total:.1f} | {numbers} |")
    print("\n| images | files | features float32 | float16 | indices | shards | manifest | the driver plans |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for images in (1e6, 1e7, 1e8, 1e9):
        sizes = [images * IMAGE_BYTES, images * FEATURE_DIM * 4, images * FEATURE_DIM * 2, images * INDEX_BYTES]
        print(
            f"| {images:,.0f} | "
            + " | ".join(f"{size / 1e9:,.1f} GB" for size in sizes)
            + f" | {images / SHARD:,.0f} | {images / SHARD * SHARD_RECORD_BYTES / 1e6:,.1f} MB"
            + f" | {hours(images, PLAN_MS):,.2f} h |"
        )


if __name__ == "__main__":
    main()
