"""Print the table "The default against other scores" of docs/results/default-score.md.

    python docs/tables/default_score.py FEATURES STORES [--part judged] [--csv FOLDER]

FEATURES contains real CLIP features (see clip_data.py), STORES feature stores of the bundled model (see
store_tests.py). default_tests.py lists the tests and what each part of them decided. Scores are fitted on at most 200
known images, which are not tested.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest
from clip_features import mean_and_interval
from default_tests import PARTS, Case, clip_cases, lite_cases
from output import add_csv, print_table
from store_tests import Stores

from deltaenergy import load_model, make_score
from deltaenergy.core.needs import Need
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.stats.metrics import RankedScores

CANDIDATES = (
    "mcm",
    "max-logit",
    "energy",
    "gen",
    "logit-gap",
    "delta-energy",
    "delta-energy(tau=0.1,c=1)",
    "delta-energy:robust",
    "multi-delta-energy",
    "neglabel:quick",
    "delta-energy+words",
    "knn",
    "mahalanobis",
)
MAX_FITTED = 200
KEEP = 0.95


def judge(case: Case, spec: str) -> tuple[float, float, float, float] | None:
    """AUROC, FPR95, and of a threshold that keeps 95% of the fitted images: known kept, unknown rejected."""
    if Need.TEXTS in make_score(spec).needs and not case.has_tower and case.words is None:
        return None
    fitted, known, unknown = fitted_values(case, spec)
    threshold = np.quantile(fitted, 1 - KEEP, method="lower")
    ranked = RankedScores(known, unknown)
    shares = (ranked.auroc(), ranked.fpr(), (known >= threshold).mean(), (unknown < threshold).mean())
    return tuple(100 * float(share) for share in shares)  # type: ignore[return-value]


def fitted_values(case: Case, spec: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of the images used for fitting, of the other known images, and of the unknown images."""
    test, score = case.test, make_score(spec)
    rows = np.flatnonzero(test.to_choose)
    if len(rows) > MAX_FITTED:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_FITTED).astype(int)]
    state = {"negatives": case.words} if Need.TEXTS in score.needs and case.words is not None else None
    scorer = dataclasses.replace(score.bind(test.classifier, state=state), fitted=not score.needs_fit)
    to_fit = _inputs(test, test.known[rows])
    scorer = scorer if scorer.fitted else scorer.fit(to_fit)
    parts = (to_fit, _inputs(test, test.known[~test.to_choose]), _inputs(test, test.unknown))
    fitted, known, unknown = (_values(scorer, part) for part in parts)
    return fitted, known, unknown


def _inputs(test: OpenTest, features: np.ndarray) -> ScoreInputs:
    rows = torch.from_numpy(np.array(features))
    return ScoreInputs(test.classifier.similarities_of_features(rows), rows)


def _values(scorer: Scorer, inputs: ScoreInputs) -> np.ndarray:
    with torch.inference_mode():
        return scorer(inputs).double().numpy()


def rows_of(group: str, cases: list[Case]) -> Iterator[list[object]]:
    """Means, the worst test, and the difference to mcm with an interval from resampling the tests."""
    measured = {spec: [judge(case, spec) for case in cases] for spec in CANDIDATES}
    for spec, found in measured.items():
        run = [i for i, one in enumerate(found) if one is not None]
        values = np.array([found[i] for i in run])
        lead = values[:, 0] - np.array([measured["mcm"][i] for i in run])[:, 0]
        auroc, fpr, kept, rejected = values.mean(axis=0).tolist()
        worst = int(values[:, 0].argmin())
        lowest = f"{values[worst, 0]:.1f} ({cases[run[worst]].test.name})"
        yield [spec, group, len(run), auroc, fpr, lowest, mean_and_interval(lead, 1), kept, rejected]


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, help="folder with CLIP features")
    parser.add_argument("stores", type=Path, help="folder with feature stores of the bundled model")
    parser.add_argument("--part", choices=PARTS, default="judged")
    add_csv(parser)
    arguments = parser.parse_args()
    stores = Stores(arguments.stores, load_model("lite"))
    groups = clip_cases(ClipFeatures(arguments.features), arguments.part) | lite_cases(stores, arguments.part)
    groups["CLIP, with words"] = [case for case in groups["CLIP"] if case.words is not None]
    columns = ["score", "group", "tests", "AUROC", "FPR95", "lowest AUROC", "above mcm (95% interval)", "known kept"]
    rows = itertools.chain(*(rows_of(name, cases) for name, cases in groups.items()))
    print_table("default-heldout", [*columns, "unknown rejected"], rows, arguments.csv)


if __name__ == "__main__":
    main()
