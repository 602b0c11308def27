"""Print the tables "Newer negative-label scores" and "Adapting to the stream" of docs/results.md.

    python docs/tables/newer_scores.py STORES [--model lite] [--words 2000] [--limit 150] [--shuffles 3]

STORES holds feature stores of the model (`deltaenergy features`): `pacs` (known), `dtd10`, `food3`, `caltech101`
(without the classes that PACS has too) and `intel_scenes` (unknown), of each at most `--limit` random pictures. As many
further known pictures are for scores that are fitted.

All scores choose from the same `--words` random nouns of WordNet, prompted as "the nice …": neglabel, csp and negrefine
keep half of them, interneg takes a thousand at most, adaneg keeps half, tanl looks at all and takes a hundred. Adapters
see known and unknown pictures as one stream: shuffled, all known first, or all unknown first.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import deltaenergy as de
from deltaenergy.benchmarks.spec import splits
from deltaenergy.classifiers.base import Inputs
from deltaenergy.scores.adaptive import make_adapter
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.negatives import wordnet_pool
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import score_images
from deltaenergy.stats.metrics import RankedScores

OPEN_SETS = ("dtd10", "food3", "caltech101", "intel_scenes")
HALF = {"keep": 0.5}
ONE_TEMPLATE = {**HALF, "noun_templates": "the nice {}", "class_templates": ""}
SCORES: dict[str, dict[str, Any]] = {
    "mcm": {},
    "energy": {},
    "neglabel": HALF,
    "csp": ONE_TEMPLATE,
    "negrefine(weight=0)": ONE_TEMPLATE,
    "negrefine": ONE_TEMPLATE,
    "interneg": {"count": 1000},
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "adaneg": HALF,
    "adaneg(proxies=sample)": HALF,
    "tanl": {"count": 100},
}
Rows = npt.NDArray[np.float32]


def read(folder: Path, removed: frozenset[str] = frozenset()) -> tuple[Rows, list[str]]:
    """Features and labels of a store, without some classes."""
    store = de.Store.open(folder)
    labels = [label or "" for label in store.labels]
    kept = [i for i, label in enumerate(labels) if label not in removed]
    return store.features(kept), [labels[i] for i in kept]


def cell(known: npt.NDArray[np.float64], unknown: npt.NDArray[np.float64]) -> tuple[float, float]:
    """AUROC and FPR95 in percent."""
    pair = RankedScores(known, unknown)
    return 100 * pair.auroc(), 100 * pair.fpr()


def print_row(name: str, cells: list[tuple[float, float]]) -> None:
    """One line of a table, with the means."""
    means = np.mean(cells, axis=0)
    print(f"| {name} | " + " | ".join(f"{a:.1f} / {f:.1f}" for a, f in [*cells, tuple(means)]) + " |", flush=True)


def sample(rows: Rows, limit: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Positions of at most `limit` random rows."""
    return np.random.default_rng(seed).permutation(len(rows))[:limit]


def in_order(order: str, known: int, unknown: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions of a stream of known pictures, then unknown ones, in another order."""
    if order == "shuffled":
        return np.random.default_rng(seed).permutation(known + unknown)
    return np.roll(np.arange(known + unknown), 0 if order == "known first" else unknown)


def main() -> None:
    """Score all sets, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path)
    parser.add_argument("--model", default="lite")
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--limit", type=int, default=150)
    parser.add_argument("--shuffles", type=int, default=3)
    arguments = parser.parse_args()
    everything, labels = read(arguments.stores / "pacs")
    names = sorted({label.replace("_", " ") for label in labels})
    positions = torch.tensor([names.index(label.replace("_", " ")) for label in labels])
    classifier = de.ZeroShotClassifier(de.load_model(arguments.model), names)
    removed = frozenset(splits()["caltech101-removed"]["pacs"])
    unknown = {name: read(arguments.stores / name, removed)[0] for name in OPEN_SETS}
    unknown = {name: rows[sample(rows, arguments.limit)] for name, rows in unknown.items()}
    chosen = sample(everything, 2 * arguments.limit)
    fit, known = chosen[: arguments.limit], everything[chosen[arguments.limit :]]
    features = torch.from_numpy(everything[fit])
    with torch.inference_mode():
        to_fit = ScoreInputs(
            classifier(Inputs(features)).similarities, features, labels=positions[torch.from_numpy(fit)]
        )
    weights = classifier.model.fingerprint[:8]
    print(f"Model `{arguments.model}` ({weights}): {len(fit)} known pictures to fit on, {len(known)} to test.\n")
    header = " | ".join(f"{name} ({len(rows)})" for name, rows in unknown.items()) + " | mean |\n|---|"
    header += "---:|" * (len(unknown) + 1)
    nouns = np.random.default_rng(0).permutation(wordnet_pool().nouns)[: arguments.words]
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.txt"
        words.write_text("\n".join(nouns), encoding="utf-8")
        print(f"| score | {header}")
        for spec, params in SCORES.items():
            given = params if spec in ("mcm", "energy") else {**params, "words": str(words)}
            scorer = make_score(spec, **given).bind(classifier)
            scorer = scorer if scorer.fitted else scorer.fit(to_fit)
            sets = (known, *unknown.values())
            values = [score_images(classifier, [scorer], rows).values[scorer.spec] for rows in sets]
            print_row(spec, [cell(values[0], other) for other in values[1:]])
        print(f"\n| adapter, order | {header}")
        for spec, params in ADAPTERS.items():
            detector = de.AdaptiveDetector(classifier, make_adapter(spec, **params, words=str(words)))
            for order, repeats in (("shuffled", arguments.shuffles), ("known first", 1), ("unknown first", 1)):
                cells = []
                for rows in unknown.values():
                    found = []
                    for seed in range(repeats):
                        places = in_order(order, len(known), len(rows), seed)
                        stream = detector.stream(np.concatenate([known, rows])[places])
                        scores = np.array([verdict.score for verdict in stream])
                        found.append(cell(scores[places < len(known)], scores[places >= len(known)]))
                    auroc, fpr95 = np.mean(found, axis=0)
                    cells.append((auroc, fpr95))
                print_row(f"{spec}, {order}", cells)


if __name__ == "__main__":
    main()
