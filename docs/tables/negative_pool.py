"""Print the table "How many negative words" of docs/results.md: AUROC against the size of the pool.

    python docs/tables/negative_pool.py STORES

STORES holds feature stores of the bundled model (see store_tests.py). Known are PACS's seven classes, unknown textures,
food, Caltech101 without the classes that PACS has, and scenes. Half of each pool is kept. All pictures are judged:
nothing is fitted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from store_tests import NO_CLASS, OVERLAPS, Stores

from deltaenergy import load_model, make_score
from deltaenergy.metrics import RankedScores
from deltaenergy.scores.base import ScoreInputs

SIZES = (250, 1_000, 5_000, 20_000)
SCORES = ("mcm", "energy", *(f"neglabel:quick(frequent={size})" for size in SIZES))


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path)
    stores = Stores(parser.parse_args().stores, load_model("lite"))
    tests = [stores.pair("pacs", name) for name in ("dtd10", "food3", "intel_scenes")]
    tests.append(stores.pair("pacs", "caltech101", unknown_classes=lambda label: label not in OVERLAPS | NO_CLASS))
    print("| score | " + " | ".join(test.name for test in tests) + " | mean |")
    print("|---" + "|---:" * (len(tests) + 1) + "|")
    for spec in SCORES:
        cells = []
        for test in tests:
            scorer = make_score(spec).bind(test.classifier)
            values = []
            for features in (test.known, test.unknown):
                rows = torch.from_numpy(np.array(features))
                values.append(scorer(ScoreInputs(test.classifier.similarities_of_features(rows), rows)))
            ranked = RankedScores(*values)
            cells.append((100 * ranked.auroc(), 100 * ranked.fpr()))
        cells.append(tuple(np.mean(cells, axis=0)))
        print(f"| `{make_score(spec).spec}` | " + " | ".join(f"{auroc:.1f} / {fpr:.1f}" for auroc, fpr in cells) + " |")


if __name__ == "__main__":
    main()
