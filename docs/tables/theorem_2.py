"""Print the tables "The paper's theorems on CLIP features" of docs/results.md: Theorem 2, and many classes.

    python docs/tables/theorem_2.py FOLDER

FOLDER holds real CLIP features (see clip_data.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest

from deltaenergy.theory.false_positives import false_positive_rates
from deltaenergy.theory.separation import many_classes_at

TAU = 0.01


def cosines(test: OpenTest) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the known and of the unknown pictures with the classes."""
    known, unknown = (torch.from_numpy(np.asarray(rows)) for rows in (test.known, test.unknown))
    return test.classifier.similarities_of_features(known), test.classifier.similarities_of_features(unknown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    data = ClipFeatures(parser.parse_args(arguments).folder)
    tests = [test for test in data.published("photo") if test.name in ("Setup-I/1", "Split-2", "1k/DTD")]
    tests.append(data.pacs_table()[0])
    print("| test | τ | c | condition met | largest FPR_ΔE(λ) − FPR_MCM(λ) | FPR95 ΔEnergy | FPR95 MCM |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for test in tests:
        for one in false_positive_rates(*cosines(test), TAU):
            rates = (one.condition, one.excess, one.fpr95, one.fpr95_mcm)
            print(f"| {test.name} | {one.tau:.3g} | {one.c} | " + " | ".join(f"{rate:.1%}" for rate in rates) + " |")
    print("\n| τ | K | median b / e^a | b ≥ 10 e^a | error, ΔEnergy | error, MCM | wider gap |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    known, unknown = cosines(next(test for test in tests if test.name == "1k/DTD"))
    for tau in (TAU, 0.1, 1.0):
        for many in many_classes_at(known, unknown, tau, np.random.default_rng(0)):
            if many.classes in (2, 32, 512, 1000):
                shares = (many.assumption, many.error, many.error_mcm, many.wider)
                print(
                    f"| {tau:g} | {many.classes} | {many.ratio:.3g} | " + " | ".join(f"{s:.1%}" for s in shares) + " |"
                )


if __name__ == "__main__":
    main()
