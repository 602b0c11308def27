"""What a number of images costs: `python docs/tables/scale_cost.py [CPU milliseconds an image] [cores]`.

A model in a few lines, with its assumptions: each image takes the same time, cores do not slow each other down, and a
core that fetches pictures waits for none. What was measured is the time of an image; the rest is multiplication.
"""

from __future__ import annotations

import sys

# CPU milliseconds an image: read and hash, decode, resize, tower, write (bench/encoding.py, upper ends), plan and
# commit (bench/plan_traffic.py).
STEPS = {
    "`lite`, torch fp32": (0.2, 1.6, 2.9, 29, 0.2, 0.1),
    "`lite`, OpenVINO int8": (0.2, 1.4, 2.8, 9.2, 0.3, 0.1),
    "ViT-B/16, torch int8": (0.2, 1.5, 2.9, 304, 0.02, 0.1),
    "ViT-B/16, torch fp32": (0.2, 1.9, 3.4, 498, 0.3, 0.1),
}
PLAN_MS = 0.045  # of the driver alone, the one part that is not shared out
PICTURE_BYTES, FEATURE_DIM, INDEX_BYTES, SHARD_RECORD_BYTES = 88_000, 512, 100, 700


def shards(images: float) -> float:
    """As `usual_shard_size` chooses."""
    size = 1024
    while images > size * 100_000:
        size *= 2
    return images / size


def hours(images: float, milliseconds: float) -> float:
    """Core hours."""
    return images * milliseconds / 3.6e6


def main() -> None:
    """Print both tables."""
    own = float(sys.argv[1]) if len(sys.argv) > 1 else None
    cores = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    steps = {"yours": (own,)} if own is not None else STEPS
    print(f"| tower | CPU ms an image | core hours per million | per 10⁹ | days for 10⁹ on {cores} cores | on 1,000 |")
    print("|---|---:|---:|---:|---:|---:|")
    for tower, each in steps.items():
        total = sum(each)
        days = [hours(1e9, total) / count / 24 for count in (cores, 1000)]
        numbers = f"{hours(1e6, total):,.1f} | {hours(1e9, total):,.0f} | {days[0]:,.1f} | {days[1]:,.1f}"
        print(f"| {tower} | {total:.1f} | {numbers} |")
    print("\n| images | pictures | features float32 | float16 | indices | shards | manifest | the driver plans |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for images in (1e6, 1e7, 1e8, 1e9):
        sizes = [images * PICTURE_BYTES, images * FEATURE_DIM * 4, images * FEATURE_DIM * 2, images * INDEX_BYTES]
        print(
            f"| {images:,.0f} | "
            + " | ".join(f"{size / 1e9:,.1f} GB" for size in sizes)
            + f" | {shards(images):,.0f} | {shards(images) * SHARD_RECORD_BYTES / 1e6:,.1f} MB"
            + f" | {hours(images, PLAN_MS):,.2f} h |"
        )


if __name__ == "__main__":
    main()
