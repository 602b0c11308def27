"""What is recorded: each section is a function of a `Scene` that gives plain JSON."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import deltaenergy as de
from deltaenergy.classifiers.methods import list_methods
from deltaenergy.scores.clipn.tower import NoTower
from deltaenergy.source import load_images
from tests.golden.scene import Scene, normalised
from tests.labelled_pictures import CLASSES

Section = Callable[[Scene], Any]
SECTIONS: dict[str, Section] = {}
# Sections that take more than a few seconds: `make test-all` compares them.
LONG: set[str] = set()
# Settings that a tiny model and a dozen images can bear.
SMALL = {"id-like": "id-like(crops=8,selected=2,outliers=5)"}


def section(*, long: bool = False) -> Callable[[Section], Section]:
    """Enter a function among the sections, under its own name."""

    def enter(function: Section) -> Section:
        SECTIONS[function.__name__] = function
        if long:
            LONG.add(function.__name__)
        return function

    return enter


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives, or the kind of error with which it refuses."""
    try:
        return call()
    except (de.errors.DeltaEnergyError, ValueError, TypeError) as error:
        return f"refused: {type(error).__name__}"


def rows_of(detector: de.Detector) -> list[list[Any]]:
    """Verdicts on all images: id, label, confidence, score, p-value, verdict.

    A p-value is a rank: where two scores are within rounding it moves by a whole step, so it counts as bits.
    """
    found = []
    for verdict in detector.predict(["images", "others"]):
        name = "/".join(Path(verdict.path).parts[-2:])
        found.append(
            [name, verdict.label, verdict.confidence, verdict.score, {"BITS": verdict.p_value}, verdict.verdict]
        )
    return found


@section()
def cosines(scene: Scene) -> Any:
    """Cosines of every image with every class, untrained, on both models."""
    made = {model.name: de.ZeroShotClassifier(model, CLASSES) for model in (scene.tiny, scene.lite)}
    return {name: np.asarray(one.similarities(["images", "others"])).tolist() for name, one in made.items()}


def _scores(model: de.Model) -> dict[str, Any]:
    def run(name: str) -> Any:
        detector = de.Detector(de.ZeroShotClassifier(model, CLASSES), name).calibrate("known", keep=0.8)
        rows = rows_of(detector)
        if name.startswith("clipn"):  # on this tower its scores are 1 but for rounding, which then decides about ranks
            rows = [row[:4] for row in rows]
        return {"threshold": detector.threshold, "rows": rows}

    given = {name: name for name in de.list_scores()} | {"clipn": f"clipn(no_tower={no_tower(model)})"}
    return {name: attempt(lambda spec=spec: run(spec)) for name, spec in given.items()}


def no_tower(model: de.Model) -> str:
    """A "no" tower whose every text is the opposite of the model's, in a folder."""
    folder = Path(f"no tower of {model.name}")
    if not folder.exists():
        tower = NoTower(model, torch.zeros(1, model.text.width)).requires_grad_(False)
        for parameter in tower.projection.parameters():
            parameter.neg_()
        tower.save(folder, model, {})
    return str(folder)


@section()
def scores_tiny(scene: Scene) -> Any:
    """Every score on a ViT."""
    return _scores(scene.tiny)


@section(long=True)
def scores_lite(scene: Scene) -> Any:
    """Every score on the bundled model."""
    return _scores(scene.lite)


def _methods(model: de.Model) -> dict[str, Any]:
    def run(name: str) -> Any:
        recipe = {"epochs": 2}
        classifier = de.tune(model, CLASSES, "images", SMALL.get(name, name), shots=4, views=2, recipe=recipe)
        found: dict[str, Any] = {"cosines": np.asarray(classifier.similarities(["images/cat", "others"])).tolist()}
        if name in de.list_scores():  # the method's own score
            found["rows"] = rows_of(de.Detector(classifier, name).calibrate("known", keep=0.8))
        return found

    return {name: attempt(lambda name=name: run(name)) for name in list_methods()}


@section()
def methods_tiny(scene: Scene) -> Any:
    """Similarities of every tuning method on a ViT, after two epochs."""
    return _methods(scene.tiny)


@section(long=True)
def methods_lite(scene: Scene) -> Any:
    """Similarities of every tuning method on the bundled model, after two epochs."""
    return _methods(scene.lite)


@section(long=True)
def bench_mini(scene: Scene) -> Any:
    """The smallest benchmark, and the page and tables of its report."""
    found = scene.json("bench", "mini", "--limit", "30", "--seeds", "1", "--out", "results")
    scene.command("report", "results", "--out", "bench.html", "--out", "bench.md")
    return {"json": found, "page": trained(scene.page("bench.html")), "tables": trained(scene.page("bench.md"))}


def trained(text: str) -> dict[str, Any]:
    """A page or table of a model that was trained on the spot: numbers, charts, and which is best, are its bits."""
    plain = re.sub(r"<(svg|style)\b.*?</\1>|<[^>]*>|\b[0-9a-f]{32}\b", " ", text, flags=re.DOTALL)
    return {"BITS": text, "words": " ".join(re.findall(r"[^\W\d_][\w-]*", plain))}


@section()
def evaluate_all(scene: Scene) -> Any:
    """`evaluate --score all`, and its page."""
    given = "evaluate", "--id", "images", "--open", "others", "--score", "all", "--model", "tiny"
    found = scene.json(*given, "--report", "evaluate.html")
    return {"json": found, "page": scene.page("evaluate.html")}


@section()
def choose(scene: Scene) -> Any:
    """Which score is best for the classes."""
    return scene.json("choose", "--id", "images", "--model", "tiny")


@section(long=True)
def tune_auto(scene: Scene) -> Any:
    """Which tuning method is best for the classes."""
    arguments = (
        "tune",
        "--train",
        "images",
        "--method",
        "auto",
        "--shots",
        "4",
        "--recipe",
        "epochs=2",
        "--model",
        "tiny",
    )
    return scene.json(*arguments, "--out", "tuned")


@section()
def verdict_page(scene: Scene) -> Any:
    """`score --report`, its table, and what it prints."""
    assert scene.detector
    arguments = "score", "images", "others", "--detector", "detector"
    found = scene.json(*arguments, "--report", "score.html")
    scene.command(*arguments, "--out", "verdicts.csv")
    table = Path("verdicts.csv").read_text(encoding="utf-8").splitlines()
    return {"json": found, "columns": table[0], "page": scene.page("score.html")}


@section()
def explain_page(scene: Scene) -> Any:
    """`explain` on two images."""
    assert scene.detector
    scene.command("explain", "images/cat/0.png", "others/0.png", "--detector", "detector", "--out", "explain.html")
    return {"page": scene.page("explain.html")}


@section()
def openapi(scene: Scene) -> Any:
    """What the service says of itself, and its page."""
    from starlette.testclient import TestClient

    from deltaenergy.serve.app import create_app
    from deltaenergy.serve.server import make_engine

    engine = make_engine([("d", scene.detector)], scene.tiny, None)
    with TestClient(create_app(engine)) as client:
        described, page = client.get("/openapi.json").json(), client.get("/").text
    described["info"].pop("version", None)
    return {"openapi": described, "page": normalised(page, scene.folder)}


@section()
def monitor_state(scene: Scene) -> Any:
    """The state after images of both kinds, and its page."""
    assert scene.detector
    arguments = "monitor", "--detector", "detector", "--state", "state.json", "--report", "monitor.html"
    scene.command(*arguments, "images", "others")
    state = normalised(Path("state.json").read_text(encoding="utf-8"), scene.folder)
    read = json.loads(state)
    read.pop("checksum")  # over times as well
    return {"BITS": read.pop("detector"), "state": read, "page": scene.page("monitor.html")}


@section()
def help_texts(scene: Scene) -> Any:
    """`--help` of every command."""
    import typer

    from deltaenergy.cli.main import app

    def names(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        parts = getattr(command, "commands", {})
        return [path, *(name for part, inner in parts.items() for name in names(inner, (*path, part)))]

    return {" ".join(path): scene.command(*path, "--help") for path in names(typer.main.get_command(app))}


@section()
def store_bytes(scene: Scene) -> Any:
    """Names, sizes and hashes of a store's files, and the ids and labels in it."""
    de.build_store(scene.tiny, "images", "golden.store")
    files = {}
    for file in sorted(Path("golden.store").rglob("*")):
        if file.is_file() and file.suffix != ".lock":
            files[file.relative_to("golden.store").as_posix()] = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"BITS": files, "names": sorted(files), "rows": [[row.id, row.label] for row in load_images("golden.store")]}


@section()
def inputs(scene: Scene) -> Any:
    """Ids and labels of every kind of input."""
    files = sorted(map(str, Path("images").rglob("*.png")))[::4]
    labels = [Path(file).parent.name for file in files]
    data = [Path(file).read_bytes() for file in files]
    Path("table.csv").write_text("path,label\n" + "".join(f"{f},{k}\n" for f, k in zip(files, labels)))
    Path("table.jsonl").write_text("".join(json.dumps({"path": f, "label": k}) + "\n" for f, k in zip(files, labels)))
    pq.write_table(pa.table({"path": files, "label": labels}), "table.parquet")
    pq.write_table(pa.table({"image": [{"bytes": d, "path": None} for d in data], "label": labels}), "images.parquet")
    with tarfile.open("images.tar", "w") as archive:
        for file in files:
            archive.add(file, file.replace("/", "_"))
    kinds: dict[str, Any] = {
        "folder": "images",
        "flat folder": "others",
        "file": files[0],
        "pattern": "images/*/1.png",
        "list": files,
        "list with one image twice": [files[0], files[0]],
        "bytes": data[:2],
        "array": np.zeros((2, 8, 8, 3), np.uint8),
        "CSV": "table.csv",
        "JSONL": "table.jsonl",
        "Parquet with paths": "table.parquet",
        "Parquet with images": "images.parquet",
        "archive": "images.tar",
        "Arrow": pa.table({"path": files, "label": labels}),
    }

    def rows(given: Any) -> list[Any]:
        return [[normalised(item.id, scene.folder), item.label, item.domain] for item in load_images(given)]

    return {kind: attempt(lambda given=given: rows(given)) for kind, given in kinds.items()}
