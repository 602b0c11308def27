"""Print the tables "Thresholds: what is kept of new images" of docs/results.md.

    python docs/tables/coverage.py [FOLDER] [--draws 1000]

Known images are drawn from a law that is known in full: a normal one, one with ties, a cloud of features, and, where
FOLDER holds CLIP features (see clip_data.py), the PACS pictures, drawn with replacement. So what a threshold keeps of
new images is computed, not estimated; only the mean over the draws has an error. For scores that keep the images
themselves (knn, mahalanobis) they are drawn without replacement, and the pictures not drawn are the new ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).parent))

from clip_data import ClipFeatures
from default_tests import clip_words

import deltaenergy as de
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.neglabel import MinedScore
from deltaenergy.thresholds import (
    benjamini_hochberg,
    class_thresholds,
    conformal_p_values,
    fit_count,
    threshold_of,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KEEP, CONFIDENCE, FDR, LEVEL = 0.95, 0.9, 0.1, 0.05
SIZES = (20, 100, 1000)
LEARNED = ("energy", "react", "multi-delta-energy", "guarded-delta-energy", "delta-energy+words", "knn", "mahalanobis")
# An image that is drawn twice would be its own neighbour, or draw a mean to itself.
KEEP_IMAGES = ("knn", "mahalanobis")


@dataclass
class Law:
    """A finite law: any of these known images, each as likely; and unknown ones, where there are some."""

    name: str
    classifier: de.Classifier
    inputs: ScoreInputs
    truth: Ints
    unknown: ScoreInputs | None = None
    words: torch.Tensor | None = None

    def scorer(self, spec: str) -> Scorer:
        """A score of these classes; one of words takes the words that are given."""
        score = de.make_score(spec)
        of_words = isinstance(score, MinedScore)
        bound = score.bind(self.classifier, state={"negatives": self.words} if of_words else None)
        return dataclasses.replace(bound, fitted=not score.needs_fit)

    def named(self, inputs: ScoreInputs | None = None) -> Ints:
        """The predicted classes."""
        return (inputs or self.inputs).similarities.argmax(dim=1).numpy()


def inputs_of(classifier: de.Classifier, features: npt.NDArray[np.float32]) -> ScoreInputs:
    """What scores look at."""
    return ScoreInputs(torch.from_numpy(np.asarray(classifier.similarities(features))), torch.from_numpy(features))


def cloud(count: int = 5_000, classes: int = 5, dimension: int = 16) -> Law:
    """Features around class vectors, one class further from its vector than the others."""
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


def summary(kept: list[float], small: list[float]) -> str:
    """Mean share kept, share of draws that keep enough, and P(p ≤ 0.05)."""
    shares = np.array(kept)
    enough = (shares >= KEEP - 1e-12).mean()
    return (
        f"{100 * shares.mean():.1f} | {100 * np.quantile(shares, 0.1):.1f} | {100 * enough:.1f} | {np.mean(small):.4f}"
    )


def plain_row(images: int, confidence: float | None, ties: bool, draws: int) -> str:
    """Uniform scores; with ties, rounded down to a twentieth."""
    rng = np.random.default_rng(images)
    kept, small = [], []
    for _ in range(draws):
        ascending = np.sort(rng.random(images))
        if ties:
            ascending = np.floor(20 * ascending) / 20
        kept.append(1 - threshold_of(ascending, KEEP, confidence)[0])  # the share of the law at or above it
        new = rng.random(1000)
        p = conformal_p_values(ascending, np.floor(20 * new) / 20 if ties else new)
        small.append(float((p <= LEVEL).mean()))
    return summary(kept, small)


def sizes(law: Law, spec: str) -> list[int]:
    """How many images to draw; drawn once, not more than half of all where that leaves too few to judge."""
    most = len(law.truth) // 2 if spec in KEEP_IMAGES else max(SIZES)
    return [images if images <= most else 500 for images in SIZES]


def drawn(law: Law, images: int, once: bool, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Rows of calibration images, and of the new ones to judge: the whole law, or, drawn `once`, what was not drawn."""
    if once:
        order = rng.permutation(len(law.truth))
        return order[:images], order[images:]
    return rng.integers(len(law.truth), size=images), np.arange(len(law.truth))


def fitted_row(law: Law, spec: str, images: int, split: bool, draws: int) -> str:
    """A score that learns from images: from those that set the threshold, or from others."""
    rng = np.random.default_rng(images)
    scorer = law.scorer(spec)
    kept, small = [], []
    fit = fit_count(images, KEEP, CONFIDENCE) if split else 0
    with torch.inference_mode():
        for _ in range(draws):
            rows, new = drawn(law, images, spec in KEEP_IMAGES, rng)
            learned_from = law.inputs.take((rows[:fit] if fit else rows).tolist())
            fitted = scorer.fit(learned_from) if scorer.score.needs_fit else scorer
            values = fitted(law.inputs).double().numpy()
            ascending = np.sort(values[rows[fit:]])
            kept.append(float((values[new] >= threshold_of(ascending, KEEP, CONFIDENCE)[0]).mean()))
            small.append(float((conformal_p_values(ascending, values[new]) <= LEVEL).mean()))
    return summary(kept, small)


def class_row(law: Law, spec: str, images: int, own: bool, draws: int) -> str:
    """What the class that fares worst keeps of its rightly named images, and of all its images; and of all classes."""
    rng = np.random.default_rng(images)
    scorer = law.scorer(spec)
    values, named = scorer(law.inputs).double().numpy(), law.named()
    classes = np.unique(law.truth)
    rightly, whole, unknown = [], [], []
    for _ in range(draws):
        rows = rng.integers(len(values), size=images)
        rows = rows[np.argsort(values[rows], kind="stable")]
        bound = threshold_of(values[rows], KEEP, CONFIDENCE)[0]
        bounds = np.full(len(law.classifier.classes), bound)
        if own:
            found = class_thresholds(values[rows], law.truth[rows], named[rows], KEEP, CONFIDENCE)
            bounds = found.bounds(bound, len(bounds))
        accepted = values >= bounds[named]
        rightly.append([accepted[(law.truth == k) & (named == k)].mean() for k in classes])
        whole.append([accepted[law.truth == k].mean() for k in classes] + [accepted.mean()])
        if law.unknown is not None:
            unknown.append((scorer(law.unknown).numpy() >= bounds[law.named(law.unknown)]).mean())
    sure = (np.array(rightly) >= KEEP).mean(axis=0).min()
    means = 100 * np.mean(whole, axis=0)
    return (
        f"{100 * np.mean(rightly, axis=0).min():.1f} | {100 * sure:.1f} | {means[:-1].min():.1f} | {means[-1]:.1f} | "
        + (f"{100 * np.mean(unknown):.1f}" if unknown else "—")
    )


def fdr_row(known: Floats, unknown: Floats, images: int, share: float, draws: int) -> str:
    """A folder of 200 images, some unknown: the share of known ones among those called unknown, and what is found."""
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
    return f"{100 * np.mean(wrong):.1f} | {100 * np.mean(found):.1f} | {100 * nothing / draws:.1f}"


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws = options.draws
    laws = [cloud()]
    clip = ClipFeatures(options.folder) if options.folder else None
    if clip is not None:
        (test,) = [one for one in clip.pacs_table() if one.name.endswith("DTD-10")]
        known, unknown = (inputs_of(test.classifier, rows) for rows in (test.known, test.unknown))
        words = clip_words(clip, test)
        laws.append(Law("PACS, CLIP", test.classifier, known, test.truth, unknown, words))

    print("**Scores that learn nothing**\n")
    head = "kept, mean % | one draw in ten keeps less than % | draws that keep 95 %, % | P(p ≤ 0.05)"
    print(f"| scores | images | rule | {head} |\n|---|---:|---|---:|---:|---:|---:|")
    for ties in (False, True):
        for images in SIZES:
            for rule, sure in (("in-sample", None), ("guarantee", CONFIDENCE)):
                if sure is None or images >= 45:
                    row = plain_row(images, sure, ties, draws)
                    print(
                        f"| {'twenty values, ties' if ties else 'continuous'} | {images:,} | {rule} | {row} |",
                        flush=True,
                    )

    print("\n**Scores that learn from images**: from those that set the threshold as well, or from others\n")
    print(f"| law | score | images | learned from | {head} |\n|---|---|---:|---|---:|---:|---:|---:|")
    for law in laws:
        for spec in LEARNED:
            score = de.make_score(spec)
            if isinstance(score, MinedScore) and law.words is None:
                continue
            for images in sizes(law, spec):
                for split in (False, True):
                    if split and (not score.needs_fit or not fit_count(images, KEEP, CONFIDENCE)):
                        continue
                    said = "nothing" if not score.needs_fit else "others" if split else "the same"
                    row = fitted_row(law, spec, images, split, draws)
                    print(f"| {law.name} | {spec} | {images:,} | {said} | {row} |", flush=True)

    print("\n**By class** (1,000 images; max-logit)\n")
    print(
        "| law | thresholds | worst class: kept of the rightly named, % | draws in which that is 95 %, % | "
        "worst class: kept of all its images, % | kept of all, % | unknown accepted, % |\n"
        "|---|---|---:|---:|---:|---:|---:|"
    )
    for law in laws:
        for own in (False, True):
            print(
                f"| {law.name} | {'by class' if own else 'one'} | {class_row(law, 'max-logit', 1000, own, draws)} |",
                flush=True,
            )

    print(f"\n**False discoveries** (a folder of 200 images, --fdr {FDR})\n")
    print(
        "| law | images | unknown in the folder | known among those called unknown, mean % | unknown found, % | "
        "nothing called, % |\n|---|---:|---:|---:|---:|---:|"
    )
    rng = np.random.default_rng(1)
    pairs = {"normal, 4 standard deviations apart": (rng.normal(size=100_000), rng.normal(-4, size=100_000))}
    if clip is not None:
        score = de.make_score("mcm").bind(test.classifier)
        pairs["PACS and DTD-10, CLIP, mcm"] = score(known).double().numpy(), score(unknown).double().numpy()
    for name, (ours, others) in pairs.items():
        for images in SIZES:
            for share in (0.5, 0.1, 0.02):
                print(
                    f"| {name} | {images:,} | {share:.0%} | {fdr_row(ours, others, images, share, draws)} |", flush=True
                )


if __name__ == "__main__":
    main()
