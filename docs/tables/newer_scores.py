"""Print the tables "Newer scores with words" and "Stream adapters" of docs/results/scores-on-lite.md.

    python docs/tables/newer_scores.py STORES [--model lite] [--words 2000] [--limit 150] [--shuffles 3] [--csv FOLDER]

STORES contains feature stores of the model (`deltaenergy features`): `pacs` (known), `dtd10`, `food3`, `caltech101`
(without the classes that PACS also has) and `intel_scenes` (unknown), with at most `--limit` random images of each.
Fitted scores use as many other known images.

All scores choose from the same `--words` random nouns of WordNet, with the prompt "the nice …": neglabel, csp and
negrefine keep half of them, interneg at most a thousand, adaneg half, tanl a hundred. Adapters read known and unknown
images as one stream: shuffled, all known first, or all unknown first.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from output import add_csv, print_table

import deltaenergy as de
from deltaenergy.benchmarks.spec import splits
from deltaenergy.classifiers.base import Inputs
from deltaenergy.scores.adaptive import make_adapter
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.negatives import wordnet_pool
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import score_images
from deltaenergy.source import as_source
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


def row_of(name: str, cells: list[tuple[float, float]]) -> list[str]:
    """One row of a table, with the means."""
    means = np.mean(cells, axis=0)
    return [name, *(f"{a:.1f} / {f:.1f}" for a, f in [*cells, tuple(means)])]


def sample(rows: Rows, limit: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Positions of at most `limit` random rows."""
    return np.random.default_rng(seed).permutation(len(rows))[:limit]


def in_order(order: str, known: int, unknown: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions in a stream of known, then unknown images, in another order."""
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
    add_csv(parser)
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
    print(f"Model `{arguments.model}` ({weights}): {len(fit)} known images to fit on, {len(known)} to test.\n")
    columns = [*(f"{name} ({len(rows)})" for name, rows in unknown.items()), "mean"]
    nouns = np.random.default_rng(0).permutation(wordnet_pool().nouns)[: arguments.words]
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.txt"
        words.write_text("\n".join(nouns), encoding="utf-8")

        def score_rows() -> Iterator[list[str]]:
            for spec, params in SCORES.items():
                given = params if spec in ("mcm", "energy") else {**params, "words": str(words)}
                scorer = make_score(spec, **given).bind(classifier)
                scorer = scorer if scorer.fitted else scorer.fit(to_fit)
                sets = (known, *unknown.values())
                values = [score_images(classifier, [scorer], as_source(rows)).values[scorer.spec] for rows in sets]
                yield row_of(spec, [cell(values[0], other) for other in values[1:]])

        def adapter_rows() -> Iterator[list[str]]:
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
                    yield row_of(f"{spec}, {order}", cells)

        print_table("lite-newer-scores", ["score", *columns], score_rows(), arguments.csv)
        print()
        print_table("lite-stream-adapters", ["adapter, order", *columns], adapter_rows(), arguments.csv)


if __name__ == "__main__":
    main()
