"""The scripts in examples/ do what they say, each in a process of its own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from tests import fresh

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: object, code: int = 0, path: Path | None = None) -> str:
    done = fresh.run_script(ROOT / "examples" / script, *arguments, path=[path] if path else [])
    assert done.returncode == code, done.stderr
    return done.stdout


def draw(folder: Path, colour: tuple[int, int, int], count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.clip(np.array(colour) + rng.normal(0, 12, (32, 32, 3)) + rng.normal(0, 12, 3), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{folder.name}-{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Known pictures of two colours, new ones of these and of noise, and a detector."""
    root = tmp_path_factory.mktemp("examples")
    for seed, (name, colour) in enumerate({"red": (220, 30, 30), "blue": (30, 30, 220)}.items()):
        draw(root / "known" / name, colour, 40, seed)
        draw(root / "new" / name, colour, 6, 10 + seed)
    rng = np.random.default_rng(5)
    (root / "noise").mkdir()
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(
            root / "noise" / f"noise-{number:02}.png"
        )
    model = de.load_model("lite")
    plain = {"blue": (30, 30, 220), "red": (220, 30, 30)}
    means = [model.encode_images(draw(root / "plain" / name, plain[name], 20, 7)).mean(axis=0) for name in plain]
    vectors = np.stack([mean / np.linalg.norm(mean) for mean in means])
    detector = de.Detector(de.PrecomputedClassifier(vectors, list(plain), model), "max-logit")
    detector.calibrate(root / "known", 0.9, 0.8).save(root / "detector")
    return root


def test_sort_folder(place: Path, tmp_path: Path) -> None:
    out = run("sort_folder.py", place / "known", place / "new", tmp_path / "out")
    copied = {path.name for path in (tmp_path / "out").rglob("*.png")}
    assert copied == {path.name for path in (place / "new").rglob("*.png")}
    told = re.search(r"(\d+) of 12 are none of these", out)
    nowhere = tmp_path / "out" / "none of these"
    assert told and int(told[1]) == (len(list(nowhere.iterdir())) if nowhere.exists() else 0)
    assert "red-00.png" in (tmp_path / "out" / "page.html").read_text(encoding="utf-8")


def test_scikit_learn(place: Path, tmp_path: Path) -> None:
    for name in ("new", "noise"):
        shutil.copytree(place / name, tmp_path / name)
    lines = [line.split("\t") for line in run("scikit_learn.py", place / "known", tmp_path).splitlines()]
    labels = {Path(name).name: label for name, label in lines}
    strange = [label for name, label in labels.items() if name.startswith("noise")]
    assert strange == ["none of these"] * 12
    found = {name: label for name, label in labels.items() if not name.startswith("noise")}
    right = [label == name.split("-")[0] for name, label in found.items() if label != "none of these"]
    assert len(found) == 12 and len(right) >= 8 and all(right)


def test_fiftyone_view(place: Path, tmp_path: Path) -> None:
    run(
        "fiftyone_view.py",
        place / "detector",
        place / "noise",
        tmp_path / "fiftyone",
        path=_without("fiftyone", tmp_path),
    )
    labels = json.loads((tmp_path / "fiftyone" / "labels.json").read_text(encoding="utf-8"))
    assert len(labels["labels"]) == 12 and labels["classes"][-1] == "none of these"
    rejected = [one for one in labels["labels"].values() if one["label"] == len(labels["classes"]) - 1]
    assert len(rejected) == 12 and {one["attributes"]["closest_class"] for one in rejected} <= {"blue", "red"}


def test_watch_folder(place: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    assert "No change found" in run("watch_folder.py", place / "detector", place / "new", state)
    assert "The images have changed" in run("watch_folder.py", place / "detector", place / "noise", state, code=3)
    assert (tmp_path / "state.json.html").is_file()


def test_service_client(place: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from tests.serve.test_service import Service

    service = Service({"colours": place / "detector"})
    try:
        files = [place / "new" / "red" / "red-00.png", place / "noise" / "noise-00.png"]
        url = f"http://127.0.0.1:{service.port}"
        out = run("service_client.py", url, "colours", *files)
        judged = de.Detector.load(place / "detector").predict(files)
        assert [line.split("\t")[1] for line in out.splitlines()] == [
            f"{verdict.verdict}, closest class {verdict.label}" for verdict in judged
        ]
        done = fresh.run_script(ROOT / "examples" / "service_client.py", url, "pets", files[0])
        assert done.returncode == 1 and "404: There is no detector 'pets'" in done.stderr
    finally:
        assert service.stop() == 0


def test_pytorch_ood_scores() -> None:
    out = run("pytorch_ood_scores.py", path=ROOT / "tests" / "pytorch_ood_stub")
    known, unknown = map(float, re.findall(r"-?[\d.]+", out))
    assert known < unknown


def _without(package: str, folder: Path) -> Path:
    """A folder in which the package cannot be imported, whether it is installed or not."""
    (folder / "hidden").mkdir()
    (folder / "hidden" / f"{package}.py").write_text("raise ImportError\n")
    return folder / "hidden"
