"""Print the table "The default score" of docs/results.md: which score to hand to a user unasked.

    python docs/tables/default_score.py FEATURES STORES [--part development|judged]

FEATURES holds real CLIP features (see clip_data.py), STORES feature stores of the bundled model (see store_tests.py).
The tests were listed here before any of them was run. The form of `delta-energy+words` was settled on those of
`development`; those of `judged` were run once, with everything settled. At most 200 known pictures, none of which is
judged, are there to fit. On CLIP features there is no text tower: negative words are ImageNet's names that are neither
known nor unknown classes of the test, half of them kept; where fewer than 100 are left, scores of words are not run.

"Styles" are PACS pictures known from photographs alone and judged in another style: a score must keep those.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from clip_data import ClipFeatures, OpenTest
from store_tests import NO_CLASS, OVERLAPS, Stores

from deltaenergy import load_model, make_score
from deltaenergy.benchmarks.spec import splits
from deltaenergy.metrics import RankedScores
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.negatives.mining import Recipe, select
from deltaenergy.scores.neglabel import MinedScore

CANDIDATES = (
    "mcm",
    "max-logit",
    "energy",
    "delta-energy",
    "delta-energy(tau=0.1,c=1)",
    "delta-energy:robust",
    "multi-delta-energy",
    "guarded-delta-energy",
    "neglabel:quick",
    "delta-energy+words",
    "knn",
    "mahalanobis",
)
STYLES = ("art_painting", "cartoon", "sketch")
MAX_FITTED, MIN_WORDS = 200, 100
KEEP = 0.95


@dataclasses.dataclass(frozen=True)
class Case:
    """A test, and its negative words if there is no text tower to make them: None if there are not enough."""

    test: OpenTest
    words: torch.Tensor | None = None
    has_tower: bool = False


def clip_cases(data: ClipFeatures, part: str) -> dict[str, list[Case]]:
    """On real CLIP features."""
    pacs = data.pacs_open_sets()
    if part == "development":
        tests = [*data.published("photo"), *data.pacs_table()]
        styles = [data.pacs(f"PACS/{name}", pacs[name]) for name in ("DTD-10", "Caltech")]
    else:
        tests = [*data.fresh("photo"), *data.fresh("descriptions"), *data.pacs_left_out()]
        styles = [data.pacs("PACS/food3", pacs["food3"]), data.pacs("PACS/ImageNet-20", _imagenet20(data))]
    shifted = [one for test in styles for one in in_styles(test, data.pacs_domains())]
    unknown = _unknown_names()
    return {
        "CLIP": [Case(test, clip_words(data, test, unknown)) for test in tests],
        "CLIP, styles": [Case(test, clip_words(data, test, unknown)) for test in shifted],
    }


def _imagenet20(data: ClipFeatures) -> np.ndarray:
    """Pictures of twenty ImageNet classes, none of which is in PACS."""
    return data.images[np.isin(data.index, [data.position[wnid] for wnid in splits()["imagenet20"]])]


def _unknown_names() -> dict[str, list[str]]:
    """The unknown ImageNet classes of a test, by its name; of others all that are not known."""
    lists = splits()
    found = {f"Split-{number}": lists["hard-splits"][f"split{number}"]["ood"] for number in "1234"}
    ten, twenty, hundred = (lists[f"imagenet{number}"] for number in (10, 20, 100))
    found |= {"IN-10/IN-20": twenty, "IN-20/IN-10": ten, "IN-10/IN-100": hundred, "IN-100/IN-10": ten}
    return found | {name: [] for name in ("1k/DTD", "IN-100/DTD-10", "IN-20/food3", "IN-20/PACS")}


def clip_words(data: ClipFeatures, test: OpenTest, unknown: dict[str, list[str]]) -> torch.Tensor | None:
    """Names of ImageNet that are no class of the test, the half that is farthest from the known ones."""
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
    return candidates[select(candidates, classes, len(candidates), Recipe(keep=0.5))]


def lite_cases(stores: Stores, part: str) -> dict[str, list[Case]]:
    """On features of the bundled model."""
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


def _pacs_caltech(stores: Stores) -> OpenTest:
    return stores.pair("pacs", "caltech101", unknown_classes=lambda label: label not in OVERLAPS | NO_CLASS)


def in_styles(test: OpenTest, domains: Sequence[str]) -> list[OpenTest]:
    """Known from photographs, judged in each other style."""
    of = np.array(domains)

    def judged_in(style: str) -> OpenTest:
        rows = np.isin(of, ["photo", style])
        known, truth, fit = test.known[rows], test.truth[rows], (of == "photo")[rows]
        return dataclasses.replace(test, name=f"{test.name}, {style}", known=known, truth=truth, to_choose=fit)

    return [judged_in(style) for style in STYLES]


def judge(case: Case, spec: str) -> tuple[float, float, float, float] | None:
    """AUROC, FPR95, and of a threshold that keeps 95 % of the fitted pictures: known kept, unknown rejected."""
    test, score = case.test, make_score(spec)
    of_words = isinstance(score, MinedScore)
    if of_words and not case.has_tower and case.words is None:
        return None
    rows = np.flatnonzero(test.to_choose)
    if len(rows) > MAX_FITTED:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_FITTED).astype(int)]
    state = {"negatives": case.words} if of_words and case.words is not None else None
    scorer = dataclasses.replace(score.bind(test.classifier, state=state), fitted=not score.needs_fit)
    to_fit = _inputs(test, test.known[rows])
    scorer = scorer if scorer.fitted else scorer.fit(to_fit)
    known, unknown = (_values(scorer, _inputs(test, part)) for part in (test.known[~test.to_choose], test.unknown))
    threshold = np.quantile(_values(scorer, to_fit), 1 - KEEP, method="lower")
    ranked = RankedScores(known, unknown)
    shares = (ranked.auroc(), ranked.fpr(), (known >= threshold).mean(), (unknown < threshold).mean())
    return tuple(100 * float(share) for share in shares)  # type: ignore[return-value]


def _inputs(test: OpenTest, features: np.ndarray) -> ScoreInputs:
    rows = torch.from_numpy(np.array(features))
    return ScoreInputs(test.classifier.similarities_of_features(rows), rows)


def _values(scorer: Scorer, inputs: ScoreInputs) -> np.ndarray:
    with torch.inference_mode():
        return scorer(inputs).double().numpy()


def print_group(name: str, cases: list[Case]) -> None:
    """One table: means, the worst case, and how far above mcm, with an interval from resampling the tests."""
    measured = {spec: [judge(case, spec) for case in cases] for spec in CANDIDATES}
    print(f"\n**{name}**: {len(cases)} tests\n")
    print(
        "| score | tests | AUROC | FPR95 | lowest AUROC | above mcm (95 % interval) | known kept | unknown rejected |"
    )
    print("|---|---:|---:|---:|---|---|---:|---:|")
    for spec, found in measured.items():
        run = [i for i, one in enumerate(found) if one is not None]
        values = np.array([found[i] for i in run])
        lead = values[:, 0] - np.array([measured["mcm"][i] for i in run])[:, 0]
        pick = np.random.default_rng(0).integers(len(run), size=(10_000, len(run)))
        low, high = np.quantile(lead[pick].mean(axis=1), [0.025, 0.975])
        auroc, fpr, kept, rejected = values.mean(axis=0)
        worst = int(values[:, 0].argmin())
        print(
            f"| `{spec}` | {len(run)} | {auroc:.1f} | {fpr:.1f} | "
            f"{values[worst, 0]:.1f} ({cases[run[worst]].test.name}) "
            f"| {lead.mean():+.1f} ({low:+.1f} to {high:+.1f}) | {kept:.1f} | {rejected:.1f} |"
        )
    covered = [i for i, one in enumerate(measured["delta-energy+words"]) if one is not None]
    if 0 < len(covered) < len(cases):
        means = {
            spec: np.mean([found[i] for i in covered], axis=0)[:2]  # type: ignore[arg-type]
            for spec, found in measured.items()
        }
        print(f"\nOn the {len(covered)} tests that have words (AUROC / FPR95): ", end="")
        print(", ".join(f"{spec} {auroc:.1f} / {fpr:.1f}" for spec, (auroc, fpr) in means.items()) + ".")


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, help="folder with CLIP features")
    parser.add_argument("stores", type=Path, help="folder with feature stores of the bundled model")
    parser.add_argument("--part", choices=("development", "judged"), default="judged")
    arguments = parser.parse_args()
    stores = Stores(arguments.stores, load_model("lite"))
    groups = clip_cases(ClipFeatures(arguments.features), arguments.part) | lite_cases(stores, arguments.part)
    for name, cases in groups.items():
        print_group(name, cases)


if __name__ == "__main__":
    main()
