"""Print the tables "Every method on PACS" of docs/results/tuning.md.

    python docs/tables/pacs_tuning.py IMAGES [--model lite] [--seeds 1 2 3] [--views 8] [--cache FOLDER] [--csv FOLDER]

IMAGES contains the folders pacs/DOMAIN/CLASS, dtd10, food3 and caltech101. Each method is tuned on 16 images per class
from three domains of PACS. ID accuracy is on the rest of those domains, held-out accuracy on the fourth. Detection is
the images of the fourth domain against each open set. Images and views are encoded once for all methods, domains and
seeds; with --cache, features and finished runs are kept for a later call. No validation images are used: every method
runs with its defaults, EBM with the paper's λ0 = 2 for PACS, id-like with 32 crops per image instead of 256. Methods
that need a vision transformer are listed and left out on a model without one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clip_tuning import interval
from output import add_csv, print_table
from store_tests import OVERLAPS

import deltaenergy as de
from deltaenergy.classifiers.base import Inputs
from deltaenergy.classifiers.methods import make_method
from deltaenergy.core.classes import class_indices, class_names
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.files import read_json, read_tensors, write_json, write_tensors
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import bind, score_inputs
from deltaenergy.source import labelled_folders
from deltaenergy.stats.metrics import auroc, fpr
from deltaenergy.tuning.fewshot import FewShot, sample_few_shots
from deltaenergy.tuning.prepare import TrainSet
from deltaenergy.tuning.tune import check_fits
from deltaenergy.tuning.views import CachedViews, Domains, encode_views

METHODS = [
    "zero-shot",
    "coop",
    "coop+ebm(weight=2)",
    "cocoop",
    "locoop",
    "bayes-cal",
    "bayes-cal+ebm(weight=2)",
    "dplclip",
    "dplclip+ebm(weight=2)",
    "negprompt",
    "lsn",
    "lsn(positives=cocoop)",
    "id-like(crops=32,selected=4)",
    "gallop",
    "plot",
    "plot++",
    "maple",
    "promptsrc",
    "promptsrc(vision_tokens=0)",
    "promptsrc(vision_tokens=0)+ebm(weight=2)",
    "croft",
    "task-res",
    "task-res+ebm(weight=2)",
    "clip-adapter",
    "tip-adapter",
    "tip-adapter-f",
]
# Random crops per image, of which id-like uses those most and least similar to the class.
CROPS = 32
# Features and patches by set.
Sets = dict[str, tuple[torch.Tensor, torch.Tensor]]
OPEN_SETS = ("dtd10", "food3", "caltech101")
SCORES = ("delta-energy", "mcm")
SHOTS = 16


def measure(classifier: de.Classifier, sets: Sets, labels: dict[str, Any], own: str) -> dict[str, float]:
    """Accuracies, and AUROC and FPR95 of each score against each open set, in percent."""
    scorers = bind(classifier, [make_score(score) for score in dict.fromkeys((*SCORES, own))])
    values, found = {}, {}
    for name, (features, patches) in sets.items():
        inputs = [look(classifier, scorers, features[rows], patches[rows]) for rows in blocks(len(features))]
        values[name] = {
            scorer.spec: np.concatenate([score_inputs([scorer], part)[scorer.spec] for part in inputs])
            for scorer in scorers
        }
        if name in labels:
            predicted = torch.cat([part.similarities for part in inputs]).argmax(dim=1).numpy()
            found[name] = 100 * float((predicted == labels[name]).mean())
    for score in dict.fromkeys((*SCORES, own)):
        for name in OPEN_SETS:
            found[f"{score} {name} auroc"] = 100 * auroc(values["held-out"][score], values[name][score])
            found[f"{score} {name} fpr"] = 100 * fpr(values["held-out"][score], values[name][score])
    return found


def blocks(rows: int) -> list[slice]:
    """Blocks of rows small enough that text features per image fit in memory."""
    return [slice(start, start + 64) for start in range(0, rows, 64)]


def look(
    classifier: de.Classifier, scorers: Sequence[Scorer], features: torch.Tensor, patches: torch.Tensor
) -> ScoreInputs:
    """The inputs of the scores for some images."""
    needed = {need for one in scorers for need in one.score.needs} | classifier.needs_to_predict
    seen = patches.float() if Need.PATCHES in needed else None
    with torch.inference_mode():
        outputs = classifier(Inputs(features, seen))
    return ScoreInputs(outputs.similarities, features, seen, outputs=outputs)


def encode(images: Path, model: Any, views: int, cache: Path | None) -> tuple[list[ImageItem], dict[str, torch.Tensor]]:
    """The PACS images, and features of these (test view, training views, crops) and of the open sets."""
    pacs = labelled_folders(images / "pacs", domains=True)
    path = None if cache is None else cache / f"pacs-{model.fingerprint[:12]}-{views}-{CROPS}.safetensors"
    if path is not None and path.exists():
        return pacs, read_tensors(path)
    tensors: dict[str, torch.Tensor] = {}
    patches = frozenset({Need.PATCHES})
    items = {"pacs": pacs}
    for name in OPEN_SETS:
        items[name] = [item for item in labelled_folders(images / name) if item.label not in OVERLAPS]
    for name, some in items.items():
        test = encode_views(model, some, "test", 1, patches)
        tensors[name], tensors[f"{name} patches"] = test["features"][:, 0], test["patches"][:, 0]
    encoded = encode_views(model, pacs, views, 1, patches)
    tensors["views"], tensors["view patches"] = encoded["features"], encoded["patches"]
    tensors["crops"] = encode_views(model, pacs, CROPS, 1)["features"]
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if path is not None:
        write_tensors(path, tensors)
    return pacs, tensors


def run(
    pacs: list[ImageItem],
    tensors: dict[str, torch.Tensor],
    model: Any,
    methods: list[str],
    seeds: list[int],
    views: int,
    cache: Path | None,
) -> dict[str, list[dict[str, float]]]:
    """Every method on every held-out domain and seed."""
    names = sorted(class_names(pacs))
    place = {item.id: i for i, item in enumerate(pacs)}
    results: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    began = time.perf_counter()
    for seed in seeds:
        for domain in sorted({item.domain for item in pacs if item.domain}):
            done = None if cache is None else cache / f"pacs-{model.fingerprint[:12]}-{views}-{domain}-{seed}.json"
            known = read_json(done) if done is not None and done.exists() else {}
            sample = sample_few_shots([item for item in pacs if item.domain != domain], names, SHOTS, seed)
            drawn = torch.tensor([place[item.id] for item in sample.items])
            sets, labels = split(pacs, tensors, names, domain, {item.id for item in sample.items})
            for method in methods:
                if method not in known:
                    train = training_set(tensors, sample, drawn, views, model, method)
                    classifier = tune(model, names, train, method, seed)
                    known[method] = measure(classifier, sets, labels, own_score(method))
                    if done is not None:
                        write_json(done, known)
                    print(f"{domain}, seed {seed}, {method}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
                results[method].append(known[method])
    return results


def training_set(
    tensors: dict[str, torch.Tensor], sample: FewShot, drawn: torch.Tensor, views: int, model: Any, method: str
) -> TrainSet:
    """The views of the drawn images; for id-like its crops."""
    labels, domains = torch.tensor(sample.labels), Domains.of(sample.items)
    if method.startswith("id-like"):
        return TrainSet(sample, CachedViews(tensors["crops"][drawn], labels, domains=domains), CROPS)
    patches = tensors["view patches"][drawn]
    # An encoder without patch states gives its patch features instead.
    cached = CachedViews(tensors["views"][drawn], labels, patches, states=patches, domains=domains, model=model)
    return TrainSet(sample, cached, views)


def tune(model: Any, names: list[str], train: TrainSet, method: str, seed: int) -> de.Classifier:
    """A classifier by one of the methods."""
    if method == "zero-shot":
        return de.ZeroShotClassifier(model, names)
    return de.tune(model, names, train, method, seed=seed)


def own_score(method: str) -> str:
    """The score with which the method's paper tests it."""
    return "mcm" if method == "zero-shot" else make_method(method).usual_score


def split(
    pacs: list[ImageItem], tensors: dict[str, torch.Tensor], names: list[str], domain: str, used: set[str]
) -> tuple[Sets, dict[str, Any]]:
    """The source domains without the training images, the held-out domain, and the open sets."""
    indices = np.array(class_indices(pacs, names, "PACS"))
    held_out = np.array([item.domain == domain for item in pacs])
    rest = np.array([item.id not in used for item in pacs]) & ~held_out
    own = {"id": rest, "held-out": held_out}
    sets = {name: (tensors["pacs"][rows], tensors["pacs patches"][rows]) for name, rows in own.items()}
    sets |= {name: (tensors[name], tensors[f"{name} patches"]) for name in OPEN_SETS}
    return sets, {"id": indices[rest], "held-out": indices[held_out]}


def mean_detection(found: dict[str, float], score: str, metric: str) -> float:
    """Mean over the open sets of one run."""
    return statistics.fmean(found[f"{score} {name} {metric}"] for name in OPEN_SETS)


def rows_of(results: dict[str, list[dict[str, float]]], score: str) -> Iterator[list[object]]:
    """Means over domains and seeds; the last column is the difference to zero-shot, run by run.

    `score` may be "own": the score of each method's paper.
    """
    for method, runs in results.items():
        used = own_score(method) if score == "own" else score
        if score == "own" and used in SCORES:
            continue

        def mean(key: str, runs: list[dict[str, float]] = runs) -> float:
            return statistics.fmean(found[key] for found in runs)

        pairs = [(mean(f"{used} {name} auroc"), mean(f"{used} {name} fpr")) for name in OPEN_SETS]
        pairs.append((statistics.fmean(a for a, _ in pairs), statistics.fmean(f for _, f in pairs)))
        base = "mcm" if score == "own" else score
        leads = [
            mean_detection(one, used, "auroc") - mean_detection(zero, base, "auroc")
            for one, zero in zip(runs, results.get("zero-shot", []))
        ]
        against = f"{np.mean(leads):+.1f} ± {interval(np.array(leads)):.1f}" if leads and method != "zero-shot" else "–"
        yield [method, used, mean("id"), mean("held-out"), *(f"{a:.1f} / {f:.1f}" for a, f in pairs), against]


def that_run(model: Any, methods: Sequence[str]) -> list[str]:
    """Those of the methods that can tune the model; the others are listed on standard error."""
    able = []
    for method in methods:
        try:
            if method != "zero-shot":
                check_fits(make_method(method), model, ["one", "other"], 2, {})
            able.append(method)
        except InputError as error:
            print(f"left out: {method}: {error}", file=sys.stderr)
    return able


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", default="lite")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    add_csv(parser)
    arguments = parser.parse_args()
    model = de.load_model(arguments.model)
    pacs, tensors = encode(arguments.images, model, arguments.views, arguments.cache)
    methods = that_run(model, arguments.methods)
    results = run(pacs, tensors, model, methods, arguments.seeds, arguments.views, arguments.cache)
    count = len(next(iter(results.values())))
    print(f"Model {arguments.model} ({model.fingerprint[:8]}), {count} runs per method.\n")
    heads = ["method", "score", "ID acc", "held-out acc", *(f"{name} AUROC / FPR95" for name in OPEN_SETS)]
    heads += ["mean", "AUROC against zero-shot"]
    for score in (*SCORES, "own"):
        print_table(f"tuning-lite-pacs-{score}", heads, rows_of(results, score), arguments.csv)
        print()


if __name__ == "__main__":
    main()
