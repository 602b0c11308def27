"""Compare our formulas with the code that the paper's authors released, LinLLLL/DeltaEnergy (built on LinLLLL/CRoFT).

    git clone https://github.com/LinLLLL/DeltaEnergy release
    python tools/compare_release.py release                     # the lines that answer three questions
    python tools/compare_release.py release --score eval.py:delta_energy --loss trainers/ebm.py:energy_loss

Three things only that code can say: τ in EBM's loss (the paper's text divides by τ, its proofs do not); τ and c behind
the zero-shot tables (our features reach the paper's figures only at τ = 1); whether Table 7 uses negative labels. The
first form reads the clone's Python files and prints the lines that may say it; nothing of the clone is run. The second
runs the functions that you name, on random unit vectors: read them first. A score takes cosines (N, K) and gives N
numbers; a loss takes image features (N, D) and text features (K, D), both of unit length, and gives a number or N of
them. What is printed is which of our settings gives the same numbers; for scores up to a factor and an added constant.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Outputs
from deltaenergy.classifiers.ebm import energy_change
from deltaenergy.scores import delta_energy

QUESTIONS = {
    "τ in EBM's loss": r"logsumexp|\benergy\b.*(loss|exp)|loss.*energy",
    "τ and c behind the zero-shot tables": r"\btopk\(|\b(tau|temperature|T)\s*=|logit_scale|--?(tau|T|c)\b",
    "negative labels in Table 7": r"neg[_ -]?label|negative[_ -]?label|wordnet|csp",
}
TAUS, CS, SHARES = (0.01, 0.02, 0.05, 0.1, 1.0), (1, 2, 3), (0.4, 0.5, 0.6)
MOST_LINES = 40


def lines(folder: Path, pattern: str) -> Iterator[str]:
    """Lines of the folder's Python and shell files that match, as FILE:LINE: text."""
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.sh")]):
        for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if re.search(pattern, text, re.IGNORECASE):
                yield f"{path.relative_to(folder)}:{number}: {text.strip()[:160]}"


def load(folder: Path, place: str) -> Callable[..., Any]:
    """The function FILE:NAME of the clone. This runs the file."""
    file, _, name = place.partition(":")
    path = folder / file
    if not path.is_file() or not name:
        sys.exit(f"{place}: give FILE:FUNCTION, with a file in {folder}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        sys.exit(f"{file} has no function {name!r}.")
    found: Callable[..., Any] = getattr(module, name)
    return found


def same(theirs: np.ndarray, ours: np.ndarray, *, scaled: bool) -> bool:
    """Whether the numbers agree to single precision; `scaled`: up to a factor and an added constant."""
    if scaled:
        theirs, ours = ((one - one.mean()) / (one.std() or 1.0) for one in (theirs, ours))
        return bool(np.abs(theirs - ours).max() < 1e-3 or np.abs(theirs + ours).max() < 1e-3)
    return bool(np.allclose(theirs, ours, rtol=1e-3))


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features of 64 images and 20 classes, with cosines like CLIP's."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(1, 64, generator=generator)
    made = [torch.randn(rows, 64, generator=generator) + 0.6 * common for rows in (64, 20)]
    images, texts = (rows / rows.norm(dim=1, keepdim=True) for rows in made)
    return images, texts


def compare_score(function: Callable[..., Any]) -> list[str]:
    """Our settings of ΔEnergy that give a released score's numbers."""
    images, texts = vectors()
    cosines = images @ texts.T
    theirs = np.asarray(function(cosines), dtype=np.float64).reshape(-1)
    return [
        f"delta-energy(tau={tau:g},c={c})"
        for tau, c in itertools.product(TAUS, CS)
        if same(theirs, delta_energy(cosines, tau, c).double().numpy(), scaled=True)
    ]


def compare_loss(function: Callable[..., Any]) -> list[str]:
    """Our settings of EBM's term that give a released loss's numbers: the energy change, its mean, or e to the mean."""
    images, texts = vectors()
    theirs = np.asarray(function(images, texts), dtype=np.float64).reshape(-1)
    found = []
    for tau, p in itertools.product(TAUS, SHARES):
        change = energy_change(Outputs(images @ texts.T, images, texts), p, tau).double().numpy()
        forms = {"E2 − E0": change, "mean": change.mean()[None], "exp(mean)": np.exp(change.mean())[None]}
        for form, ours in forms.items():
            if len(ours) == len(theirs) and same(theirs, ours, scaled=False):
                found.append(f"ebm(p={p:g},loss_tau={tau:g}), {form}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="a clone of the authors' repository")
    parser.add_argument("--score", metavar="FILE:FUNCTION", help="its ΔEnergy; this runs the file")
    parser.add_argument("--loss", metavar="FILE:FUNCTION", help="its EBM loss; this runs the file")
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"{options.folder} is not a folder. Clone the repository first.")
    for question, pattern in QUESTIONS.items():
        print(f"== {question}")
        found = list(lines(options.folder, pattern))
        print("\n".join(found[:MOST_LINES]) or "no line matches")
        if len(found) > MOST_LINES:
            print(f"… and {len(found) - MOST_LINES} more")
    for place, compare in ((options.score, compare_score), (options.loss, compare_loss)):
        if place:
            print(f"== {place}")
            print("\n".join(compare(load(options.folder, place))) or "none of our settings gives these numbers")


if __name__ == "__main__":
    main()
