"""CPU time for each image of a bootstrap interval: all five ranking metrics, at 10⁴, 10⁵ and 10⁶ images.

Half of the scores are of known images, half of open ones, single precision, so that some are equal. The peers are the
plain way in the same run, images drawn with replacement and ranked again by scikit-learn for AUROC only; and the same
interval of fewer images. Goal: an image costs no more at 10⁶ than at 10⁵ (± 5%). Least of REPEATS, in turns.

    python bench/intervals.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from sklearn.metrics import roc_auc_score

from deltaenergy.stats.metrics import RankedScores

IMAGES = (10_000, 100_000, 1_000_000)
# Of these many images in all, each run draws resamples: enough to measure, not more.
DRAWN, REPEATS = 50_000_000, 7


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def plainly(known: np.ndarray, unknown: np.ndarray, resamples: int) -> None:
    rng = np.random.default_rng(0)
    truth = np.r_[np.ones(len(known)), np.zeros(len(unknown))]
    for _ in range(resamples):
        drawn = [group[rng.integers(len(group), size=len(group))] for group in (known, unknown)]
        roc_auc_score(truth, np.concatenate(drawn))


def main() -> None:
    rng = np.random.default_rng(0)
    ours: dict[int, list[float]] = {images: [] for images in IMAGES}
    plain: dict[int, float] = {}
    for repeat in range(REPEATS):
        for images in IMAGES:
            known, unknown = (rng.normal(mean, 1, images // 2).astype(np.float32) for mean in (1, 0))
            ranked, resamples = RankedScores(known, unknown), DRAWN // images
            taken = seconds(lambda: ranked.estimates(resamples=resamples))  # noqa: B023
            ours[images].append(1e9 * taken / resamples / images)
            if not repeat:
                few = max(1, resamples // 50)
                plain[images] = 1e9 * seconds(lambda: plainly(known, unknown, few)) / few / images  # noqa: B023
    for images, found in ours.items():
        spread = " to ".join(f"{value:.1f}" for value in (min(found), max(found)))
        print(
            f"{images:,} images: {min(found):.1f} ns for each image of a resample ({spread}); plainly, AUROC alone, "
            f"{plain[images]:.0f} ns, {plain[images] / min(found):.1f}x as much"
        )
    least = {images: min(found) for images, found in ours.items()}
    print(f"An image at {IMAGES[2]:,} costs {least[IMAGES[2]] / least[IMAGES[1]]:.2f}x one at {IMAGES[1]:,}.")


if __name__ == "__main__":
    main()
