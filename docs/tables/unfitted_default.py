"""Print the tables "The default score" of docs/results/default-score.md.

    python docs/tables/unfitted_default.py FEATURES STORES [--csv FOLDER]

FEATURES contains real CLIP features and `verdict_tests` (see clip_data.py), STORES feature stores of the bundled model
(see store_tests.py). On CLIP features the words are the names of ImageNet without the classes, their synonyms and
kinds, and the names of the unknown images. "fitted" is the former default: z(ΔE(0.1, 1)) + z(log-odds) with the far
half of the words, standardised on at most 200 known images (every second one), which are not tested. On `lite` the
scores choose their words themselves.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures
from output import add_csv, print_table
from store_tests import NO_CLASS, OVERLAPS, Stores

from deltaenergy import load_model, make_score
from deltaenergy.data.catalogue.class_names import name_list
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


def words_for(
    texts: Floats, names: list[str], class_texts: Floats, class_names: list[str], unknown: list[int]
) -> Floats:
    """The text vectors of the names of ImageNet that compete with the classes, without those in `unknown`."""
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
    """AUROC and FPR95 of every score; every second known image, at most 200, is used for fitting and not tested."""
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
    """The results of the 48 tests, their kinds and their families."""
    with np.load(folder / "verdict_tests.npz", allow_pickle=False) as stored:
        features = stored["features"].astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    tests = json.loads((folder / "verdict_tests.json").read_text(encoding="utf-8"))["tests"]
    texts = np.concatenate([data.texts("photo"), data.other("pacs_text")])
    names = list(name_list("imagenet").names)
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
    """The PACS classes against the other datasets, on CLIP features."""
    names, _, features = data.pacs_labels()
    texts = data.other("pacs_text")
    words = words_for(data.texts("photo"), list(name_list("imagenet").names), texts, names, [])
    return [judge(features, unknown, texts, words) for unknown in data.pacs_open_sets().values()]


def lite_tests(stores: Stores) -> dict[str, Figures]:
    """PACS photos against other datasets, with the scores as a user gets them."""
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


def pair(values: list[tuple[float, float]], digits: int = 2) -> str:
    """Mean AUROC and FPR95 as one cell."""
    auroc, fpr = np.mean(values, axis=0)
    return f"{auroc:.{digits}f} / {fpr:.1f}"


def print_tests(found: list[Figures], kinds: list[str], families: list[str], folder: Path | None) -> None:
    """Means by kind, and differences with intervals from resampling the families."""
    common = [name for name in found[0] if all(name in one for one in found)]
    rows = []
    for name in [*common, *(set(found[0]) - set(common))]:
        results = [(one[name], own) for one, own in zip(found, kinds, strict=True) if name in one]
        groups = ([values for values, own in results if kind in ("all", own)] for kind in ("all", "near", "far"))
        rows.append([name, *map(pair, groups)])
    print_table("default-clip-48-tests", ["score", "all", "near", "far"], rows, folder)
    by_family: dict[str, list[int]] = defaultdict(list)
    for i, family in enumerate(families):
        by_family[family].append(i)
    groups = list(by_family.values())
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(groups), size=len(groups)) for _ in range(2000)]

    def difference(other: str, column: int) -> str:
        values = np.array([one[NEW][column] - one[other][column] for one in found])
        means = [np.concatenate([values[groups[g]] for g in draw]).mean() for draw in draws]
        low, high = np.quantile(means, [0.025, 0.975])
        return f"{values.mean():+.2f} ({low:+.2f} to {high:+.2f})"

    print()
    rows = [[other, difference(other, 0), difference(other, 1)] for other in (OLD, "mcm", "max-logit", "energy")]
    columns = [f"{NEW} above", "AUROC (95% interval)", "FPR95 (95% interval)"]
    print_table("default-clip-48-tests-differences", columns, rows, folder)
    print()
    names = (NEW, OLD, "mcm", "max-logit")
    rows = [[family, *(pair([found[i][name] for i in own]) for name in names)] for family, own in by_family.items()]
    print_table("default-clip-families", ["family", *names], rows, folder)


def print_sets(name: str, found: dict[str, Figures], folder: Path | None) -> None:
    """One row per score, one column per dataset."""
    print()
    scores = next(iter(found.values()))
    rows = ([spec, *(pair([one[spec]], 1) for one in found.values())] for spec in scores)
    print_table(name, ["score", *found], rows, folder)


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, help="folder with CLIP features")
    parser.add_argument("stores", type=Path, help="folder with feature stores of the bundled model")
    add_csv(parser)
    arguments = parser.parse_args()
    data = ClipFeatures(arguments.features)
    print_tests(*verdict_tests(arguments.features, data), arguments.csv)
    pacs = dict(zip(data.pacs_open_sets(), development(data), strict=True))
    print_sets("default-clip-pacs", pacs, arguments.csv)
    print_sets("default-lite-pacs", lite_tests(Stores(arguments.stores, load_model("lite"))), arguments.csv)


if __name__ == "__main__":
    main()
