"""Print the table of few-shot tuning on PACS: leave one domain out, 16 shots, three seeds, every method.

    python docs/tables/pacs_tuning.py IMAGES [--model lite] [--seeds 1 2 3] [--views 8] [--cache FOLDER]

IMAGES holds the folders pacs/DOMAIN/CLASS, dtd10, food3 and caltech101. Each method is tuned on 16 images per class
from three of PACS's domains. ID accuracy is on the rest of those domains, held-out accuracy on the fourth. Detection
is the fourth domain's images against each open set. Images and views are encoded once for all methods, domains and
seeds; with --cache, features and finished runs are kept for a later call. No validation images are used: every method
runs with its defaults, EBM with the paper's λ0 = 2 for PACS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import deltaenergy as de
from deltaenergy.data.inputs import labelled_folders
from deltaenergy.data.items import ImageItem
from deltaenergy.files import read_json, read_tensors, write_json, write_tensors
from deltaenergy.labels import class_indices, class_names
from deltaenergy.metrics import auroc, fpr
from deltaenergy.needs import Need
from deltaenergy.scores import delta_energy, mcm
from deltaenergy.tuning.data import CachedViews
from deltaenergy.tuning.fewshot import sample_few_shots
from deltaenergy.tuning.prepare import TrainSet
from deltaenergy.tuning.views import encode_views

METHODS = {
    "zero-shot": None,
    "coop": "coop",
    "ebm": "ebm(weight=2)",
    "cocoop": "cocoop",
    "clip-adapter": "clip-adapter",
    "tip-adapter": "tip-adapter",
    "tip-adapter-f": "tip-adapter-f",
    "locoop": "locoop",
}
OPEN_SETS = ("dtd10", "food3", "caltech101")
# Caltech101 classes that show something PACS knows as well: persons, dogs, guitars, elephants.
OVERLAPS = {"Faces", "Faces_easy", "dalmatian", "electric_guitar", "elephant", "snoopy"}
SCORES = {"delta-energy": delta_energy, "mcm": mcm}
SHOTS = 16


def measure(classifier: Any, sets: dict[str, Any], labels: dict[str, Any]) -> dict[str, float]:
    """Accuracies, and AUROC and FPR95 of both scores against each open set, in percent."""
    similarities = {name: classifier.similarities(features) for name, features in sets.items()}
    found = {
        name: 100 * float((similarities[name].argmax(axis=1) == labels[name]).mean()) for name in ("id", "held-out")
    }
    for score, function in SCORES.items():
        values = {name: function(array) for name, array in similarities.items()}
        for name in OPEN_SETS:
            found[f"{score} {name} auroc"] = 100 * auroc(values["held-out"], values[name])
            found[f"{score} {name} fpr"] = 100 * fpr(values["held-out"], values[name])
    return found


def encode(images: Path, model: Any, views: int, cache: Path | None) -> tuple[list[ImageItem], dict[str, torch.Tensor]]:
    """The PACS images, and features of these (test view and training views) and of the open sets."""
    pacs = labelled_folders(images / "pacs", domains=True)
    path = None if cache is None else cache / f"pacs-{model.fingerprint[:12]}-{views}.safetensors"
    if path is not None and path.exists():
        return pacs, read_tensors(path)
    tensors = {"pacs": torch.from_numpy(model.encode_images(pacs))}
    for name in OPEN_SETS:
        items = [item for item in labelled_folders(images / name) if item.label not in OVERLAPS]
        tensors[name] = torch.from_numpy(model.encode_images(items))
    encoded = encode_views(model, pacs, views, 1, frozenset({Need.PATCHES}))
    tensors["views"] = encoded.features
    if encoded.patches is not None:
        tensors["patches"] = encoded.patches
    if path is not None:
        write_tensors(path, tensors)
    return pacs, tensors


def run(
    pacs: list[ImageItem],
    tensors: dict[str, torch.Tensor],
    model: Any,
    seeds: list[int],
    views: int,
    cache: Path | None,
) -> dict[str, list[dict[str, float]]]:
    """Every method on every held-out domain and seed."""
    names = sorted(class_names(pacs))
    features = {name: tensors[name].numpy() for name in ("pacs", *OPEN_SETS)}
    place = {item.id: i for i, item in enumerate(pacs)}
    results: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    began = time.perf_counter()
    for domain in sorted({item.domain for item in pacs if item.domain}):
        source = [item for item in pacs if item.domain != domain]
        for seed in seeds:
            done = None if cache is None else cache / f"pacs-{model.fingerprint[:12]}-{views}-{domain}-{seed}.json"
            if done is not None and done.exists():
                for method, found in read_json(done).items():
                    results[method].append(found)
                continue
            sample = sample_few_shots(source, names, SHOTS, seed)
            drawn = torch.tensor([place[item.id] for item in sample.items])
            cached = CachedViews(tensors["views"][drawn], torch.tensor(sample.labels), tensors["patches"][drawn])
            train = TrainSet(sample, cached, views)
            sets, labels = split(pacs, features["pacs"], names, domain, {item.id for item in sample.items})
            sets.update({name: features[name] for name in OPEN_SETS})
            for method, spec in METHODS.items():
                if spec is None:
                    classifier: Any = de.ZeroShotClassifier(model, names)
                else:
                    classifier = de.tune(model, names, train, spec, seed=seed)
                results[method].append(measure(classifier, sets, labels))
            if done is not None:
                write_json(done, {method: found[-1] for method, found in results.items()})
            print(f"{domain}, seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return results


def split(
    pacs: list[ImageItem], features: Any, names: list[str], domain: str, used: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Features and labels of the source domains without the training images, and of the held-out domain."""
    indices = np.array(class_indices(pacs, names, "PACS"))
    held_out = np.array([item.domain == domain for item in pacs])
    rest = np.array([item.id not in used for item in pacs]) & ~held_out
    return {"id": features[rest], "held-out": features[held_out]}, {"id": indices[rest], "held-out": indices[held_out]}


def table(results: dict[str, list[dict[str, float]]], score: str) -> str:
    """Means over domains and seeds."""
    heads = ["method", "ID acc", "held-out acc", *(f"{name} AUROC / FPR95" for name in OPEN_SETS), "mean"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for method, runs in results.items():

        def mean(key: str, runs: list[dict[str, float]] = runs) -> float:
            return statistics.fmean(found[key] for found in runs)

        pairs = [(mean(f"{score} {name} auroc"), mean(f"{score} {name} fpr")) for name in OPEN_SETS]
        pairs.append((statistics.fmean(a for a, _ in pairs), statistics.fmean(f for _, f in pairs)))
        cells = [method, f"{mean('id'):.1f}", f"{mean('held-out'):.1f}", *(f"{a:.1f} / {f:.1f}" for a, f in pairs)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", default="lite")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    model = de.load_model(arguments.model)
    pacs, tensors = encode(arguments.images, model, arguments.views, arguments.cache)
    results = run(pacs, tensors, model, arguments.seeds, arguments.views, arguments.cache)
    print(f"Model {arguments.model} ({model.fingerprint[:8]}), {len(results['coop'])} runs per method.\n")
    for score in SCORES:
        print(f"Scored with {score}:\n\n{table(results, score)}\n")


if __name__ == "__main__":
    main()
