"""Print the tables "Real CLIP features" of docs/results.md.

    python docs/tables/clip_features.py FOLDER            # every feature-space score on every test
    python docs/tables/clip_features.py FOLDER --choose   # does `choose` beat every fixed score?

FOLDER holds real CLIP features (see clip_data.py). Scores that need patches, pixels or a "no" tower (gl-mcm, odin,
clipn) cannot run on features alone and are not in the tables. Scores of words have ImageNet's names that are no class
of the test, where a hundred or more are left (see default_tests.py); else the cell says –.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest
from default_tests import clip_words

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
# They keep the pictures themselves, or a matrix of them: those that they are fitted on cannot judge them.
KEEP_IMAGES = ("knn", "mahalanobis")
NOT_RUN = (np.nan, np.nan)


def judge(
    test: OpenTest, spec: str, rows: np.ndarray | None = None, words: torch.Tensor | None = None
) -> tuple[float, float]:
    """AUROC and FPR95 in percent, fitted scores fitted on the known pictures that are not in `rows`.

    Without `rows` all known pictures are judged, and fitted on: they teach a score one to six numbers. Scores that keep
    pictures are fitted on those that are to choose with, and judged on the others. A score of words that has neither
    `words` nor a text tower is not run.
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


def print_table(title: str, columns: Sequence[str], results: dict[str, np.ndarray]) -> None:
    """A Markdown table of AUROC / FPR95; the best AUROC of each column is bold, and – is what was not run."""
    best = np.nanmax([np.round(values[:, 0], 1) for values in results.values()], axis=0)
    print(f"\n**{title}** (AUROC / FPR95)\n")
    print("| score | " + " | ".join(columns) + " |\n|---" + "|---:" * len(columns) + "|")
    for name, values in results.items():
        cells = [
            "–"
            if np.isnan(auroc)
            else f"**{auroc:.1f}** / {fpr:.1f}"
            if round(auroc, 1) >= top
            else f"{auroc:.1f} / {fpr:.1f}"
            for (auroc, fpr), top in zip(values, best)
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


def judge_all(data: ClipFeatures, tests: Sequence[OpenTest]) -> dict[str, np.ndarray]:
    """Every score on every test, with the words that are left for it."""
    words = [clip_words(data, test) for test in tests]
    return {spec: np.array([judge(test, spec, words=some) for test, some in zip(tests, words)]) for spec in SCORES}


def tables(data: ClipFeatures) -> None:
    """Every score on the published tests with both texts, on PACS, and on tests that chose no setting."""
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
        print_table(f"Published splits, text `{text}`", columns, results)
    tests = data.pacs_table()
    results = judge_all(data, tests)
    all_eleven = {spec: np.concatenate([means[spec][0], results[spec]]).mean(axis=0, keepdims=True) for spec in SCORES}
    shown = {spec: np.concatenate([results[spec], all_eleven[spec]]) for spec in SCORES}
    print_table("PACS, 7 names, all domains", [*(test.name for test in tests), "mean of 8 + 3"], shown)
    accuracy = 100 * np.mean(tests[0].classifier.similarities(tests[0].known).argmax(axis=1) == tests[0].truth)
    print(f"\nZero-shot accuracy on PACS: {accuracy:.1f} %.")
    for text in ("photo", "descriptions"):
        tests, left_out = data.fresh(text), data.pacs_left_out()
        results, without_one = judge_all(data, tests), judge_all(data, left_out)
        for spec, values in results.items():
            rows = np.concatenate([values, without_one[spec].mean(axis=0, keepdims=True)])
            results[spec] = np.concatenate([rows, rows.mean(axis=0, keepdims=True)])
        columns = [*(test.name for test in tests), "PACS, a class out", "mean"]
        print_table(f"Tests that took no part in choosing any setting, text `{text}`", columns, results)
        lead_over({spec: values[:-1] for spec, values in results.items()}, "mcm")


def lead_over(results: dict[str, np.ndarray], rival: str) -> None:
    """Mean AUROC minus the rival's over the tests that a score was run on, with an interval from resampling them."""
    print(f"\nAUROC above {rival}, mean over these tests (95 % interval, tests resampled; tests won):\n")
    for name, values in results.items():
        if name != rival:
            lead = (values - results[rival])[~np.isnan(values[:, 0]), 0]
            pick = np.random.default_rng(0).integers(len(lead), size=(10_000, len(lead)))
            low, high = np.quantile(lead[pick].mean(axis=1), [0.025, 0.975])
            print(f"- {name}: {lead.mean():+.2f} ({low:+.2f} to {high:+.2f}; {(lead > 0).sum()} of {len(lead)})")


def compare_choose(data: ClipFeatures, folds: int, seeds: int) -> None:
    """Choose on one half of the known pictures, judge on the other; against every fixed candidate."""
    groups = {
        "published": [*data.published("photo"), *data.published("descriptions"), *data.pacs_table()],
        "fresh": [*data.fresh("photo"), *data.fresh("descriptions"), *data.pacs_left_out()],
    }
    for group, tests in groups.items():
        measured = {spec: np.array([judge(test, spec, ~test.to_choose) for test in tests]) for spec in CANDIDATES}
        picks = [[chosen(test, folds, seed) for seed in range(seeds)] for test in tests]
        # Every deal of classes counts as a test of its own; a fixed score is the same in each.
        rows = {name: np.repeat(values[:, None], seeds, axis=1) for name, values in measured.items()}
        rows["choose"] = np.array([[measured[spec][i] for spec in specs] for i, specs in enumerate(picks)])
        top = np.max([values[..., 0] for values in rows.values()], axis=0)
        print(f"\n**{len(tests)} {group} tests**, choose with {seeds} deals into {folds} folds\n")
        print("| score | mean AUROC | mean FPR95 | lowest AUROC | furthest behind the best of its test |")
        print("|---|---:|---:|---:|---:|")
        for name, values in sorted(rows.items(), key=lambda row: -row[1][..., 0].mean()):
            auroc, fpr95 = values[..., 0], values[..., 1]
            behind = (top - auroc).max(axis=1)
            shown = f"**{name}**" if name == "choose" else name
            print(
                f"| {shown} | {auroc.mean():.2f} | {fpr95.mean():.1f} | {auroc.min():.1f} | "
                f"{behind.max():.1f} ({tests[int(behind.argmax())].name}) |"
            )
        flat = [spec for specs in picks for spec in specs]
        picked = sorted(set(flat), key=flat.count, reverse=True)
        print("\nChosen: " + ", ".join(f"{spec} {flat.count(spec)}×" for spec in picked) + ".")


def chosen(test: OpenTest, folds: int, seed: int) -> str:
    """What `choose` takes when it sees the pictures that are for choosing."""
    features, truth = torch.from_numpy(test.known[test.to_choose]), test.truth[test.to_choose]
    return choose_from_features(test.classifier, features, truth, CANDIDATES, folds=folds, seed=seed, resamples=1).best


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the features")
    parser.add_argument("--choose", action="store_true", help="compare `choose` with every fixed score instead")
    parser.add_argument("--folds", type=int, default=5, help="parts that choose deals the classes into")
    parser.add_argument("--seeds", type=int, default=5, help="how many deals")
    arguments = parser.parse_args()
    if not (arguments.folder / "images.npy").is_file():
        parser.error(f"{arguments.folder} holds no images.npy")
    data = ClipFeatures(arguments.folder)
    if arguments.choose:
        compare_choose(data, arguments.folds, arguments.seeds)
    else:
        tables(data)


if __name__ == "__main__":
    main()
