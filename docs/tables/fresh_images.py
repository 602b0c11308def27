"""Print the table "Held-out images" of docs/results/scores-on-lite.md.

    python docs/tables/fresh_images.py FOLDER [--model lite] [--csv FOLDER]

FOLDER contains `oxford_pets` and `intel_scenes` (one folder per class), `food3` and `dtd10`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from clip_data import OpenTest
from clip_features import SCORES, chosen, judge, print_leads, print_scores
from output import add_csv

from deltaenergy import Model, ZeroShotClassifier, load_model
from deltaenergy.core.classes import normal_name
from deltaenergy.evaluation.choose import CANDIDATES

PAIRS = {"oxford_pets": ("intel_scenes", "food3", "dtd10"), "intel_scenes": ("oxford_pets", "food3", "dtd10")}


def open_tests(folder: Path, model: Model) -> list[OpenTest]:
    """Pets and scenes, each against the other three sets. Every second known image is marked `to_choose`."""
    encoded = {name: model.encode(folder / name) for name in ("oxford_pets", "intel_scenes", "food3", "dtd10")}
    tests = []
    for known, others in PAIRS.items():
        labels = [normal_name(str(item.label)) for item in encoded[known].items]
        classes = sorted(set(labels))
        classifier = ZeroShotClassifier(model, classes)
        truth = np.array([classes.index(label) for label in labels])
        every_second = np.arange(len(truth)) % 2 == 0
        for other in others:
            features = encoded[known].features
            tests.append(
                OpenTest(f"{known}/{other}", classifier, features, truth, every_second, encoded[other].features)
            )
    return tests


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the images")
    parser.add_argument("--model", default="lite", help="model to encode them with")
    add_csv(parser)
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    print(f"Model {model.name}, fingerprint {model.fingerprint[:12]}")
    tests = open_tests(arguments.folder, model)
    results = {spec: np.array([judge(test, spec) for test in tests]) for spec in SCORES}
    shown = {spec: np.concatenate([values, values.mean(axis=0, keepdims=True)]) for spec, values in results.items()}
    print_scores("lite-fresh-images", [*(test.name for test in tests), "mean"], shown, arguments.csv)
    print_leads("lite-fresh-images-vs-mcm", results, arguments.csv)
    measured = {spec: np.array([judge(test, spec, ~test.to_choose) for test in tests]) for spec in CANDIDATES}
    picked = [chosen(test, folds=5, seed=0) for test in tests]
    by_choice = np.mean([measured[spec][i, 0] for i, spec in enumerate(picked)])
    best = max(CANDIDATES, key=lambda spec: measured[spec][:, 0].mean())
    fixed, mcm = (measured[spec][:, 0].mean() for spec in (best, "mcm"))
    print(f"\nOn the half that was not for choosing: choose {by_choice:.1f} (it took {', '.join(picked[::3])}),")
    print(f"the best fixed candidate {fixed:.1f} ({best}), mcm {mcm:.1f}.")


if __name__ == "__main__":
    main()
