"""The tests of default_score.py and word_sums.py, in parts; each part was listed before any of its tests was run.

`development`   they decided the form of `delta-energy+words`
`more`          with `development`, they decided the order of the sums in word_sums.py
`judged`        run once, after the form was decided
`fresh`         run once, after the order of the sums was decided

On CLIP features there is no text encoder: negative words are the names of ImageNet that are neither known nor unknown
classes of the test, half of them kept; with fewer than 100 names, scores with words are not run. "Styles" are PACS
images in another style than the photos that the score was fitted on: a score must keep them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest
from store_tests import NO_CLASS, OVERLAPS, Stores

from deltaenergy.benchmarks.spec import splits
from deltaenergy.scores.negatives.mining import MiningSettings, select

PARTS = ("development", "more", "judged", "fresh")
STYLES = ("art_painting", "cartoon", "sketch")
MIN_WORDS = 100


@dataclasses.dataclass(frozen=True)
class Case:
    """A test, and its negative words where there is no text encoder: None if there are not enough."""

    test: OpenTest
    words: torch.Tensor | None = None
    has_tower: bool = False


def clip_cases(data: ClipFeatures, part: str) -> dict[str, list[Case]]:
    """On real CLIP features."""
    if part in ("more", "fresh"):
        return {"CLIP": _more_of_clip(data) if part == "more" else _fresh_of_clip(data)}
    pacs = data.pacs_open_sets()
    if part == "development":
        tests = [*data.published("photo"), *data.pacs_table()]
        styles = [data.pacs(f"PACS/{name}", pacs[name]) for name in ("DTD-10", "Caltech")]
    else:
        tests = [*data.fresh("photo"), *data.fresh("descriptions"), *data.pacs_left_out()]
        styles = [data.pacs("PACS/food3", pacs["food3"]), data.pacs("PACS/ImageNet-20", _imagenet20(data))]
    shifted = [one for test in styles for one in in_styles(test, data.pacs_domains())]
    return {
        "CLIP": [Case(test, clip_words(data, test)) for test in tests],
        "CLIP, styles": [Case(test, clip_words(data, test)) for test in shifted],
    }


def _imagenet20(data: ClipFeatures) -> np.ndarray:
    """Images of twenty ImageNet classes, none of which is in PACS."""
    return data.images[np.isin(data.index, [data.position[wnid] for wnid in splits()["imagenet20"]])]


def _unknown_names() -> dict[str, list[str]]:
    """The unknown ImageNet classes of a test, by its name; in other tests, all that are not known."""
    lists = splits()
    found = {f"Split-{number}": lists["hard-splits"][f"split{number}"]["ood"] for number in "1234"}
    ten, twenty, hundred = (lists[f"imagenet{number}"] for number in (10, 20, 100))
    found |= {"IN-10/IN-20": twenty, "IN-20/IN-10": ten, "IN-10/IN-100": hundred, "IN-100/IN-10": ten}
    return found | {name: [] for name in ("1k/DTD", "IN-100/DTD-10", "IN-20/food3", "IN-20/PACS")}


def clip_words(data: ClipFeatures, test: OpenTest, opened: list[str] | None = None) -> torch.Tensor | None:
    """Names of ImageNet that are not classes of the test, the half that is farthest from the known classes.

    `opened` are the unknown classes; by default those of the test of this name.
    """
    unknown = _unknown_names() if opened is None else {test.name: opened}
    names = torch.from_numpy(data.texts("photo"))
    classes = test.classifier.text_features.float()
    if test.name.startswith("PACS"):
        out = splits()["imagenet20"] if "ImageNet-20" in test.name else []
        left = sorted(set(range(len(names))) - {data.position[wnid] for wnid in out})
    elif test.name in unknown:
        known = {int(name.removeprefix("class ")) for name in test.classifier.classes}
        left = sorted(set(range(len(names))) - known - {data.position[wnid] for wnid in unknown[test.name]})
    else:
        return None  # every name is a class of the test
    if len(left) < MIN_WORDS:
        return None
    candidates = names[left]
    return candidates[select(candidates, classes, len(candidates), MiningSettings(keep=0.5))]


def _more_of_clip(data: ClipFeatures) -> list[Case]:
    """Random classes against others, and the hard splits with the other prompt."""
    lists = splits()["hard-splits"]
    hard = [
        _imagenet_case(data, f"Split-{n}, descriptions", "descriptions", split["id"], split["ood"])
        for n, split in ((n, lists[f"split{n}"]) for n in "1234")
    ]
    return [*(_random_case(data, seed, 200, 200, "photo") for seed in (11, 12)), *hard]


def _fresh_of_clip(data: ClipFeatures) -> list[Case]:
    """Random classes against others, ImageNet's short lists against other sets, and PACS cut in two."""
    random = ((21, 100, 100), (22, 200, 200), (23, 50, 200), (24, 300, 300))
    cases = [_random_case(data, *one, text) for text in ("photo", "descriptions") for one in random]
    no_pizza = ["/pizza/" not in file for file in data.files("food3")]  # ImageNet has a class of it
    others = {
        "DTD-10": data.other("dtd10"),
        "food": data.other("food3")[no_pizza],
        "textures": data.images[data.index < 0],
    }
    pairs = ((10, "DTD-10"), (10, "food"), (20, "DTD-10"), (100, "food"), (100, "textures"))
    for count, name in pairs:
        known = splits()[f"imagenet{count}"]
        cases.append(_imagenet_case(data, f"IN-{count}/{name}", "photo", known, unknown=others[name]))
    names, truth, features = data.pacs_labels()
    for part in (names[:3], names[3:]):
        out = ~np.isin(truth, [names.index(name) for name in part])
        test = data.pacs(f"PACS, {' and '.join(part)}", features[out], part)
        cases.append(Case(test, clip_words(data, test)))
    return cases


def _random_case(data: ClipFeatures, seed: int, known: int, unknown: int, text: str) -> Case:
    """`known` random classes of ImageNet against `unknown` others; the rest are words."""
    drawn = np.array(sorted(data.position))[np.random.RandomState(seed).permutation(1000)].tolist()
    name = f"{known}/{unknown} of 1k, seed {seed}, {text}"
    return _imagenet_case(data, name, text, drawn[:known], drawn[known : known + unknown])


def _imagenet_case(
    data: ClipFeatures,
    name: str,
    text: str,
    closed: list[str],
    opened: list[str] | None = None,
    unknown: np.ndarray | None = None,
) -> Case:
    test = data.imagenet(name, text, closed, opened, unknown)
    return Case(test, clip_words(data, test, opened or []))


def lite_cases(stores: Stores, part: str) -> dict[str, list[Case]]:
    """On features of the bundled model."""
    if part in ("more", "fresh"):
        tests = _more_of_lite(stores) if part == "more" else _fresh_of_lite(stores)
        return {"lite": [Case(test, has_tower=True) for test in tests]}
    if part == "development":
        tests = [stores.pair("pacs", name) for name in ("dtd10", "food3", "intel_scenes")]
        tests += [_pacs_caltech(stores), *stores.halves("oxford_pets")]
        styles = [stores.pair("pacs", "dtd10"), _pacs_caltech(stores)]
    else:
        pairs = {
            "oxford_pets": ("intel_scenes", "food3", "dtd10"),
            "intel_scenes": ("oxford_pets", "food3", "dtd10"),
            "food3": ("oxford_pets", "dtd10", "intel_scenes"),
        }
        tests = [stores.pair(known, unknown) for known, others in pairs.items() for unknown in others]
        tests += [*stores.halves("caltech101", NO_CLASS), *stores.halves("imagenet_one_per_class")]
        tests += stores.left_out("pacs")
        styles = [stores.pair("pacs", "food3"), stores.pair("pacs", "intel_scenes")]
    domains = stores.domains("pacs")
    return {
        "lite": [Case(test, has_tower=True) for test in tests],
        "lite, styles": [Case(one, has_tower=True) for test in styles for one in in_styles(test, domains)],
    }


def _more_of_lite(stores: Stores) -> list[OpenTest]:
    """Caltech101 and textures against other sets, and halves of sets."""
    return [
        stores.pair("caltech101", "dtd10", _caltech()),
        stores.pair("caltech101", "intel_scenes", _caltech()),
        stores.pair("dtd10", "oxford_pets"),
        stores.pair("dtd10", "intel_scenes"),
        *stores.halves("intel_scenes"),
        *stores.halves("dtd10"),
    ]


def _fresh_of_lite(stores: Stores) -> list[OpenTest]:
    """Pairs of sets that no other part has, without the classes that both show, and other halves."""
    return [
        stores.pair("dtd10", "food3"),
        stores.pair("dtd10", "pacs"),
        stores.pair("caltech101", "food3", _caltech("pizza")),
        stores.pair("food3", "pacs"),
        stores.pair("food3", "caltech101", unknown_classes=_caltech("pizza")),
        stores.pair("intel_scenes", "caltech101", unknown_classes=_caltech()),
        stores.pair("oxford_pets", "caltech101", unknown_classes=_caltech("dalmatian")),
        stores.pair("imagenet_one_per_class", "dtd10"),
        *stores.ends("oxford_pets"),
        *stores.ends("caltech101", NO_CLASS),
        *stores.ends("imagenet_one_per_class"),
    ]


def _caltech(*without: str) -> Callable[[str], bool]:
    return lambda label: label not in {*NO_CLASS, *without}


def _pacs_caltech(stores: Stores) -> OpenTest:
    return stores.pair("pacs", "caltech101", unknown_classes=lambda label: label not in OVERLAPS | NO_CLASS)


def in_styles(test: OpenTest, domains: Sequence[str]) -> list[OpenTest]:
    """Fitted on photos, tested in each other style."""
    of = np.array(domains)

    def judged_in(style: str) -> OpenTest:
        rows = np.isin(of, ["photo", style])
        known, truth, fit = test.known[rows], test.truth[rows], (of == "photo")[rows]
        return dataclasses.replace(test, name=f"{test.name}, {style}", known=known, truth=truth, to_choose=fit)

    return [judged_in(style) for style in STYLES]
