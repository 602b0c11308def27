"""What docs/serving.md tells people to type works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deltaenergy.cli.main import run
from tests.serve.conftest import PICTURES, png
from tests.serve.process import Service

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def block(language: str) -> str:
    """The first code block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pictures that the examples speak of, and the detector that their second line makes."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "good").mkdir()
    for i in range(24):
        (folder / "good" / f"{i}.png").write_bytes(png(100 + i))
    for i, name in enumerate(("photo.jpg", "other.jpg")):
        (folder / "one.png").write_bytes(PICTURES[i])
        Image.open(folder / "one.png").save(folder / name)
    line = next(line for line in TEXT.splitlines() if line.strip().startswith("deltaenergy calibrate"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            run(shlex.split(line)[1:])
    assert ended.value.code in (0, None)
    return folder


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[Service]:
    line = next(line for line in TEXT.splitlines() if line.strip().startswith("deltaenergy serve"))
    name, _, folder = shlex.split(line, comments=True)[-1].partition("=")
    running = Service({name: place / folder})
    yield running
    running.process.kill()
    running.process.wait()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_lines_for_curl(service: Service, place: Path) -> None:
    lines = block("sh").strip().splitlines()
    assert [line.split()[0] for line in lines] == ["curl", "curl"]
    answers = []
    for line in lines:
        asked = shlex.split(line.replace(ADDRESS, f"http://127.0.0.1:{service.port}"))
        done = subprocess.run([asked[0], "-sS", *asked[1:]], cwd=place, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    verdicts, classified = answers
    assert [image["id"] for image in verdicts["images"]] == ["photo.jpg", "other.jpg"]
    assert all(image["verdict"] in ("known", "none of these") for image in verdicts["images"])
    assert classified["images"][0]["label"] in ("dog", "cat", "horse")


def test_the_python_client(service: Service, place: Path) -> None:
    asks = f"{block('python')}\nprint(json.dumps(verdict('photo.jpg', url='http://127.0.0.1:{service.port}')))"
    done = subprocess.run([sys.executable, "-c", asks], cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (answer["id"], answer["detector"]) == ("photo.jpg", "pets")
    assert answer["verdict"] in ("known", "none of these")
