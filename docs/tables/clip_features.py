"""Print the tables of docs/results/scores-on-clip.md.

    python docs/tables/clip_features.py FOLDER [--csv FOLDER]            # every score that needs only features
    python docs/tables/clip_features.py FOLDER --choose [--csv FOLDER]   # `choose` against every fixed score

FOLDER contains real CLIP features (see clip_data.py). Scores that need patches, pixels or a trained "no" encoder
(gl-mcm, odin, clipn) cannot run on stored features. Scores with words use the names of ImageNet that are not classes of
the test (see default_tests.py); where fewer than a hundred are left, the cell is –.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest
from default_tests import clip_words
from output import add_csv, print_table

from deltaenergy import make_score
from deltaenergy.core.needs import Need
from deltaenergy.evaluation.choose import CANDIDATES, choose_from_features
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.stats.metrics import RankedScores

SCORES = (
    "msp",
    "mcm",
    "max-logit",
    "energy",
    "entropy",
    "gen",
    "logit-gap",
    "react",
    "odin(epsilon=0)",
    "delta-energy",
    "delta-energy(tau=0.02)",
    "delta-energy(tau=0.1,c=1)",
    "delta-energy(tau=1,c=1)",
    "delta-energy(tau=1)",
    "delta-energy:robust",
    "multi-delta-energy",
    "neglabel:quick",
    "delta-energy+words",
    "knn",
    "mahalanobis",
)
# These store the images they are fitted on, or a matrix of them: they are tested on other images.
KEEP_IMAGES = ("knn", "mahalanobis")
NOT_RUN = (np.nan, np.nan)


def judge(
    test: OpenTest, spec: str, rows: np.ndarray | None = None, words: torch.Tensor | None = None
) -> tuple[float, float]:
    """AUROC and FPR95 in percent on the known images in `rows`; fitted scores are fitted on the other known images.

    Without `rows`, all known images are used for both: a score learns one to six numbers from them. Scores that store
    images are then fitted on the half marked `to_choose` and tested on the other half. A score with words is not run
    without `words` or a text encoder.
    """
    known, unknown = torch.from_numpy(test.known), torch.from_numpy(test.unknown)
    score = make_score(spec)
    of_words = Need.TEXTS in score.needs
    if of_words and words is None and test.classifier.model.text is None:
        return NOT_RUN
    if spec in KEEP_IMAGES and rows is None:
        rows = ~test.to_choose
    bound = score.bind(test.classifier, state={"negatives": words} if of_words and words is not None else None)
    scorer = dataclasses.replace(bound, fitted=not score.needs_fit)

    def inputs(features: torch.Tensor) -> ScoreInputs:
        return ScoreInputs(test.classifier.similarities_of_features(features), features)

    if not scorer.fitted:
        scorer = scorer.fit(inputs(known if rows is None else known[torch.from_numpy(~rows)]))
    judged = known if rows is None else known[torch.from_numpy(rows)]
    ranked = RankedScores(scorer(inputs(judged)), scorer(inputs(unknown)))
    return 100 * ranked.auroc(), 100 * ranked.fpr()


def print_scores(name: str, columns: Sequence[str], results: dict[str, np.ndarray], folder: Path | None) -> None:
    """AUROC / FPR95 of each score; the best AUROC of each column is bold."""
    best = np.nanmax([np.round(values[:, 0], 1) for values in results.values()], axis=0)

    def cell(auroc: float, fpr: float, top: float) -> str:
        if np.isnan(auroc):
            return "–"
        return f"**{auroc:.1f}** / {fpr:.1f}" if round(auroc, 1) >= top else f"{auroc:.1f} / {fpr:.1f}"

    print(f"\n**{name}** (AUROC / FPR95)\n")
    rows = ([spec, *(cell(*pair, top) for pair, top in zip(values, best))] for spec, values in results.items())
    print_table(name, ["score", *columns], rows, folder)


def judge_all(data: ClipFeatures, tests: Sequence[OpenTest]) -> dict[str, np.ndarray]:
    """Every score on every test, with the words of the test."""
    words = [clip_words(data, test) for test in tests]
    return {spec: np.array([judge(test, spec, words=some) for test, some in zip(tests, words)]) for spec in SCORES}


def tables(data: ClipFeatures, folder: Path | None) -> None:
    """Every score on the published tests with both kinds of prompt, on PACS, and on the held-out tests."""
    means: dict[str, list[np.ndarray]] = {spec: [] for spec in SCORES}
    for text in ("photo", "descriptions"):
        tests = data.published(text)
        results = judge_all(data, tests)
        for spec in SCORES:
            # One column for the three seeds, then the others.
            seeds = results[spec][:3].mean(axis=0, keepdims=True)
            means[spec].append(results[spec])
            results[spec] = np.concatenate([seeds, results[spec][3:], results[spec].mean(axis=0, keepdims=True)])
        columns = ["Setup-I, seeds 1–3", *(test.name for test in tests[3:]), "mean of 8"]
        print_scores(f"clip-published-{text}", columns, results, folder)
    tests = data.pacs_table()
    results = judge_all(data, tests)
    all_eleven = {spec: np.concatenate([means[spec][0], results[spec]]).mean(axis=0, keepdims=True) for spec in SCORES}
    shown = {spec: np.concatenate([results[spec], all_eleven[spec]]) for spec in SCORES}
    print_scores("clip-pacs", [*(test.name for test in tests), "mean of 8 + 3"], shown, folder)
    accuracy = 100 * np.mean(tests[0].classifier.similarities(tests[0].known).argmax(axis=1) == tests[0].truth)
    print(f"\nZero-shot accuracy on PACS: {accuracy:.1f}%.")
    for text in ("photo", "descriptions"):
        tests, left_out = data.fresh(text), data.pacs_left_out()
        results, without_one = judge_all(data, tests), judge_all(data, left_out)
        for spec, values in results.items():
            rows = np.concatenate([values, without_one[spec].mean(axis=0, keepdims=True)])
            results[spec] = np.concatenate([rows, rows.mean(axis=0, keepdims=True)])
        columns = [*(test.name for test in tests), "PACS, a class out", "mean"]
        print_scores(f"clip-heldout-{text}", columns, results, folder)
        print_leads(f"clip-heldout-{text}-vs-mcm", {spec: values[:-1] for spec, values in results.items()}, folder)


def mean_and_interval(lead: np.ndarray, digits: int) -> str:
    """The mean with its 95% interval, the tests resampled."""
    pick = np.random.default_rng(0).integers(len(lead), size=(10_000, len(lead)))
    low, high = np.quantile(lead[pick].mean(axis=1), [0.025, 0.975])
    return f"{lead.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def print_leads(name: str, results: dict[str, np.ndarray], folder: Path | None) -> None:
    """AUROC minus that of mcm, the mean over the tests on which a score was run."""

    def rows() -> Iterator[list[str]]:
        for spec, values in results.items():
            if spec != "mcm":
                lead = (values - results["mcm"])[~np.isnan(values[:, 0]), 0]
                yield [spec, mean_and_interval(lead, 2), f"{(lead > 0).sum()} of {len(lead)}"]

    print()
    print_table(name, ["score", "AUROC above mcm (95% interval)", "tests won"], rows(), folder)


def compare_choose(data: ClipFeatures, folds: int, seeds: int, folder: Path | None) -> None:
    """`choose` on one half of the known images, tested on the other half, against every fixed candidate."""
    groups = {
        "published": [*data.published("photo"), *data.published("descriptions"), *data.pacs_table()],
        "heldout": [*data.fresh("photo"), *data.fresh("descriptions"), *data.pacs_left_out()],
    }
    for group, tests in groups.items():
        measured = {spec: np.array([judge(test, spec, ~test.to_choose) for test in tests]) for spec in CANDIDATES}
        picks = [[chosen(test, folds, seed) for seed in range(seeds)] for test in tests]
        # Every seed counts as a separate test; a fixed score has the same value in each.
        rows = {name: np.repeat(values[:, None], seeds, axis=1) for name, values in measured.items()}
        rows["choose"] = np.array([[measured[spec][i] for spec in specs] for i, specs in enumerate(picks)])
        top = np.max([values[..., 0] for values in rows.values()], axis=0)
        lines = []
        for name, values in sorted(rows.items(), key=lambda row: -row[1][..., 0].mean()):
            auroc, fpr95 = values[..., 0], values[..., 1]
            behind = (top - auroc).max(axis=1)
            worst = f"{behind.max():.1f} ({tests[int(behind.argmax())].name})"
            lines.append([name, f"{auroc.mean():.2f}", f"{fpr95.mean():.1f}", f"{auroc.min():.1f}", worst])
        print(f"\n**{len(tests)} {group} tests**, choose with {seeds} seeds and {folds} folds\n")
        columns = ["score", "mean AUROC", "mean FPR95", "lowest AUROC", "largest gap to the best score of a test"]
        print_table(f"clip-choose-{group}", columns, lines, folder)
        flat = [spec for specs in picks for spec in specs]
        picked = sorted(set(flat), key=flat.count, reverse=True)
        print("\nChosen: " + ", ".join(f"{spec} {flat.count(spec)}×" for spec in picked) + ".")


def chosen(test: OpenTest, folds: int, seed: int) -> str:
    """The score that `choose` picks on the half marked `to_choose`."""
    features, truth = torch.from_numpy(test.known[test.to_choose]), test.truth[test.to_choose]
    return choose_from_features(test.classifier, features, truth, CANDIDATES, folds=folds, seed=seed, resamples=1).best


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the features")
    parser.add_argument("--choose", action="store_true", help="compare `choose` with every fixed score instead")
    parser.add_argument("--folds", type=int, default=5, help="number of folds into which choose splits the classes")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits")
    add_csv(parser)
    arguments = parser.parse_args()
    if not (arguments.folder / "images.npy").is_file():
        parser.error(f"{arguments.folder} has no images.npy")
    data = ClipFeatures(arguments.folder)
    if arguments.choose:
        compare_choose(data, arguments.folds, arguments.seeds, arguments.csv)
    else:
        tables(data, arguments.csv)


if __name__ == "__main__":
    main()
