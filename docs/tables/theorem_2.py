"""Print the tables "Theorem 2" and "Many classes" of docs/results/paper.md.

    python docs/tables/theorem_2.py FOLDER [--csv FOLDER]

FOLDER contains real CLIP features (see clip_data.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest
from output import add_csv, print_table

from deltaenergy.theory.separation import false_positive_rates, many_classes_at

TAU = 0.01


def cosines(test: OpenTest) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the known and of the unknown images with the classes."""
    known, unknown = (torch.from_numpy(np.asarray(rows)) for rows in (test.known, test.unknown))
    return test.classifier.similarities_of_features(known), test.classifier.similarities_of_features(unknown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    add_csv(parser)
    given = parser.parse_args(arguments)
    data = ClipFeatures(given.folder)
    tests = [test for test in data.published("photo") if test.name in ("Setup-I/1", "Split-2", "1k/DTD")]
    tests.append(data.pacs_table()[0])

    def percent(*rates: float) -> list[str]:
        return [f"{rate:.1%}" for rate in rates]

    rows = (
        [test.name, f"{one.tau:.3g}", one.c, *percent(one.condition, one.excess, one.fpr95, one.fpr95_mcm)]
        for test in tests
        for one in false_positive_rates(*cosines(test), TAU)
    )
    columns = ["test", "τ", "c", "condition met", "largest FPR_ΔE(λ) − FPR_MCM(λ)", "FPR95 ΔEnergy", "FPR95 MCM"]
    print_table("theorem-2", columns, rows, given.csv)
    print()
    known, unknown = cosines(next(test for test in tests if test.name == "1k/DTD"))
    rows = (
        [f"{tau:g}", one.classes, f"{one.ratio:.3g}", *percent(one.assumption, one.error, one.error_mcm, one.wider)]
        for tau in (TAU, 0.1, 1.0)
        for one in many_classes_at(known, unknown, tau, np.random.default_rng(0))
        if one.classes in (2, 32, 512, 1000)
    )
    columns = ["τ", "K", "median b / e^a", "b ≥ 10 e^a", "error, ΔEnergy", "error, MCM", "wider gap"]
    print_table("many-classes", columns, rows, given.csv)


if __name__ == "__main__":
    main()
