"""What the documentation tells people to type: Python blocks run, and commands have the options that they are given."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import deltaenergy as de
from deltaenergy.cli.main import app
from tests.labelled_pictures import write_pictures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A line that begins with a command, in an indented block or a fenced one; a backslash carries on to the next.
COMMAND = re.compile(r"^[ ]*deltaenergy (?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What marks a block that needs a package which may be absent, or a hub: these bridges have tests of their own.
NEEDS = {"fiftyone": "fiftyone", "pytorch_ood": "pytorch_ood", "to_polars": "polars", "push_to_hub": "a_hub_to_push_to"}
HUB_MODEL = "openai/clip-vit-base-patch16"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_of(page: Path) -> str:
    """The Python blocks of a page, one after the other, with the bundled model in the place of the hub's."""
    blocks = [code for language, code in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]
    runnable = [code for code in blocks if all(find_spec(package) for mark, package in NEEDS.items() if mark in code)]
    return "\n".join(runnable).replace(HUB_MODEL, "lite")


def commands_of(page: Path) -> list[str]:
    """Commands as they are typed; those that stand for others (…) are left out."""
    text = page.read_text(encoding="utf-8")
    code = "\n".join([*(code for _, code in FENCE.findall(text)), *re.findall(r"^ {4}.*$", text, re.MULTILINE)])
    found = [match[0].replace("\\\n", " ").strip() for match in COMMAND.finditer(code)]
    return [line for line in found if "…" not in line.partition(" #")[0]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has what the pages speak of."""
    for i, name in enumerate(["good", "known", "photos", "sketches", "other", "inbox", "today", "dtd", "noise"]):
        write_pictures(tmp_path / name, 12 if name in ("good", "known") else 3, seed=i)
    for i, part in enumerate(["train", "val"]):
        write_pictures(tmp_path / "photos" / part, 8, seed=100 + i)
    for folder in tmp_path.rglob("red_car"):
        shutil.rmtree(folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def usual_names() -> dict[str, Any]:
    """What pages take as there: the package, a model, a classifier and a calibrated detector."""
    model = de.load_model("lite")
    classifier = de.ZeroShotClassifier(model, ["dog", "cat"])
    detector = de.Detector(classifier, "mcm").calibrate("good/")
    detector.save("detector/")
    return {"de": de, "model": model, "classifier": classifier, "detector": detector}


def evaluation_names() -> dict[str, Any]:
    names = usual_names()
    names["detector"].save("plain/")
    de.Detector(names["classifier"], "energy").calibrate("good/").save("tuned/")
    return names


def interop_names() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8))
    labels = np.array(["dog", "cat"])[(features[:, 0] > 0).astype(int)]
    names = usual_names()
    det = names["detector"]
    rows = {"features": features, "labels": labels, "new": features[:5], "known": features}
    return {**names, **rows, "det": det, "frame": det.predict("photos/").to_table()}


def tuning_names() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(80, 512)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    names = ["dog", "cat", "horse"]
    return {
        **usual_names(),
        "names": names,
        "text_features": unit[:3],
        "image_features": unit[:60],
        "labels": [names[i % 3] for i in range(60)],
        "other_features": unit[60:],
    }


# Pages whose code needs what no test has, and why.
ELSEWHERE = {
    "docs/data.md": "needs the data sets",
    "docs/backends.md": "needs the extra `openvino`",
    "docs/serving.md": "tests/serve/test_docs.py runs it against a service",
    "docs/tutorials/serve.md": "tests/serve/test_docs.py runs it against a service",
}
NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/evaluation.md": evaluation_names,
    "docs/interop.md": interop_names,
    "docs/tuning.md": tuning_names,
}


# Which between them call most of what the others do.
BY_DEFAULT = {"README.md", "docs/evaluation.md", "docs/interop.md", "docs/metrics.md", "docs/quick-start.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if name_of(page) in BY_DEFAULT else [pytest.mark.campaign])
        for page in PAGES
        if python_of(page)
    ],
    ids=name_of,
)
def test_python_blocks_run(page: Path, place: Path) -> None:
    if name_of(page) in ELSEWHERE:
        pytest.skip(ELSEWHERE[name_of(page)])
    if "plot(" in python_of(page):
        pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
    script = place / "page.py"
    script.write_text(python_of(page), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a handful of drawings: small sets, and classes that no model knows
        runpy.run_path(str(script), init_globals=NAMES.get(name_of(page), usual_names)())


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=name_of)
def test_commands_have_these_options(page: Path) -> None:
    for line in commands_of(page):
        words = shlex.split(line, comments=True)[1:]
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command, words = command.commands[words[0]], words[1:]
        command.make_context("deltaenergy", words).close()


def test_the_pages_have_commands_and_python() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) > 40
    assert sum(bool(python_of(page)) for page in PAGES) > 10
