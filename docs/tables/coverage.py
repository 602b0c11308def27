"""Print the tables "Simulated thresholds" of docs/results/thresholds.md.

    python docs/tables/coverage.py [FOLDER] [--draws 1000] [--csv FOLDER]

Known images are drawn from a known distribution: uniform scores, scores with ties, a cloud of features, and the PACS
images if FOLDER contains CLIP features (see clip_data.py). The share of new images that a threshold keeps is computed,
not estimated; only the mean over the draws has an error. For cross-fitted scores, images are drawn without replacement,
and the images that were not drawn are the new images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from clip_data import ClipFeatures
from output import add_csv, print_table

import deltaenergy as de
from deltaenergy.detector.calibration import Calibration, class_groups
from deltaenergy.detector.guarantee import Guarantee
from deltaenergy.scores.base import FoldScorer, ScoreInputs
from deltaenergy.scoring import KnownImages, cross_fit, deal_folds
from deltaenergy.stats.thresholds import benjamini_hochberg, conformal_p_values, kept_at_least, rank_of, threshold_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KEEP, CONFIDENCE, FDR, LEVEL = 0.95, 0.9, 0.1, 0.05
SIZES = (20, 50, 100, 200, 500)
FITTED = ("multi-delta-energy", "react", "knn", "mahalanobis")


@dataclass
class Law:
    """A finite distribution: known images with equal probability, and optional unknown images."""

    name: str
    classifier: de.Classifier
    inputs: ScoreInputs
    truth: Ints
    unknown: ScoreInputs | None = None

    def named(self, inputs: ScoreInputs | None = None) -> Ints:
        """The predicted classes."""
        return (inputs or self.inputs).similarities.argmax(dim=1).numpy()


def inputs_of(classifier: de.Classifier, features: npt.NDArray[np.float32]) -> ScoreInputs:
    """The inputs of scores."""
    return ScoreInputs(torch.from_numpy(np.asarray(classifier.similarities(features))), torch.from_numpy(features))


def cloud(count: int = 5_000, classes: int = 5, dimension: int = 16) -> Law:
    """Features around class vectors, one class farther from its vector than the others."""
    rng = np.random.default_rng(0)
    vectors = unit(rng.normal(size=(classes, dimension)))
    truth = rng.integers(classes, size=count)
    spread = np.where(truth == 0, 0.35, 0.2)[:, None]
    features = unit(vectors[truth] + spread * rng.normal(size=(count, dimension)))
    classifier = de.PrecomputedClassifier(vectors, [f"class {k}" for k in range(classes)])
    return Law("cloud", classifier, inputs_of(classifier, features), truth)


def unit(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Rows of length one."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def plain_row(images: int, confidence: float | None, ties: bool, draws: int) -> list[object]:
    """Uniform scores; with ties, rounded down to a twentieth."""
    rng = np.random.default_rng(images)
    rank = max(1, rank_of(images, KEEP, confidence))
    sure = KEEP if confidence is not None else kept_at_least(images, rank)
    kept, small = [], []
    for _ in range(draws):
        ascending = np.sort(rng.random(images))
        if ties:
            ascending = np.floor(20 * ascending) / 20
        kept.append(1 - threshold_of(ascending, KEEP, confidence))  # the share of the distribution at or above it
        new = rng.random(1000)
        p = conformal_p_values(ascending, np.floor(20 * new) / 20 if ties else new)
        small.append(float((p <= LEVEL).mean()))
    shares = np.array(kept)
    holds = (shares >= sure - 1e-12).mean()
    shown = (1 - rank / (images + 1), shares.mean(), sure, holds)
    return [*(100 * float(share) for share in shown), f"{np.mean(small):.4f}"]


def fitted_row(law: Law, spec: str, images: int, draws: int) -> list[object]:
    """A score that learns from images, cross-fitted; and fitted and calibrated on the same images, to compare."""
    rng = np.random.default_rng(images)
    scorer = de.make_score(spec).bind(law.classifier)
    rank = rank_of(images, KEEP, None)
    kept, small, both = [], [], []
    folds = deal_folds([None] * images)
    with torch.inference_mode():
        for _ in range(draws):
            order = rng.permutation(len(law.truth))
            known, new = (law.inputs.take(rows.tolist()) for rows in (order[:images], order[images : images + 1000]))
            fitted = FoldScorer.of(cross_fit([scorer], KnownImages(known, [None] * images))[0].scorers)
            own = fitted.each(known).double().numpy()[np.arange(images), folds]
            ranked = np.argsort(own)
            found = Calibration(own[ranked], Guarantee(KEEP, None, images, folds=5), folds=folds[ranked])
            values = fitted.each(new).double().numpy()
            kept.append(1 - found.rejects(values).mean())
            small.append(float((found.p_values(values) <= LEVEL).mean()))
            seen = scorer.fit(known)
            bound = threshold_of(np.sort(seen(known).double().numpy()), KEEP, None)
            both.append((seen(new).double().numpy() >= bound).mean())
    nominal = 100 * (1 - rank / (images + 1))
    return [nominal, 100 * float(np.mean(kept)), f"{np.mean(small):.4f}", 100 * float(np.mean(both))]


def class_row(law: Law, spec: str, images: int, own: bool, draws: int) -> list[object]:
    """The shares kept in the worst class (of correctly classified images, of all), of all images, and of unknown."""
    rng = np.random.default_rng(images)
    scorer = de.make_score(spec).bind(law.classifier)
    values, named = scorer(law.inputs).double().numpy(), law.named()
    classes = np.unique(law.truth)
    correct, whole, unknown = [], [], []
    for _ in range(draws):
        rows = rng.integers(len(values), size=images)
        rows = rows[np.argsort(values[rows], kind="stable")]
        groups = class_groups(law.truth[rows], named[rows], KEEP, None) if own else None
        found = Calibration(values[rows], Guarantee(KEEP, None, images), groups=groups)
        accepted = ~found.rejects(values, named)
        correct.append([accepted[(law.truth == k) & (named == k)].mean() for k in classes])
        whole.append([accepted[law.truth == k].mean() for k in classes] + [accepted.mean()])
        if law.unknown is not None:
            strange = scorer(law.unknown).double().numpy()
            unknown.append(1 - found.rejects(strange, law.named(law.unknown)).mean())
    means = np.mean(whole, axis=0)
    shown = (np.mean(correct, axis=0).min(), means[:-1].min(), means[-1])
    return [*(100 * float(share) for share in shown), 100 * float(np.mean(unknown)) if unknown else "–"]


def fdr_row(known: Floats, unknown: Floats, images: int, share: float, draws: int) -> list[object]:
    """A folder of 200 images, some unknown: the share of known images among the rejected, and of unknown found."""
    rng = np.random.default_rng(images)
    count = round(200 * share)
    wrong, found, nothing = [], [], 0
    for _ in range(draws):
        ascending = np.sort(rng.choice(known, images))
        folder = np.concatenate([rng.choice(known, 200 - count), rng.choice(unknown, count)])
        called = benjamini_hochberg(conformal_p_values(ascending, folder), FDR)
        wrong.append(called[: 200 - count].sum() / max(1, called.sum()))
        found.append(called[200 - count :].mean())
        nothing += not called.any()
    return [100 * float(share) for share in (np.mean(wrong), np.mean(found), nothing / draws)]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    add_csv(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws = options.draws
    laws = [cloud()]
    clip = ClipFeatures(options.folder) if options.folder else None
    if clip is not None:
        (test,) = [one for one in clip.pacs_table() if one.name.endswith("DTD-10")]
        known, unknown = (inputs_of(test.classifier, rows) for rows in (test.known, test.unknown))
        laws.append(Law("PACS, CLIP", test.classifier, known, test.truth, unknown))

    print("**Scores that learn nothing**\n")
    columns = ["scores", "images", "rule", "nominal, %", "kept, mean %", "bound, %", "draws that keep the bound, %"]
    print_table("thresholds-simulated", [*columns, "P(p ≤ 0.05)"], plain_rows(draws), options.csv)

    print(
        "\n**Scores that learn from images**, cross-fitted in five folds; last, fitted and calibrated on all images\n"
    )
    columns = ["data", "score", "images", "nominal, %", "kept, mean %", "P(p ≤ 0.05)", "kept in-sample, %"]
    rows = (
        [law.name, spec, images, *fitted_row(law, spec, images, draws)]
        for law in laws
        for spec in FITTED
        for images in SIZES
        if images <= len(law.truth) // 2
    )
    print_table("thresholds-fitted", columns, rows, options.csv)

    print("\n**By class** (1,000 images; max-logit)\n")
    columns = ["data", "thresholds", "worst class, correctly classified: kept, %", "worst class: kept, %", "kept, %"]
    rows = (
        [law.name, "by class" if own else "one", *class_row(law, "max-logit", 1000, own, draws)]
        for law in laws
        for own in (False, True)
    )
    print_table("thresholds-by-class", [*columns, "unknown kept, %"], rows, options.csv)

    print(f"\n**False discoveries** (a folder of 200 images, --fdr {FDR})\n")
    rng = np.random.default_rng(1)
    pairs = {"normal, 4 standard deviations apart": (rng.normal(size=100_000), rng.normal(-4, size=100_000))}
    if clip is not None:
        score = de.make_score("mcm").bind(test.classifier)
        pairs["PACS and DTD-10, CLIP, mcm"] = score(known).double().numpy(), score(unknown).double().numpy()
    columns = ["data", "images", "unknown in the folder", "known among the rejected, mean %", "unknown found, %"]
    rows = (
        [name, images, f"{share:.0%}", *fdr_row(ours, others, images, share, draws)]
        for name, (ours, others) in pairs.items()
        for images in SIZES
        for share in (0.5, 0.1, 0.02)
    )
    print_table("thresholds-fdr", [*columns, "nothing rejected, %"], rows, options.csv)


def plain_rows(draws: int) -> Iterator[list[object]]:
    """Scores with and without ties, each number of images, each rule."""
    for ties in (False, True):
        for images in SIZES:
            for rule, sure in (("on average", None), ("with 90% confidence", CONFIDENCE)):
                if sure is None or images >= 45:
                    what = "twenty values, ties" if ties else "continuous"
                    yield [what, images, rule, *plain_row(images, sure, ties, draws)]


if __name__ == "__main__":
    main()
