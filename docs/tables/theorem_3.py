"""Print the counts of docs/tuning.md: images that meet the condition of Theorem 3, and images that violate it.

    python docs/tables/theorem_3.py FOLDER

FOLDER contains real CLIP features (see clip_data.py): 1,008 images of PACS and the seven class vectors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from deltaenergy.theory.bound import BoundCheck, check_bound

TAU, EPSILON = 0.1, 0.1


def check(folder: Path, p: float) -> BoundCheck:
    """Theorem 3 on the PACS features, with ε = 0.1 and the kept fraction `p`."""
    features, texts = (torch.from_numpy(np.load(folder / f"{name}.npy")).double() for name in ("pacs", "pacs_text"))
    unit = torch.nn.functional.normalize
    return check_bound(unit(features, dim=1), unit(texts, dim=1), p, TAU, epsilon=EPSILON)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per kept fraction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    for p in (0.4, 0.6):
        found = check(folder, p)
        met, violated = int(found.stated.sum()), found.counterexamples
        print(f"p = {p}: {met} of {len(found.stated)} images meet the condition, {violated} violate the conclusion")


if __name__ == "__main__":
    main()
