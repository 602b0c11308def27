"""Print the table "Every score" of docs/results/scores-on-lite.md.

    python docs/tables/zero_shot_scores.py IMAGES [--model lite] [--score SCORES] [--batch-size 32] [--csv FOLDER]

IMAGES contains real images: `pacs/<domain>/<class>` (known), and `dtd10`, `food3`, `caltech101` with a folder per class
(unknown; Caltech101 without the classes that PACS also has). By default every score and every preset runs with its
defaults. Scores that learn from known images are cross-fitted on PACS. clipn needs a trained "no" encoder and is left
out; negrefine and interneg are in `newer_scores.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from output import add_csv, print_table

import deltaenergy as de
from deltaenergy.benchmarks.spec import splits
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import split
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import get_score_class, list_scores
from deltaenergy.scoring import AnyScorer, Encoded, Scored, cross_fit, known_images, score_all
from deltaenergy.source import as_source, load_images
from deltaenergy.stats.metrics import RankedScores

OPEN_SETS = ("dtd10", "food3", "caltech101")


def all_scores() -> list[Score]:
    """Every score and preset that can run without further files, labels or texts of each image."""
    names = [(name, *(f"{name}:{preset}" for preset in get_score_class(name).presets)) for name in list_scores()]
    scores = [de.make_score(spec) for group in names for spec in group]
    return [score for score in scores if score.missing is None and not score.needs & {Need.LABELS, Need.PAIRS}]


def show(what: str) -> Progress:
    """Progress on one line of standard error."""

    def move(done: int, total: int | None) -> None:
        print(f"\r{what}: {done:,} of {total or 0:,}   ", end="" if done != total else "\n", file=sys.stderr)

    return move


def print_scores(
    scores: list[Score], known: dict[str, np.ndarray], unknown: dict[str, Scored], folder: Path | None
) -> None:
    """AUROC, FPR95 and FPR95-OOD in percent for each open set, best mean AUROC first."""
    rows = []
    for score in scores:
        pairs = [RankedScores(known[score.spec], other.values[score.spec]) for other in unknown.values()]
        rows.append((score.spec, [(pair.auroc(), pair.fpr(), pair.fpr_ood()) for pair in pairs]))
    rows.sort(key=lambda row: -np.mean([numbers[0] for numbers in row[1]]))
    cells = (
        [
            spec,
            *(" / ".join(f"{100 * number:.1f}" for number in triple) for triple in numbers),
            100 * float(np.mean([triple[0] for triple in numbers])),
        ]
        for spec, numbers in rows
    )
    columns = [f"{name} ({len(other.items)})" for name, other in unknown.items()]
    print_table("lite-all-scores", ["score", *columns, "mean AUROC"], cells, folder)


def main() -> None:
    """Score every set once, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", default="lite")
    parser.add_argument("--score", help="comma-separated; default: all")
    parser.add_argument("--batch-size", type=int, default=32)
    add_csv(parser)
    arguments = parser.parse_args()
    domains = sorted(folder for folder in (arguments.images / "pacs").iterdir() if folder.is_dir())
    classes = sorted(folder.name for folder in domains[0].iterdir() if folder.is_dir())
    classifier = de.ZeroShotClassifier(de.load_model(arguments.model), classes)
    scores = [de.make_score(spec) for spec in split(arguments.score, ",")] if arguments.score else all_scores()
    scorers = [score.bind(classifier, show(score.spec)) for score in scores]

    def encoded(name: str, folders: list[Path], scorers: Sequence[AnyScorer]) -> Encoded:
        items = [item for folder in folders for item in load_images(folder)]
        options = {"batch_size": arguments.batch_size, "progress": show(f"scoring {name}")}
        return Encoded(classifier, scorers, as_source(items), hold=True, **options)

    pacs = encoded("pacs", domains, scorers)
    fitted = cross_fit(scorers, known_images([pacs], scorers))
    known = score_all(pacs, fitted, known=True)
    removed = set(splits()["caltech101-removed"]["pacs"])
    unknown = {
        name: score_all(encoded(name, [folder for folder in folders if folder.name not in removed], fitted), fitted)
        for name, folders in ((name, sorted((arguments.images / name).iterdir())) for name in OPEN_SETS)
    }
    truth = [Path(item.id).parent.name for item in known.items]
    correct = np.mean([classes[index] == name for index, name in zip(known.predicted, truth)])
    print(
        f"Model `{arguments.model}` ({classifier.model.fingerprint[:8]}), PACS: {len(truth)} images, {len(classes)} "
        f"names (list {classifier.classes_hash}), zero-shot accuracy {100 * correct:.1f}%.\n"
        "AUROC / FPR95 / FPR95-OOD in percent.\n"
    )
    print_scores(scores, known.values, unknown, arguments.csv)


if __name__ == "__main__":
    main()
