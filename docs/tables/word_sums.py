"""Print the tables "Other sums of scores" of docs/results/default-score.md.

    python docs/tables/word_sums.py FEATURES STORES [--csv FOLDER]

FEATURES and STORES as for default_score.py, the tests as in default_tests.py. z(v) is v in standard units of at most
200 known images, which are not tested. The sums were ordered on the parts `development` and `more`. The first was to
become the default if it lost neither to the default nor to `RIVALS` on `judged` and `fresh`. The best sum with energy
is shown as well. Tests without words are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures
from clip_features import mean_and_interval
from default_score import fitted_values
from default_tests import Case, clip_cases, lite_cases
from output import add_csv, print_table
from store_tests import Stores

from deltaenergy import load_model
from deltaenergy.stats.metrics import RankedScores

TERMS = {
    "ΔE": "delta-energy(tau=0.1,c=1)",
    "robust": "delta-energy:robust",
    "multi": "multi-delta-energy",
    "words": "neglabel:quick",
    "level": "max-logit",
    "energy": "energy",
    "mcm": "mcm",
}
RIVALS = ("mcm", "energy", "level", "multi", "words")
Values = Mapping[str, np.ndarray]
# The default when the sums were compared.
DEFAULT = "z(ΔE) + z(words)"
SUMS: dict[str, Callable[[Values], np.ndarray]] = {
    DEFAULT: lambda z: z["ΔE"] + z["words"],
    "z(ΔE) + ½ z(words)": lambda z: z["ΔE"] + z["words"] / 2,
    "z(ΔE) + min(z(words) + 1, 0)": lambda z: z["ΔE"] + guard(z["words"], 1),
    "z(ΔE) + z(words) + ½ z(max-logit)": lambda z: z["ΔE"] + z["words"] + z["level"] / 2,
    "z(ΔE) + z(words) + z(max-logit)": lambda z: z["ΔE"] + z["words"] + z["level"],
    "z(ΔE) + z(words) + min(z(max-logit) + 1, 0)": lambda z: z["ΔE"] + z["words"] + guard(z["level"], 1),
    "z(ΔE) + z(words) + min(z(max-logit) + 2, 0)": lambda z: z["ΔE"] + z["words"] + guard(z["level"], 2),
    "z(ΔE) + z(words) + ½ z(energy)": lambda z: z["ΔE"] + z["words"] + z["energy"] / 2,
    "z(ΔE) + z(words) + z(energy)": lambda z: z["ΔE"] + z["words"] + z["energy"],
    "z(ΔE) + z(words) + min(z(energy) + 1, 0)": lambda z: z["ΔE"] + z["words"] + guard(z["energy"], 1),
    "z(ΔE) + z(words) + min(z(energy) + 2, 0)": lambda z: z["ΔE"] + z["words"] + guard(z["energy"], 2),
    "z(ΔE) + min(z(words), z(energy))": lambda z: z["ΔE"] + np.minimum(z["words"], z["energy"]),
    "z(multi) + z(words)": lambda z: z["multi"] + z["words"],
    "z(multi) + z(words) + ½ z(energy)": lambda z: z["multi"] + z["words"] + z["energy"] / 2,
    "z(robust) + ½ z(words)": lambda z: z["robust"] + z["words"] / 2,
    "z(robust) + z(words)": lambda z: z["robust"] + z["words"],
    "z(robust) + z(words) + ½ z(energy)": lambda z: z["robust"] + z["words"] + z["energy"] / 2,
}
COMPARED = (DEFAULT, "z(robust) + z(words)", "z(ΔE) + z(words) + ½ z(energy)")


def guard(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Zero for values up to `tolerance` deviations below the mean."""
    return np.minimum(values + tolerance, 0)


def aurocs(case: Case) -> dict[str, float]:
    """AUROC in percent of every rival and every sum."""
    known, unknown = {}, {}
    for name, spec in TERMS.items():
        fitted, *judged = fitted_values(case, spec)
        scale = fitted.std() or 1.0
        known[name], unknown[name] = ((values - fitted.mean()) / scale for values in judged)
    ranked = {name: RankedScores(known[name], unknown[name]) for name in RIVALS}
    ranked |= {name: RankedScores(form(known), form(unknown)) for name, form in SUMS.items()}
    return {name: 100 * one.auroc() for name, one in ranked.items()}


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, help="folder with CLIP features")
    parser.add_argument("stores", type=Path, help="folder with feature stores of the bundled model")
    add_csv(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    features, stores = ClipFeatures(arguments.features), Stores(arguments.stores, load_model("lite"))

    def measured(*parts: str) -> dict[str, list[dict[str, float]]]:
        found: dict[str, list[dict[str, float]]] = {}
        for part in parts:
            for group, cases in (clip_cases(features, part) | lite_cases(stores, part)).items():
                runnable = [case for case in cases if case.has_tower or case.words is not None]
                found.setdefault(group, []).extend(aurocs(case) for case in runnable)
        return found

    groups = measured("development", "more")
    means = {name: [np.mean([row[name] for row in rows]) for rows in groups.values()] for name in (*SUMS, *RIVALS)}
    ordered = sorted(means, key=lambda name: -np.mean(means[name]))
    rows = [[TERMS.get(name, name), *map(float, means[name]), f"{np.mean(means[name]):.2f}"] for name in ordered]
    columns = [f"{name}, {len(cases)} tests" for name, cases in groups.items()]
    print_table("word-sums-development", ["mean AUROC", *columns, "mean"], rows, arguments.csv)
    print()
    columns = [f"above {TERMS[name]} (95% interval)" for name in RIVALS]
    columns = ["tests", "sum", "AUROC", "above the default (95% interval)", *columns]
    print_table("word-sums-heldout", columns, compared(measured), arguments.csv)


def compared(measured: Callable[[str], dict[str, list[dict[str, float]]]]) -> Iterator[list[object]]:
    """How far the compared sums are above the default and the rivals, by group of tests."""
    parts = {part: measured(part) for part in ("judged", "fresh")}
    for group in parts["judged"]:
        found = {f"{group}, {part}": groups[group] for part, groups in parts.items() if group in groups}
        found |= {f"{group}, both": [row for rows in found.values() for row in rows]} if len(found) > 1 else {}
        for title, rows in found.items():
            for name in COMPARED:
                values = np.array([row[name] for row in rows])
                others = (np.array([row[rival] for row in rows]) for rival in (DEFAULT, *RIVALS))
                leads = [mean_and_interval(values - other, 1) for other in others]
                leads[0] = "–" if name == DEFAULT else leads[0]
                yield [f"{title} ({len(rows)})", name, float(values.mean()), *leads]


if __name__ == "__main__":
    main()
