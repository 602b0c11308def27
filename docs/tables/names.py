"""Print the tables "Verdicts from names only" of docs/results/thresholds.md: what a threshold from class names keeps.

    python docs/tables/names.py FOLDER              the tests on CLIP features (see verdicts.py)
    python docs/tables/names.py --lite STORES       feature stores of the bundled model (see store_tests.py)
    python docs/tables/names.py --words             the words that are removed for ten class lists

With --csv FOLDER, each table is also written to a CSV file. On CLIP features the words are the names of ImageNet
without the classes, their synonyms and their kinds, with or without the names of the unknown images; on `lite` they are
those of the score. Shares are means over tests: a class list with its images, and a set of near or far unknown images.
`mcm` and `max-logit` use the threshold that is best for the tested images: no rule can do better with them. n images:
the threshold that keeps 95% on average, over 20 draws.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from output import add_csv, print_table
from verdicts import TEMPERATURE, terms_of, unfitted

import deltaenergy as de
from deltaenergy.data.catalogue.class_names import name_list
from deltaenergy.detector.names import MEASURED
from deltaenergy.scores.negatives.competing import TOO_CLOSE, competing_words, default_pool, remove_own
from deltaenergy.stats.thresholds import threshold_of

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
DRAWS = 20
LISTS = (
    ["dog", "cat", "horse"],
    ["person"],
    ["man", "woman", "child"],
    ["animal"],
    ["vehicle", "building"],
    ["crane bird", "heron"],
    ["pizza", "sushi", "salad"],
    ["bag", "ball", "cup", "tree"],
    ["red fox", "grey fox", "wolf"],
    ["Hund", "Katze"],
)


class Case(NamedTuple):
    """One test: the inputs of the rules, known images first; which known images are classified correctly."""

    family: str
    kind: str
    classes: int
    words: int
    terms: Floats
    others: dict[str, Floats]
    right: Rows


def case(family: str, kind: str, cosines: Floats, words: Floats, right: Rows) -> Case:
    """From the cosines with classes (N, K) and with words (N, W)."""
    first = cosines.max(axis=1)
    mcm = 1 / np.exp((cosines - first[:, None]) / TEMPERATURE).sum(axis=1)
    others = {"nearest": first - words.max(axis=1), "mcm": mcm, "max-logit": first}
    return Case(family, kind, cosines.shape[1], words.shape[1], terms_of(cosines, words), others, right)


def unit(rows: npt.NDArray[Any]) -> Floats:
    found = rows.astype(np.float64)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def clip_texts(folder: Path) -> tuple[list[str], Floats]:
    """ImageNet's names, then PACS's, and their vectors."""
    names = [*name_list("imagenet").names, *json.loads((folder / "pacs_text.json").read_text(encoding="utf-8"))]
    texts = [np.load(folder / f"{name}.npy") for name in ("imagenet_text_a_photo_of_a", "pacs_text")]
    return names, unit(np.concatenate(texts))


def clip_words(names: Sequence[str], vectors: Floats, classes: Sequence[int], left_out: Collection[int]) -> list[int]:
    """The names of ImageNet that compete with the classes."""
    own = remove_own(names[:1000], [names[k] for k in classes])
    words = [k for k in range(1000) if names[k] not in own and k not in left_out]
    return [k for k in words if (vectors[classes] @ vectors[k]).max() <= TOO_CLOSE]


def clip_people(folder: Path) -> Case:
    """Photos of persons, "person" as the only class."""
    names, vectors = clip_texts(folder)
    files = json.loads((folder / "pacs.json").read_text(encoding="utf-8"))
    features = unit(np.load(folder / "pacs.npy"))[["photo/person/" in file for file in files]]
    classes = [names.index("person", 1000)]
    words = clip_words(names, vectors, classes, classes)
    return case(
        "person, 1", "", features @ vectors[classes].T, features @ vectors[words].T, np.ones(len(features), bool)
    )


def clip_cases(folder: Path, *, with_unknown: bool, most: int | None = None) -> Iterator[Case]:
    """The tests on CLIP features."""
    saved = np.load(folder / "verdict_tests.npz")
    names, vectors = clip_texts(folder)
    features = unit(saved["features"])
    for one in json.loads((folder / "verdict_tests.json").read_text(encoding="utf-8"))["tests"]:
        classes, count = one["classes"], len(one["known"])
        words = clip_words(names, vectors, classes, {*classes, *([] if with_unknown else one["names_of_unknown"])})
        if most is not None:
            words = sorted(np.random.default_rng(0).choice(words, most, replace=False).tolist())
        rows = np.array(one["known"] + one["unknown"])
        cosines = features[rows] @ vectors[classes].T
        right = np.array(classes)[cosines[:count].argmax(axis=1)] == saved["true_class"][rows[:count]]
        yield case(one["family"], one["kind"], cosines, features[rows] @ vectors[words].T, right)


def lite_people(folder: Path) -> Iterator[Case]:
    """Photos of persons, "person" as the only class and as one of the seven PACS classes."""
    from store_tests import Stores

    held = Stores(folder, de.load_model("lite"))
    features, labels = held.rows("pacs")
    persons = np.array([domain == "photo" for domain in held.domains("pacs")]) & (np.array(labels) == "person")
    for classes in (["person"], sorted(set(labels))):
        classifier = de.ZeroShotClassifier(held.model, classes)
        rows, words = features[persons].astype(np.float64), competing_words(classifier)[1].double().numpy()
        cosines = rows @ classifier.text_features.double().numpy().T
        yield case(f"person, {len(classes)}", "", cosines, rows @ words.T, np.ones(len(rows), bool))


def lite_cases(folder: Path) -> Iterator[Case]:
    """Class lists of 1 to 400 names on the bundled model: PACS photos, Caltech101, pets, scenes, ImageNet."""
    from store_tests import NO_CLASS, Stores

    held = Stores(folder, de.load_model("lite"))
    folders = ("pacs", "caltech101", "oxford_pets", "intel_scenes", "food3", "dtd10", "imagenet_one_per_class")
    sets = {name: held.rows(name, lambda one: one not in NO_CLASS) for name in folders}
    photos = np.array([domain == "photo" for domain in held.domains("pacs")])
    sets["pacs"] = (sets["pacs"][0][photos], [one for one, photo in zip(sets["pacs"][1], photos) if photo])
    far = {name: sets[name][0] for name in ("dtd10", "food3", "intel_scenes", "oxford_pets")}
    textures_and_food = np.concatenate([far["dtd10"], far["food3"]])
    bound: dict[tuple[str, ...], tuple[Floats, Floats]] = {}

    def test(name: str, family: str, kind: str, classes: Sequence[str], unknown: Floats | None) -> Case:
        features, labels = sets[name]
        inside = np.isin(labels, classes)
        if tuple(classes) not in bound:
            classifier = de.ZeroShotClassifier(held.model, list(classes))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                words = competing_words(classifier)[1]
            bound[tuple(classes)] = (classifier.text_features.double().numpy(), words.double().numpy())
        texts, words_ = bound[tuple(classes)]
        rows = np.concatenate([features[inside], features[~inside] if unknown is None else unknown]).astype(np.float64)
        cosines = rows @ texts.T
        right = np.array(classes)[cosines[: inside.sum()].argmax(axis=1)] == np.array(labels)[inside]
        return case(family, kind, cosines, rows @ words_.T, right)

    def names(of: str) -> list[str]:
        return sorted(set(sets[of][1]))

    pacs = names("pacs")
    for unknown in ("dtd10", "food3", "intel_scenes"):
        yield test("pacs", "PACS, 7", "far", pacs, far[unknown])
        yield test("oxford_pets", "pets, 37", "far", names("oxford_pets"), far[unknown])
    for one in pacs:
        yield test("pacs", "PACS, 1", "far", [one], textures_and_food)
        yield test("pacs", "PACS, 1", "near", [one], None)
    for k in range(7):
        yield test("pacs", "PACS, 2", "near", [pacs[k], pacs[(k + 3) % 7]], None)
    for of, family in (("caltech101", "Caltech, 50"), ("oxford_pets", "pets, 18")):
        for start in (0, 1):
            yield test(of, family, "near", names(of)[start::2], None)
    yield test("caltech101", "Caltech, 99", "far", names("caltech101"), far["dtd10"])
    for unknown in ("dtd10", "food3", "oxford_pets"):
        yield test("intel_scenes", "scenes, 6", "far", names("intel_scenes"), far[unknown])
    for unknown in ("dtd10", "oxford_pets"):
        yield test("food3", "food, 3", "far", names("food3"), far[unknown])
    rng = np.random.default_rng(0)
    for count in (7, 20, 40, 150, 400):
        for _ in range(4):
            drawn = sorted(rng.choice(names("imagenet_one_per_class"), count, replace=False).tolist())
            yield test("imagenet_one_per_class", f"ImageNet, {count}", "near", drawn, None)
            yield test("imagenet_one_per_class", f"ImageNet, {count}", "far", drawn, far["dtd10"])


def bound_of(one: Case, offset: float, slope: float) -> float:
    return float(offset + slope * np.log(one.classes) - np.log(one.words))


def rules_of(model: str) -> dict[str, Callable[[Case], Rows]]:
    """Which images of a test each rule keeps."""
    found = MEASURED[model]
    return {
        "names: odds + 8·C (measured models)": lambda one: (
            unfitted(one.terms) >= bound_of(one, found.offset, found.slope)
        ),
        "names: odds (any model)": lambda one: one.terms[:, 1] >= 0.5 * np.log(one.classes / one.words),
        "nearest name": lambda one: one.others["nearest"] >= 0,
        "mcm, best threshold": lambda one: best(one, "mcm"),
        "max-logit, best threshold": lambda one: best(one, "max-logit"),
    }


def best(one: Case, score: str) -> Rows:
    """Kept at the threshold with the best balanced share on the tested images."""
    values, count = one.others[score], len(one.right)
    kept = {bound: values >= bound for bound in np.quantile(values, np.linspace(0, 1, 200))}
    return max(kept.values(), key=lambda rows: (rows[:count] & one.right).mean() - rows[count:].mean())


def shares(one: Case, kept: Rows) -> tuple[float, float, float]:
    """Known kept, unknown rejected, balanced."""
    count = len(one.right)
    rejected = 1 - kept[count:].mean()
    return kept[:count].mean(), rejected, ((kept[:count] & one.right).mean() + rejected) / 2


def calibrated(one: Case, images: int) -> tuple[float, float, float] | None:
    """The mean over draws of `images` known images that set the threshold; the others are tested."""
    values, count, rng = unfitted(one.terms), len(one.right), np.random.default_rng(0)
    if count < images + 20:
        return None
    draws = []
    for _ in range(DRAWS):
        order = rng.permutation(count)
        kept = values >= threshold_of(np.sort(values[order[:images]]), 0.95, None)
        known = kept[order[images:]]
        rejected = 1 - kept[count:].mean()
        draws.append((known.mean(), rejected, ((known & one.right[order[images:]]).mean() + rejected) / 2))
    return tuple(np.mean(draws, axis=0))  # type: ignore[return-value]


def summary(found: list[tuple[Case, tuple[float, float, float]]]) -> list[float]:
    """Kept (mean, deviation and least over tests), near and far rejected, balanced, in percent."""
    kept, _, balanced = zip(*(values for _, values in found))
    near, far = (
        np.mean([values[1] for one, values in found if one.kind == kind] or [np.nan]) for kind in ("near", "far")
    )
    return [100 * float(value) for value in (np.mean(kept), np.std(kept), min(kept), near, far, np.mean(balanced))]


SHARES = ("kept", "sd over lists", "worst list", "near rejected", "far rejected", "balanced")


def rule_rows(cases: list[Case], model: str, label: str) -> Iterator[list[object]]:
    """The rules, then thresholds on images."""
    for name, rule in rules_of(model).items():
        yield [label, name, *summary([(one, shares(one, rule(one))) for one in cases])]
    for images in (20, 100):
        found = [(one, values) for one in cases if (values := calibrated(one, images)) is not None]
        if found:
            yield [label, f"{images} images, {len(found)} of {len(cases)} tests", *summary(found)]


def half_rows(cases: list[Case]) -> Iterator[list[object]]:
    """Constants chosen on every second family: the best balanced share of those that keep 90% or more."""
    families = sorted({one.family for one in cases})
    for start in (0, 1):
        mine = set(families[start::2])
        parts = [[one for one in cases if (one.family in mine) is chosen] for chosen in (True, False)]
        tried = {}
        for offset, slope in itertools.product(np.arange(0, 14.1, 0.5), (0.5, 1.0)):
            both = [
                summary([(one, shares(one, unfitted(one.terms) >= bound_of(one, offset, slope))) for one in part])
                for part in parts
            ]
            tried[offset, slope] = both
        (offset, slope), both = max(tried.items(), key=lambda item: (item[1][0][0] >= 90, item[1][0][5]))
        constants = f"{offset:.1f} + {slope:g}·log K − log W"
        yield [f"chosen on {len(mine)} families", constants, *both[0]]
        yield [f"tested on {len(families) - len(mine)} families", constants, *both[1]]


def word_rows() -> Iterator[list[object]]:
    """How many words are removed for some class lists, and which."""
    for classes in LISTS:
        removed = remove_own(default_pool(), classes)
        yield [", ".join(classes), len(removed), ", ".join(list(removed)[:8])]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--lite", action="store_true")
    parser.add_argument("--words", action="store_true")
    add_csv(parser)
    options = parser.parse_args()
    if options.words:
        print_table("names-removed-words", ["classes", "removed", "for example"], word_rows(), options.csv)
        return
    if options.lite:
        name, model = "names-lite", "lite"
        groups = {"the score's": list(lite_cases(options.folder))}
        cases = groups["the score's"]
    else:
        name, model = "names-clip", "openai/clip-vit-base-patch16"
        cases = list(clip_cases(options.folder, with_unknown=False))
        groups = {
            "with the unknown's name": list(clip_cases(options.folder, with_unknown=True)),
            "without": cases,
            "300 without": list(clip_cases(options.folder, with_unknown=False, most=300)),
        }
    rows = itertools.chain(*(rule_rows(some, model, label) for label, some in groups.items()))
    print_table(name, ["words", "rule", *SHARES], rows, options.csv)
    print()
    print_table(f"{name}-constants", ["families", "constants", *SHARES], half_rows(cases), options.csv)
    print()
    rule = rules_of(model)["names: odds + 8·C (measured models)"]
    families = {one.family: [other for other in cases if other.family == one.family] for one in cases}
    rows = (
        [family, len(part), *summary([(one, shares(one, rule(one))) for one in part])]
        for family, part in families.items()
    )
    print_table(f"{name}-families", ["family", "tests", *SHARES], rows, options.csv)
    print()
    people = lite_people(options.folder) if options.lite else [clip_people(options.folder)]
    rows = ([one.family, len(one.right), 100 * float(rule(one).mean())] for one in people)
    print_table(f"{name}-persons", ["persons, number of classes", "images", "kept"], rows, None)


if __name__ == "__main__":
    main()
