"""Write the class names and prompt templates of src/deltaenergy/data/catalogue/names/ from published packages.

    pip install --no-deps --target packages clip-benchmark mmpretrain tensorflow-datasets
    python tools/make_names.py packages

Nothing of these packages is imported: their data files are read, and literals are taken from their sources. Each list
is a CSV file with one class per line, in canonical order: `key` (the dataset's own id of the class: a wnid, a folder)
and `name` (what a text tower is told); ImageNet's also has `superclass`, the class's WordNet hypernym, kept in
tools/imagenet_superclasses.csv. `hashes.json` holds the hash of each list's keys and names; loading checks it.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltaenergy.data.catalogue.class_names import list_hash
from deltaenergy.files import write_json, write_text

REPOSITORY = Path(__file__).resolve().parents[1]
TARGET = REPOSITORY / "src" / "deltaenergy" / "data" / "catalogue" / "names"
Rows = list[tuple[str, ...]]

EUROSAT_FOLDERS = [
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
]
# Datasets with few classes, whose folders name them.
SMALL = {
    "pacs": ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"],
    "vlcs": ["bird", "car", "chair", "dog", "person"],
    "waterbirds": ["landbird", "waterbird"],
}
# Ensembles by our names, and what clip-benchmark calls them.
ENSEMBLES = {
    "imagenet": "imagenet1k",
    "caltech101": "caltech101",
    "dtd": "dtd",
    "eurosat": "eurosat",
    "fgvc-aircraft": "fgvc_aircraft",
    "flowers102": "flowers",
    "food101": "food101",
    "oxford-pets": "pets",
    "stanford-cars": "cars",
    "sun397": "sun397",
}


def main(packages: Path) -> None:
    """Write all lists, their hashes and the templates."""
    clip = packages / "clip_benchmark" / "datasets"
    names = json.loads((clip / "en_classnames.json").read_text(encoding="utf-8"))
    builder = literals(clip / "builder.py")
    categories = literals(packages / "mmpretrain" / "datasets" / "categories.py")
    tensorflow = packages / "tensorflow_datasets"

    with (REPOSITORY / "tools" / "imagenet_superclasses.csv").open(encoding="utf-8", newline="") as file:
        superclass = {row["key"]: row["superclass"] for row in csv.DictReader(file)}
    wnids = builder["all_imagenet_wordnet_ids"]
    imagenet = [(wnid, name, superclass[wnid]) for wnid, name in pairs(wnids, names["imagenet1k"])]
    lists: dict[str, Rows] = {"imagenet": imagenet}
    for part in ("a", "r"):
        wanted = set(builder[f"imagenet_{part}_wnids"])
        lists[f"imagenet-{part}"] = [row for row in imagenet if row[0] in wanted]
    by_wnid = {row[0]: row for row in imagenet}
    splits = json.loads((TARGET.parents[2] / "benchmarks" / "splits.json").read_text(encoding="utf-8"))
    for size in (10, 20, 100):
        lists[f"imagenet-{size}"] = [by_wnid[wnid] for wnid in splits[f"imagenet{size}"]]

    lists["caltech101"] = pairs(categories["CALTECH101_CATEGORIES"], names["caltech101"])
    lists["oxford-pets"] = pairs(categories["OxfordIIITPet_CATEGORIES"], names["pets"])
    lists["flowers102"] = pairs(map(str, range(1, 103)), names["flowers"])
    lists["eurosat"] = pairs(EUROSAT_FOLDERS, names["eurosat"])
    lists["fgvc-aircraft"] = pairs(*[categories["FGVCAIRCRAFT_CATEGORIES"]] * 2)
    lists["stanford-cars"] = pairs(*[categories["STANFORDCARS_CATEGORIES"]] * 2)
    lists["dtd"] = pairs(*[lines(tensorflow / "image_classification" / "dtd_key_attributes.txt")] * 2)
    food = categories["FOOD101_CATEGORIES"]
    lists["food101"] = pairs(food, (words(key) for key in food))
    scenes = [line.removeprefix("/") for line in lines(tensorflow / "image_classification" / "sun397_labels.txt")]
    lists["sun397"] = pairs(scenes, (words(key.partition("/")[2]) for key in scenes))
    actions = lines(tensorflow / "video" / "ucf101_labels.txt")
    lists["ucf101"] = pairs(actions, (re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key) for key in actions))
    lists |= {name: pairs(keys, keys) for name, keys in SMALL.items()}

    for name, rows in sorted(lists.items()):
        write_text(TARGET / f"{name}.csv", as_csv(rows))
    write_json(TARGET / "hashes.json", {name: list_hash(rows) for name, rows in sorted(lists.items())})
    templates = json.loads((clip / "en_zeroshot_classification_templates.json").read_text(encoding="utf-8"))
    ensembles = {ours: [text.replace("{c}", "{}") for text in templates[theirs]] for ours, theirs in ENSEMBLES.items()}
    write_json(TARGET / "templates.json", ensembles)


def literals(path: Path) -> dict[str, Any]:
    """Every name that a source file assigns a literal to, at any depth."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def pairs(keys: Iterable[str], names: Iterable[str]) -> Rows:
    """Keys with their names, runs of spaces made one."""
    return [(key, " ".join(name.split())) for key, name in zip(keys, names, strict=True)]


def words(key: str) -> str:
    """A folder name as words."""
    return key.replace("/", " ").replace("_", " ")


def lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def as_csv(rows: Rows) -> str:
    """Rows as CSV under their header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["key", "name", "superclass"][: len(rows[0])])
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
