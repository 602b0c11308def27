"""Print the table "The default score, unfitted" of docs/results.md: AUROC and FPR95 before and after.

    python docs/tables/unfitted_default.py FEATURES STORES

FEATURES holds real CLIP features and `verdict_tests` (see clip_data.py), STORES feature stores of the bundled model
(see store_tests.py). On CLIP features the words are ImageNet's names without the classes, their synonyms and kinds, and
the names of the unknown images. "fitted" is the default of before: z(ΔE(0.1, 1)) + z(log-odds) with the far half of the
words, standardised on at most 200 known images, every second, which are not judged. On `lite` the scores are bound to
the model as a user's are.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures
from store_tests import NO_CLASS, OVERLAPS, Stores

from deltaenergy import load_model, make_score
from deltaenergy.scores import delta_energy, delta_energy_words, energy, max_logit, mcm, multi_delta_energy, neglabel
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.negatives.competing import TOO_CLOSE, imagenet_meanings
from deltaenergy.scores.negatives.mining import MiningSettings, select
from deltaenergy.scores.negatives.taxonomy import own_words
from deltaenergy.stats.metrics import RankedScores

Floats = np.ndarray
# AUROC and FPR95 of each score.
Figures = dict[str, tuple[float, float]]
NEW, OLD = "delta-energy+words", "fitted"
MAX_FITTED = 200


def imagenet_names() -> list[str]:
    """The 1,000 names in canonical order, as the package has them."""
    text = resources.files("deltaenergy.data").joinpath("names/imagenet.csv").read_text("utf-8")
    return [row["name"] for row in csv.DictReader(text.splitlines())]


def words_for(
    texts: Floats, names: list[str], class_texts: Floats, class_names: list[str], unknown: list[int]
) -> Floats:
    """The text vectors of ImageNet's names that compete with the classes; `unknown` are left out too."""
    own = own_words(names, class_names, imagenet_meanings())
    close = (texts @ class_texts.T).max(axis=1) > TOO_CLOSE
    left = [i for i, name in enumerate(names) if name not in own and not close[i] and i not in set(unknown)]
    return texts[left]


def scores_of(s: Floats, w: Floats, far: Floats, to_fit: Floats) -> dict[str, Floats]:
    """All scores of images with cosines `s` with classes, `w` with words and `far` with the far half of them."""

    def standard(values: Floats) -> Floats:
        return (values - values[to_fit].mean()) / values[to_fit].std()

    three = [delta_energy(s, *one) for one in ((0.01, 2), (0.1, 1), (1.0, 1))]
    means, deviations = [v[to_fit].mean() for v in three], [v[to_fit].std() for v in three]
    found = {
        NEW: delta_energy_words(s, w),
        **{f"{NEW}(weight={b})": delta_energy_words(s, w, weight=b) for b in (0, 4, 12)},
        **{f"{NEW}(tau={tau})": delta_energy_words(s, w, tau=tau) for tau in (0.05, 0.2)},
        OLD: standard(delta_energy(s, 0.1, 1)) + standard(neglabel(s, far, 1, log_odds=True)),
        "neglabel:quick": neglabel(s, far, 1, log_odds=True),
        "mcm": mcm(s),
        "max-logit": max_logit(s),
        "energy": energy(s),
    }
    if s.shape[1] > 1:
        found["multi-delta-energy"] = multi_delta_energy(s, means, deviations)
    return found


def judge(known: Floats, unknown: Floats, class_texts: Floats, words: Floats) -> Figures:
    """AUROC and FPR95 of every score; every second known image, at most 200, may be fitted on and is not judged."""
    features = np.concatenate([known, unknown]).astype(np.float64)
    rows = np.arange(0, len(known), 2)
    to_fit = rows[np.linspace(0, len(rows) - 1, min(MAX_FITTED, len(rows))).astype(int)]
    half = torch.from_numpy(words)
    far = words[select(half, torch.from_numpy(class_texts), len(words), MiningSettings(keep=0.5)).numpy()]
    s, w = features @ class_texts.T.astype(np.float64), features @ words.T.astype(np.float64)
    found = scores_of(s, w, features @ far.T.astype(np.float64), to_fit)
    judged = np.setdiff1d(np.arange(len(known)), to_fit)
    ranked = {name: RankedScores(values[judged], values[len(known) :]) for name, values in found.items()}
    return {name: (100 * one.auroc(), 100 * one.fpr()) for name, one in ranked.items()}


def verdict_tests(folder: Path, data: ClipFeatures) -> tuple[list[Figures], list[str], list[str]]:
    """The figures of the 48 tests, their kinds and their families."""
    with np.load(folder / "verdict_tests.npz", allow_pickle=False) as stored:
        features = stored["features"].astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    tests = json.loads((folder / "verdict_tests.json").read_text(encoding="utf-8"))["tests"]
    texts = np.concatenate([data.texts("photo"), data.other("pacs_text")])
    names = imagenet_names()
    all_names = [*names, *data.files("pacs_text")]
    found = []
    for test in tests:
        classes = test["classes"]
        words = words_for(
            texts[:1000], names, texts[classes], [all_names[k] for k in classes], test["names_of_unknown"]
        )
        found.append(judge(features[test["known"]], features[test["unknown"]], texts[classes], words))
    return found, [test["kind"] for test in tests], [test["family"] for test in tests]


def development(data: ClipFeatures) -> list[Figures]:
    """PACS's classes against the other sets of images, on CLIP features."""
    names, _, features = data.pacs_labels()
    texts = data.other("pacs_text")
    words = words_for(data.texts("photo"), imagenet_names(), texts, names, [])
    return [judge(features, unknown, texts, words) for unknown in data.pacs_open_sets().values()]


def lite_tests(stores: Stores) -> dict[str, Figures]:
    """PACS photographs against other sets, with the scores as a user gets them."""
    is_photo = np.array([domain == "photo" for domain in stores.domains("pacs")])
    sets: dict[str, Callable[[str], bool]] = {
        "dtd10": lambda _: True,
        "food3": lambda _: True,
        "intel_scenes": lambda _: True,
        "caltech101": lambda label: label not in OVERLAPS | NO_CLASS,
    }
    found = {}
    for name, wanted in sets.items():
        test = stores.pair("pacs", name, unknown_classes=wanted)
        known, values = test.known[is_photo], {}
        for spec in (
            NEW,
            f"{NEW}(weight=4)",
            f"{NEW}(weight=12)",
            f"{NEW}(tau=0.05)",
            f"{NEW}(tau=0.2)",
            "neglabel:quick",
            "mcm",
            "max-logit",
            "energy",
        ):
            scorer = make_score(spec).bind(test.classifier)
            known_values, unknown_values = (
                scorer(ScoreInputs(test.classifier.similarities_of_features(rows), rows)).double().numpy()
                for rows in (torch.from_numpy(np.array(part)) for part in (known, test.unknown))
            )
            ranked = RankedScores(known_values, unknown_values)
            values[spec] = (100 * ranked.auroc(), 100 * ranked.fpr())
        found[name] = values
    return found


def print_tests(found: list[Figures], kinds: list[str], families: list[str]) -> None:
    """Means by kind, and differences with intervals from resampling the families."""
    print("| score | all | near | far |\n|---|---:|---:|---:|")
    common = [name for name in found[0] if all(name in one for one in found)]
    for name in [*common, *(set(found[0]) - set(common))]:
        cells = []
        for kind in ("all", "near", "far"):
            rows = [one[name] for one, own in zip(found, kinds, strict=True) if kind in ("all", own) and name in one]
            auroc, fpr = np.mean(rows, axis=0)
            cells.append(f"{auroc:.2f} / {fpr:.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    by_family: dict[str, list[int]] = defaultdict(list)
    for i, family in enumerate(families):
        by_family[family].append(i)
    groups = list(by_family.values())
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(groups), size=len(groups)) for _ in range(2000)]
    for other in (OLD, "mcm", "max-logit", "energy"):
        for column, what in enumerate(("AUROC", "FPR95")):
            difference = np.array([one[NEW][column] - one[other][column] for one in found])
            means = [np.concatenate([difference[groups[g]] for g in draw]).mean() for draw in draws]
            low, high = np.quantile(means, [0.025, 0.975])
            print(f"- {NEW} above {other}, {what}: {difference.mean():+.2f} ({low:+.2f} to {high:+.2f})")
    print("\n| family | " + " | ".join((NEW, OLD, "mcm", "max-logit")) + " |\n|---" + "|---:" * 4 + "|")
    for family, rows in by_family.items():
        cells = [np.mean([found[i][name] for i in rows], axis=0) for name in (NEW, OLD, "mcm", "max-logit")]
        print(f"| {family} | " + " | ".join(f"{auroc:.2f} / {fpr:.1f}" for auroc, fpr in cells) + " |")


def print_sets(title: str, found: dict[str, Figures]) -> None:
    """One row for each score, one column for each set."""
    print(f"\n{title}\n\n| score | " + " | ".join(found) + " |\n|---" + "|---:" * len(found) + "|")
    for name in next(iter(found.values())):
        print(f"| {name} | " + " | ".join(f"{one[name][0]:.1f} / {one[name][1]:.1f}" for one in found.values()) + " |")


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, help="folder with CLIP features")
    parser.add_argument("stores", type=Path, help="folder with feature stores of the bundled model")
    arguments = parser.parse_args()
    data = ClipFeatures(arguments.features)
    print_tests(*verdict_tests(arguments.features, data))
    print_sets("CLIP, PACS's classes against", dict(zip(data.pacs_open_sets(), development(data), strict=True)))
    print_sets("`lite`, PACS photographs against", lite_tests(Stores(arguments.stores, load_model("lite"))))


if __name__ == "__main__":
    main()
