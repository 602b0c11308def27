"""Print the tables "Which method is best with few images" of docs/results/tuning.md.

    python docs/tables/few_shot.py --stores FOLDER --clip FOLDER [--seeds 1 2 3] [--cache FILE] [--csv FOLDER]

--stores contains feature stores of the bundled model (`deltaenergy features`): pacs, dtd10, oxford_pets and caltech101.
--clip contains real CLIP ViT-B/16 features (see clip_data.py), with class texts only for PACS. All methods use the same
samples; each sample is tested on all images that were not drawn. AUROC is that of classes left out of the tuning
(`evaluation.tuning_gain`): five parts, tuned again for each, with the largest number of images per class; not for
croft, which takes long. Prompt methods are trained for 10 epochs, not 30, on PACS and DTD-10 with 16 images per
class, and their AUROC is not measured. There is one view per image.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from clip_data import ClipFeatures
from clip_tuning import interval
from output import add_csv, print_table

import deltaenergy as de
from deltaenergy.classifiers.methods import make_method
from deltaenergy.core.classes import class_names, normal_name
from deltaenergy.evaluation.tuning_gain import TestImages, TunedCandidate, measure_gain
from deltaenergy.scores.registry import make_score
from deltaenergy.tuning.prepare import prepare_training

QUICK = (
    "zero-shot",
    "centroids",
    "lp++",
    "linear-probe",
    "tip-adapter",
    "tip-adapter-f",
    "task-res",
    "clip-adapter",
    "clap",
    "croft",
)
PROMPTS = ("coop", "ebm")
PROMPT_RECIPE = {"epochs": 10}
# Their AUROC is not measured.
SLOW = ("croft", *PROMPTS)
WITHOUT_TEXTS = ("centroids", "linear-probe")
# A folder of Caltech101 that is not a class.
NO_CLASS = "BACKGROUND_Google"
Rows = npt.NDArray[np.int64]
Found = dict[str, float | None]


@dataclass(frozen=True)
class Problem:
    """Images with their classes, the model that encoded them, and the methods to try."""

    name: str
    model: de.Model
    classes: list[str]
    features: npt.NDArray[np.float32]
    labels: Rows
    shots: tuple[int, ...]
    methods: tuple[str, ...]


def lite_problems(stores: Path) -> list[Problem]:
    """The bundled model on four datasets; those with eight images per class allow four shots."""
    model = de.load_model("lite")
    found = []
    for name, title, shots in (
        ("pacs", "PACS", (1, 4, 16)),
        ("dtd10", "DTD-10", (1, 4, 16)),
        ("oxford_pets", "pets", (1, 4)),
        ("caltech101", "Caltech101", (1, 4)),
    ):
        store = de.Store.open(stores / name, model)
        rows = [row for row, label in enumerate(store.labels) if label and label != NO_CLASS]
        classes = sorted(class_names([item for item in de.load_images(store) if item.label != NO_CLASS]))
        place = {normal_name(one): k for k, one in enumerate(classes)}
        labels = np.array([place[normal_name(store.labels[row] or "")] for row in rows])
        prompts = PROMPTS if 16 in shots else ()
        features = np.array(store.features(rows))
        found.append(Problem(f"{title} (lite)", model, classes, features, labels, shots, (*QUICK, *prompts)))
    return found


def clip_problems(folder: Path) -> list[Problem]:
    """Real CLIP features; only PACS has class texts."""
    data = ClipFeatures(folder)
    names, truth, features = data.pacs_labels()
    model = de.PrecomputedModel(features.shape[1], class_vectors=(names, data.other("pacs_text")))
    found = [Problem("PACS (CLIP)", model, names, features, truth, (1, 4, 16), QUICK)]
    bare = de.PrecomputedModel(features.shape[1])
    for name, title, shots in (("dtd10", "DTD-10", (1, 4, 16)), ("caltech101", "Caltech101", (1, 4))):
        folders = [Path(file).parent.name for file in data.files(name)]
        kept = np.array([one != NO_CLASS for one in folders])
        classes = sorted({one for one in folders if one != NO_CLASS})
        labels = np.array([classes.index(one) for one in folders if one != NO_CLASS])
        found.append(Problem(f"{title} (CLIP)", bare, classes, data.other(name)[kept], labels, shots, WITHOUT_TEXTS))
    return found


def measure(problem: Problem, method: str, shots: int, seed: int, score: str) -> Found:
    """Accuracy on the images that were not drawn, and AUROC of left-out classes, in percent."""
    train = de.LabelledFeatures(problem.features, problem.labels)
    prepared = prepare_training(problem.model, problem.classes, train, shots, seed)
    drawn = [int(item.id.removeprefix("row ")) for item in prepared.sample.items]
    rest = np.setdiff1d(np.arange(len(problem.labels)), drawn)
    test = TestImages([], problem.labels[rest], torch.from_numpy(problem.features[rest]), "images not drawn")
    recipe: dict[str, Any] = PROMPT_RECIPE if method in PROMPTS else {}
    chosen = make_method(method)
    tuned = de.tune(problem.model, problem.classes, prepared, chosen, seed=seed, recipe=recipe)
    if method in SLOW or shots < max(problem.shots):
        correct = tuned.similarities(problem.features[rest]).argmax(axis=1) == problem.labels[rest]
        return {"acc": 100 * float(correct.mean()), "auroc": None}
    tried = [TunedCandidate(chosen, tuned, prepared)]
    row = measure_gain(problem.model, tried, test, make_score(score), kept=chosen.spec, seed=seed).rows[0]
    return {
        name: None if one is None else 100 * one.value for name, one in (("acc", row.accuracy), ("auroc", row.auroc))
    }


def run(problems: Sequence[Problem], seeds: Sequence[int], score: str, cache: Path | None) -> dict[str, Found]:
    """Every cell, by "dataset|shots|method|seed"; cells in the cache are not measured again."""
    found: dict[str, Found] = json.loads(cache.read_text()) if cache and cache.exists() else {}
    began = time.perf_counter()
    cells = [
        (problem, shots, method, seed)
        for method in (*QUICK, *PROMPTS)
        for seed in seeds
        for problem in problems
        for shots in problem.shots
        if method in problem.methods and (method not in PROMPTS or shots == 16)
    ]
    for problem, shots, method, seed in cells:
        key = f"{problem.name}|{shots}|{method}|{seed}"
        if key not in found:
            found[key] = measure(problem, method, shots, seed, score)
            if cache:
                cache.write_text(json.dumps(found, indent=1))
            print(f"{key}: {found[key]}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return found


def cell(values: list[float]) -> str:
    """Mean over the seeds, and half the width of its 95% t-interval."""
    if not values:
        return "–"
    if len(values) == 1 or np.ptp(values) == 0:
        return f"{np.mean(values):.1f}"
    return f"{np.mean(values):.1f} ± {interval(np.array(values)):.1f}"


def print_tables(
    problems: Sequence[Problem], found: dict[str, Found], seeds: Sequence[int], folder: Path | None
) -> None:
    """For each model a table of accuracy and one of AUROC: methods by datasets and shots."""
    for model in dict.fromkeys(problem.name.split("(")[1] for problem in problems):
        mine = [problem for problem in problems if problem.name.endswith(model)]
        methods = list(dict.fromkeys(method for problem in mine for method in problem.methods))
        columns = [(problem, shots) for problem in mine for shots in problem.shots]
        most = [(problem, max(problem.shots)) for problem in mine]
        quick = [method for method in methods if method not in SLOW]
        measures = {"acc": ("Accuracy", methods, columns), "auroc": ("AUROC of left-out classes", quick, most)}
        for what, (title, of, where) in measures.items():
            print(f"\n**{title}, {model.rstrip(')')}**, mean over {len(seeds)} samples ± half of its 95% interval\n")
            heads = [f"{problem.name.split(' (')[0]}, {shots}" for problem, shots in where]
            rows = ([method, *(cell(values_of(found, what, method, [one], seeds)) for one in where)] for method in of)
            print_table(f"few-shot-{model.rstrip(')').lower()}-{what}", ["method", *heads], rows, folder)


def values_of(
    found: dict[str, Found], what: str, method: str, where: Sequence[tuple[Problem, int]], seeds: Sequence[int]
) -> list[float]:
    """The measured values of a method, over datasets with shots and seeds."""
    keys = [f"{problem.name}|{shots}|{method}|{seed}" for problem, shots in where for seed in seeds]
    return [value for key in keys if key in found and (value := found[key][what]) is not None]


def print_summary(
    problems: Sequence[Problem], found: dict[str, Found], seeds: Sequence[int], folder: Path | None
) -> None:
    """Means over all datasets with class texts; each dataset and number of shots has the same weight."""
    named = [problem for problem in problems if "zero-shot" in problem.methods]
    groups = {
        "accuracy, 1 image": ("acc", [(problem, 1) for problem in named]),
        "accuracy, 4 and 16": ("acc", [(problem, shots) for problem in named for shots in problem.shots if shots > 1]),
        "AUROC": ("auroc", [(problem, max(problem.shots)) for problem in named]),
    }

    def mean(method: str, what: str, where: Sequence[tuple[Problem, int]]) -> str:
        values = values_of(found, what, method, where, seeds)
        return f"{np.mean(values):.1f}" if len(values) == len(where) * len(seeds) else "–"

    print(f"\n**Means over the {len(named)} datasets with class texts**\n")
    rows = ([method, *(mean(method, *group) for group in groups.values())] for method in QUICK)
    print_table("few-shot-means", ["method", *groups], rows, folder)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=Path, help="folder with feature stores of the bundled model")
    parser.add_argument("--clip", type=Path, help="folder with real CLIP features")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--score", default="mcm")
    parser.add_argument("--cache", type=Path, help="JSON file to keep finished cells in")
    add_csv(parser)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sources: list[tuple[Path | None, Callable[[Path], list[Problem]]]] = [
        (arguments.clip, clip_problems),
        (arguments.stores, lite_problems),
    ]
    problems = [problem for folder, make in sources if folder is not None for problem in make(folder)]
    if not problems:
        parser.error("pass --stores, --clip or both")
    found = run(problems, arguments.seeds, arguments.score, arguments.cache)
    print_summary(problems, found, arguments.seeds, arguments.csv)
    print_tables(problems, found, arguments.seeds, arguments.csv)


if __name__ == "__main__":
    main()
