"""Print the tables "EBM on CLIP features" of docs/results/tuning.md.

    python docs/tables/clip_tuning.py FOLDER [--sets pacs imagenet] [--seeds 1 2 3] [--methods zero-shot task-res …]
                                      [--csv FOLDER]

FOLDER contains real CLIP ViT-B/16 features (see clip_data.py). Methods that need only features and class vectors are
tuned on them with their defaults, without validation images.

PACS: leave one domain out, 16 images per class from the other three. ID accuracy is on the rest of those, held-out
accuracy on the fourth domain, and detection is the fourth domain against each open set. ImageNet: the 400 classes of
each Setup-I seed against the other 600. Trained on one image per class, and a second where two more are left; tested on
the other validation images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from clip_data import ClipFeatures
from output import add_csv, print_table
from scipy import stats

import deltaenergy as de
from deltaenergy.scores import delta_energy, mcm
from deltaenergy.stats.metrics import RankedScores
from deltaenergy.tuning.prepare import TrainSet, prepare_training

Rows = npt.NDArray[np.int64]
Runs = dict[str, list[dict[str, float]]]
SHOTS = 16
SCORES: dict[str, Callable[..., Any]] = {"mcm": mcm, "delta-energy": delta_energy}
EBM = [f"task-res+ebm(weight={weight},loss_tau={tau})" for tau in (1, 0.1, 0.05) for weight in (0.5, 2, 10)]
METHODS = ["zero-shot", "clip-adapter", "tip-adapter", "tip-adapter-f", "croft", "task-res", *EBM]
BASE = "task-res"


def tune(model: de.Model, classes: Sequence[str], train: TrainSet, method: str, seed: int) -> de.Classifier:
    """A classifier by one of `METHODS`."""
    if method == "zero-shot":
        return de.ZeroShotClassifier(model, classes)
    return de.tune(model, classes, train, method, seed=seed)


def detection(classifier: de.Classifier, known: Any, open_sets: Mapping[str, Any]) -> dict[str, float]:
    """AUROC and FPR95 of both scores in percent, mean over the open sets."""
    similarities = {name: classifier.similarities(rows) for name, rows in open_sets.items()}
    of_known, found = classifier.similarities(known), {}
    for score, function in SCORES.items():
        ranked = [RankedScores(function(of_known), function(values)) for values in similarities.values()]
        found[f"{score} AUROC"] = 100 * float(np.mean([one.auroc() for one in ranked]))
        found[f"{score} FPR95"] = 100 * float(np.mean([one.fpr() for one in ranked]))
    return found


def accuracy(classifier: de.Classifier, features: Any, truth: Rows) -> float:
    """In percent."""
    return 100 * float((classifier.similarities(features).argmax(axis=1) == truth).mean())


def drawn_rows(train: TrainSet, rows: Rows) -> Rows:
    """The rows that were sampled."""
    return rows[[int(item.id.removeprefix("row ")) for item in train.sample.items]]


def run_pacs(data: ClipFeatures, methods: Sequence[str], seeds: Sequence[int]) -> Runs:
    """Every method on every held-out domain and seed, the seeds of a domain one after the other."""
    names, truth, features = data.pacs_labels()
    domains = np.array(data.pacs_domains())
    model = de.PrecomputedModel(features.shape[1], class_vectors=(names, data.other("pacs_text")))
    results: Runs = {method: [] for method in methods}
    for domain in sorted(set(domains)):
        held_out, rest = domains == domain, np.flatnonzero(domains != domain)
        pool = de.LabelledFeatures(features[rest], truth[rest], domains[rest])
        for seed in seeds:
            train = prepare_training(model, names, pool, SHOTS, seed)
            unused = np.setdiff1d(rest, drawn_rows(train, rest))
            for method in methods:
                tuned = tune(model, names, train, method, seed)
                results[method].append(
                    {
                        "ID acc": accuracy(tuned, features[unused], truth[unused]),
                        "held-out acc": accuracy(tuned, features[held_out], truth[held_out]),
                        **detection(tuned, features[held_out], data.pacs_open_sets()),
                    }
                )
    return results


def run_imagenet(data: ClipFeatures, methods: Sequence[str], seeds: Sequence[int]) -> Runs:
    """Every method on the 400 classes of each Setup-I seed."""
    results: Runs = {method: [] for method in methods}
    for seed in seeds:
        columns = setup1_columns(seed)
        closed = np.isin(data.index, columns)
        rows = training_rows(data, columns, seed)
        tested = np.setdiff1d(np.flatnonzero(closed & ~data.one_per_class), rows)
        unknown = data.images[(data.index >= 0) & ~closed & ~data.one_per_class]
        names, truth = [f"class {column}" for column in columns], np.searchsorted(columns, data.index)
        model = de.PrecomputedModel(data.images.shape[1], class_vectors=(names, data.texts("photo")[columns]))
        # All chosen images are used: the sample of two per class is short where a class has one.
        train = prepare_training(model, names, de.LabelledFeatures(data.images[rows], truth[rows]), 2, seed)
        for method in methods:
            tuned = tune(model, names, train, method, seed)
            results[method].append(
                {
                    "ID acc": accuracy(tuned, data.images[tested], truth[tested]),
                    **detection(tuned, data.images[tested], {"others": unknown}),
                }
            )
    return results


def setup1_columns(seed: int) -> Rows:
    """The 400 classes of a Setup-I seed, as positions in ImageNet's canonical order; the published seeds are 1 to 3."""
    return np.sort(np.random.RandomState(seed).choice(1000, 400, replace=False))


def training_rows(data: ClipFeatures, columns: Rows, seed: int) -> Rows:
    """One image per class, and a validation image where at least one more is left to test on."""
    rng = np.random.default_rng(seed)
    rows = list(np.flatnonzero(np.isin(data.index, columns) & data.one_per_class))
    for column in columns:
        others = np.flatnonzero((data.index == column) & ~data.one_per_class)
        if len(others) > 1:
            rows.append(rng.choice(others))
    return np.sort(np.array(rows))


def interval(values: npt.NDArray[np.float64]) -> float:
    """Half the width of the 95% t-interval of the mean."""
    if len(values) < 2:
        return float("nan")
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def print_means(name: str, results: Runs, folder: Path | None) -> None:
    """Means, each with half the width of its 95% interval over the runs."""
    columns = list(next(iter(results.values()))[0])

    def cell(values: npt.NDArray[np.float64]) -> str:
        return f"{values.mean():.2f} ± {interval(values):.2f}"

    rows = (
        [method, *(cell(np.array([run[column] for run in runs])) for column in columns)]
        for method, runs in results.items()
    )
    print_table(name, ["method", *columns], rows, folder)


def print_differences(name: str, results: Runs, group: int, folder: Path | None) -> None:
    """Paired differences to `BASE`: bold where the interval over runs does not include zero.

    † and the last column: nor does it when the runs of a group (the seeds of a domain) count as one.
    """
    columns = list(results[BASE][0])

    def cell(runs: list[dict[str, float]], column: str) -> str:
        lead = np.array([run[column] - base[column] for run, base in zip(runs, results[BASE])])
        grouped = lead.reshape(-1, group).mean(axis=1)
        shown = f"{lead.mean():+.2f} ± {interval(lead):.2f}"
        if abs(lead.mean()) <= interval(lead):
            return shown
        return f"**{shown}**" + ("†" if abs(grouped.mean()) > interval(grouped) else "")

    print(f"\nDifference to {BASE}, run by run\n")
    others = ((method, runs) for method, runs in results.items() if method != BASE)

    def rows() -> Iterator[list[str]]:
        for method, runs in others:
            cells = [cell(runs, column) for column in columns]
            marked = [column for column, shown in zip(columns, cells) if shown.endswith("†")]
            yield [method, *cells, ", ".join(marked) or "–"]

    print_table(f"{name}-vs-{BASE}", ["method", *columns, "excludes 0 with grouped runs"], rows(), folder)


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the features")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--sets", nargs="+", choices=["pacs", "imagenet"], default=["pacs", "imagenet"])
    add_csv(parser)
    arguments = parser.parse_args()
    if not (arguments.folder / "images.npy").is_file():
        parser.error(f"{arguments.folder} has no images.npy")
    data = ClipFeatures(arguments.folder)
    for name, title, run, group in (
        ("pacs", "PACS, a domain held out", run_pacs, len(arguments.seeds)),
        ("imagenet", "ImageNet, 400 classes against 600", run_imagenet, 1),
    ):
        if name not in arguments.sets:
            continue
        results = run(data, arguments.methods, arguments.seeds)
        runs = len(next(iter(results.values())))
        print(f"\n**{title}, {runs} runs**\n")
        print_means(f"tuning-clip-{name}", results, arguments.csv)
        if BASE in results and runs > 1:
            print_differences(f"tuning-clip-{name}", results, group, arguments.csv)


if __name__ == "__main__":
    main()
