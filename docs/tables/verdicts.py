"""Print the tables "Thresholds on real images" of docs/results/thresholds.md: what each rule keeps and rejects.

    python docs/tables/verdicts.py FOLDER [--images 20 50 100 200] [--draws 100] [--csv FOLDER]
    python docs/tables/verdicts.py --lite STORES [--csv FOLDER]

FOLDER contains `verdict_tests.npz` and `.json`: tests, each with classes, known and unknown images, near or far. n of
the known images are drawn to calibrate; the others and the unknown images are tested. Words are the names of ImageNet
without the classes and without the names of the unknown images. Shares are means over draws, then over the near and the
far tests of a family with equal weight, then over families. A family needs n + 80 known images. With --lite, the tests
use feature stores of the bundled model (see store_tests.py) and the words that the score chooses.

    balanced   ½ P(kept and classified correctly | known) + ½ P(rejected | unknown)
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from output import add_csv, print_table

import deltaenergy as de
from deltaenergy.stats.thresholds import conformal_p_values, count_at_most, rank_of, threshold_of

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
# The terms of a score for the known images that calibrate, for the others, and which others are kept.
Rule = Callable[[Floats, Floats, np.random.Generator], Rows]
KEEP, CONFIDENCE, FOLDS = 0.95, 0.9, 5
TAU, TEMPERATURE, WEIGHT = 0.1, 0.01, 8.0


def log_sum(values: Floats) -> Floats:
    """The log of Σ e^v of each row."""
    most = values.max(axis=1, keepdims=True)
    return np.asarray(most[:, 0] + np.log(np.exp(values - most).sum(axis=1)))


def terms_of(similarities: Floats, words: Floats) -> Floats:
    """Of each image ΔEnergy, the log-odds, and C: ΔEnergy's contrast, made independent of the number of classes."""
    odds = log_sum(similarities / TEMPERATURE) - log_sum(words / TEMPERATURE)
    names = np.concatenate([similarities, words], axis=1)
    first = similarities.max(axis=1)
    others = np.exp(names / TAU).sum(axis=1) - np.exp(first / TAU)
    contrast = first / TAU - np.log(others / (names.shape[1] - 1))
    energy = np.asarray(de.scores.delta_energy(similarities, tau=TAU, c=1), dtype=np.float64)
    return np.stack([energy, odds, contrast], axis=1)


def unfitted(terms: Floats) -> Floats:
    """U8 = odds + 8·C."""
    return np.asarray(terms[:, 1] + WEIGHT * terms[:, 2])


def fitted(terms: Floats, known: Floats) -> Floats:
    """z(ΔEnergy) + z(odds), standardised on the known images."""
    return np.asarray(((terms[:, :2] - known[:, :2].mean(axis=0)) / known[:, :2].std(axis=0)).sum(axis=1))


def half_split(known: Floats, new: Floats, rng: np.random.Generator) -> Rows:
    """The former rule: fitted on one half, the strict threshold on the other, in-sample if that is too small."""
    order = rng.permutation(len(known))
    half = len(known) - max(-(-len(known) // 2), 45)
    half = half if half >= 20 else len(known) // 2
    ascending = np.sort(fitted(known[order[half:]], known[order[:half]]))
    if rank_of(len(ascending), KEEP, CONFIDENCE):
        bound = threshold_of(ascending, KEEP, CONFIDENCE)
    else:
        bound = ascending[len(ascending) - int(np.ceil(round(KEEP * len(ascending), 9)))]
    return fitted(new, known[order[:half]]) >= bound


def cross_fitted(known: Floats, new: Floats, rng: np.random.Generator) -> Rows:
    """CV+ of the fitted score."""
    folds = rng.permutation(np.arange(len(known)) % FOLDS)
    own, values = np.empty(len(known)), np.empty((len(new), FOLDS))
    for k in range(FOLDS):
        own[folds == k] = fitted(known[folds == k], known[folds != k])
        values[:, k] = fitted(new, known[folds != k])
    order = np.argsort(own)
    counts = count_at_most(own[order], values, folds[order])
    assert np.allclose((1 + counts) / (len(known) + 1), conformal_p_values(own[order], values, folds[order]))
    return counts >= max(1, rank_of(len(known), KEEP, None))


def plain(keep: float, confidence: float | None) -> Rule:
    """The threshold of a score that learns nothing."""
    return lambda known, new, rng: unfitted(new) >= threshold_of(np.sort(unfitted(known)), keep, confidence)


def shrunk(known: Floats, new: Floats, rng: np.random.Generator) -> Rows:
    """Mean − 1.68·σ of few images; σ² = (n·var + 20·4.9²) / (n + 20), 4.9 the usual deviation on CLIP ViT-B/16."""
    values = unfitted(known)
    spread = np.sqrt((len(values) * values.var() + 20 * 4.9**2) / (len(values) + 20))
    return np.asarray(unfitted(new) >= values.mean() - 1.68 * spread)


RULES: dict[str, Rule] = {
    "before: fitted on half, 95% with 90% confidence": half_split,
    "fitted, CV+, 95% on average": cross_fitted,
    "odds + 8·C, 95% on average (the default)": plain(KEEP, None),
    "odds + 8·C, 95% with 90% confidence": plain(KEEP, CONFIDENCE),
    "odds + 8·C, 90% on average": plain(0.9, None),
}
# For fewer images than a guarantee needs.
FEW: dict[str, Rule] = {
    "odds + 8·C, the lowest score (the default)": plain(KEEP, None),
    "odds + 8·C, mean − 1.68·σ": shrunk,
}


class Case(NamedTuple):
    """One test: terms of the known, then of the unknown images; which known images are classified correctly."""

    family: str
    kind: str
    terms: Floats
    right: Rows


def lite_cases(stores: Path) -> Iterator[Case]:
    """Tests on the bundled model: PACS photos, pets, and halves of the classes of Caltech101 and of the pets."""
    from store_tests import NO_CLASS, OVERLAPS, Stores

    from deltaenergy.scores.base import ScoreInputs

    held = Stores(stores, de.load_model("lite"))
    photos = np.array([domain == "photo" for domain in held.domains("pacs")])
    tests = [(f"PACS/{name}", "far", held.pair("pacs", name)) for name in ("dtd10", "food3", "intel_scenes")]
    without = (NO_CLASS | OVERLAPS).__contains__
    tests.append(
        ("PACS/caltech101", "far", held.pair("pacs", "caltech101", unknown_classes=lambda one: not without(one)))
    )
    tests += [(f"pets/{name}", "far", held.pair("oxford_pets", name)) for name in ("dtd10", "food3", "intel_scenes")]
    tests += [("pets/halves", "near", one) for one in held.halves("oxford_pets")]
    tests += [("Caltech/halves", "near", one) for one in held.halves("caltech101", NO_CLASS)]
    tests.append(("Caltech/dtd10", "far", held.pair("caltech101", "dtd10", lambda one: one not in NO_CLASS)))
    for name, kind, test in tests:
        family = name.split("/")[0]
        known, truth = (part[photos] if family == "PACS" else part for part in (test.known, test.truth))
        rows = torch.from_numpy(np.concatenate([known, test.unknown]))
        scorer = de.make_score("delta-energy+words").bind(test.classifier)
        similarities = test.classifier.similarities_of_features(rows)
        words = scorer.compared_features(ScoreInputs(similarities, rows)) @ scorer.state["negatives"].T
        cosines = similarities.double().numpy()
        right = cosines[: len(known)].argmax(axis=1) == truth
        yield Case(family, kind, terms_of(cosines, words.double().numpy()), right)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lite", action="store_true")
    parser.add_argument("--images", type=int, nargs="+", default=[5, 10, 20, 50, 100, 200])
    parser.add_argument("--draws", type=int, default=100)
    add_csv(parser)
    options = parser.parse_args()
    cases = list(lite_cases(options.folder)) if options.lite else clip_cases(options.folder)
    name = f"verdicts-{'lite' if options.lite else 'clip'}"
    columns = ["n", "families", "rule", "kept, %", "sd over draws", "near rejected", "far rejected", "balanced"]
    print_table(name, columns, rows_of(cases, options.images, options.draws), options.csv)


def clip_cases(folder: Path) -> list[Case]:
    """The tests on CLIP features."""
    saved = np.load(folder / "verdict_tests.npz")
    features = saved["features"].astype(np.float64)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    texts = [np.load(folder / f"{name}.npy") for name in ("imagenet_text_a_photo_of_a", "pacs_text")]
    vectors = np.concatenate(texts).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cases = []
    for one in json.loads((folder / "verdict_tests.json").read_text(encoding="utf-8"))["tests"]:
        # PACS's seven names are not names of ImageNet: their kinds (breeds, guitars) would have to be left out by hand.
        if one["family"] == "PACS":
            continue
        words = np.setdiff1d(np.arange(1000), [*one["classes"], *one["names_of_unknown"]])
        rows, count = np.array(one["known"] + one["unknown"]), len(one["known"])
        similarities = features[rows] @ vectors[one["classes"]].T
        right = np.array(one["classes"])[similarities[:count].argmax(axis=1)] == saved["true_class"][rows[:count]]
        cases.append(Case(one["family"], one["kind"], terms_of(similarities, features[rows] @ vectors[words].T), right))
    return cases


def rows_of(cases: list[Case], sizes: list[int], repeats: int) -> Iterator[list[object]]:
    """The rows of the table."""
    for images in sizes:
        rules = RULES if rank_of(images, KEEP, None) else FEW
        found = {name: defaultdict(lambda: defaultdict(list)) for name in rules}
        for family, kind, terms, right in cases:
            count = len(right)
            if count < images + 80:
                continue
            for name, rule in rules.items():
                rng = np.random.default_rng(0)
                draws = []
                for _ in range(repeats):
                    order = rng.permutation(count)
                    new = np.concatenate([order[images:], np.arange(count, len(terms))])
                    kept = rule(terms[order[:images]], terms[new], rng)
                    known = kept[: count - images]
                    draws.append([known.mean(), (known & right[order[images:]]).mean(), 1 - kept[len(known) :].mean()])
                found[name][family][kind].append(np.array(draws))
        for name, families in found.items():
            shown = []
            for kinds in families.values():
                means = {kind: np.mean([one.mean(axis=0) for one in draws], axis=0) for kind, draws in kinds.items()}
                near, far = (means[kind][2] if kind in means else np.nan for kind in ("near", "far"))
                spread = np.mean([draws[:, 0].std() for kind in kinds.values() for draws in kind])
                balanced = np.mean([(one[1] + one[2]) / 2 for one in means.values()])
                shown.append([np.mean([one[0] for one in means.values()]), spread, near, far, balanced])
            yield [images, len(families), name, *(100 * np.nanmean(shown, axis=0)).tolist()]


if __name__ == "__main__":
    main()
