"""Twelve scores of 128 images: from a feature store, beside running the model again for each score.

Goal: ≥ 10 times as fast with the store's making included, as one pass of the model replaces twelve.

    python bench/twelve_scores.py [MODEL]        (default: lite)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import deltaenergy as de
from deltaenergy.scores.base import Scorer
from deltaenergy.scoring import Encoded, Scored, cross_fit, known_images, score_all
from deltaenergy.source import as_source
from timing import seconds

IMAGES, CLASSES = 128, 100
SPECS = (
    "msp",
    "mcm",
    "max-logit",
    "energy",
    "entropy",
    "react",
    "delta-energy",
    "delta-energy(c=1)",
    "delta-energy(tau=0.02)",
    "delta-energy(tau=0.1,c=1)",
    "delta-energy(tau=1,c=1)",
    "multi-delta-energy",
)


def write_pictures(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(IMAGES):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
        coarse.resize((400, 320)).save(folder / f"{number:03d}.jpg")


def bound_scores(classifier: de.Classifier) -> list[Scorer]:
    return [de.make_score(spec).bind(classifier) for spec in SPECS]


def scored(classifier: de.Classifier, scorers: list[Scorer], images: Path) -> Scored:
    """All scores; those that learn are cross-fitted on the images."""
    encoded = Encoded(classifier, scorers, as_source(images), hold=True)
    learn = not all(scorer.fitted for scorer in scorers)
    fitted = cross_fit(scorers, known_images([encoded], scorers)) if learn else scorers
    return score_all(encoded, fitted, known=True)


def main() -> None:
    model = de.load_model(sys.argv[1] if len(sys.argv) > 1 else "lite")
    classifier = de.ZeroShotClassifier(model, [f"thing number {i}" for i in range(CLASSES)])
    with tempfile.TemporaryDirectory() as name:
        photos, path = Path(name) / "photos", Path(name) / "store"
        write_pictures(photos)
        model.encode(sorted(photos.iterdir())[:32])  # warm-up
        found: dict[str, Scored] = {}

        def again() -> None:
            for score in bound_scores(classifier):
                found[score.spec] = scored(classifier, [score], photos)

        def from_store() -> None:
            found["store"] = scored(classifier, bound_scores(classifier), path)

        make = seconds(lambda: de.build_store(model, photos, path))
        from_store()
        stored = min(seconds(from_store) for _ in range(3))
        rerun = seconds(again)
    worst = max(np.abs(found["store"].values[spec] - found[spec].values[spec]).max() for spec in found["store"].values)
    print(f"{len(SPECS)} scores of {IMAGES} images, model {model.name}")
    print(f"model run again for each score / store made once and read: {rerun / (make + stored):.1f}× (goal ≥ 10×)")
    print(
        f"  again {rerun:.2f} s; store made in {make:.2f} s, then all scores in {stored:.3f} s ({rerun / stored:.0f}×)"
    )
    print(f"  largest difference between the two: {worst:.1e}")


if __name__ == "__main__":
    main()
