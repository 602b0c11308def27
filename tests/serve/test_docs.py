"""What the pages about the service tell people to type works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deltaenergy.cli.main import run
from tests.serve.conftest import PICTURES, png
from tests.serve.process import Service

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module", params=["serving.md", "tutorials/serve.md"])
def text(request: pytest.FixtureRequest) -> str:
    """A page."""
    return (DOCS / request.param).read_text(encoding="utf-8")


def block(text: str, language: str, having: str) -> str:
    """The first code block of a language that has these words."""
    return next(code for code in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if having in code)


@pytest.fixture(scope="module")
def place(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pictures that the examples speak of, and the detector that their second line makes."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "good").mkdir()
    for i in range(24):
        (folder / "good" / f"{i}.png").write_bytes(png(100 + i))
    for i, name in enumerate(("photo.jpg", "other.jpg")):
        (folder / "one.png").write_bytes(PICTURES[i])
        Image.open(folder / "one.png").save(folder / name)
    line = next(line for line in text.splitlines() if line.strip().startswith("deltaenergy calibrate"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            run(shlex.split(line)[1:])
    assert ended.value.code in (0, None)
    return folder


@pytest.fixture(scope="module")
def service(text: str, place: Path) -> Iterator[Service]:
    line = next(line for line in text.splitlines() if line.strip().startswith("deltaenergy serve"))
    name, _, folder = shlex.split(line, comments=True)[-1].partition("=")
    running = Service({name: place / folder})
    yield running
    running.process.kill()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_lines_for_curl(text: str, service: Service, place: Path) -> None:
    lines = block(text, "sh", "curl").strip().splitlines()
    assert lines and {line.split()[0] for line in lines} == {"curl"}
    answers = []
    for line in lines:
        asked = shlex.split(line.replace(ADDRESS, f"http://127.0.0.1:{service.port}"))
        done = subprocess.run([asked[0], "-sS", *asked[1:]], cwd=place, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    verdicts = answers[0]
    assert [image["path"] for image in verdicts["images"]] == ["photo.jpg", "other.jpg"]
    assert all(image["verdict"] in ("known", "none of these") for image in verdicts["images"])
    assert all(classified["images"][0]["label"] in ("dog", "cat", "horse") for classified in answers[1:])


def test_the_python_client(text: str, service: Service, place: Path) -> None:
    """A function that asks for one picture, or one that asks for several and a loop that prints the answers."""
    code = block(text, "python", "urlopen").replace(ADDRESS, f"http://127.0.0.1:{service.port}")
    if "def verdict(" in code:
        code += "\nfor one in [verdict('photo.jpg'), verdict('other.jpg')]:\n    assert one['detector'] == 'pets'\n"
        code += "    print(one['path'], one['verdict'], one['label'], one['p_value'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["photo.jpg", "other.jpg"]
    for line in lines:
        assert re.fullmatch(r"\S+ (known|none of these) (dog|cat|horse) [01]\.\d+(e-\d+)?", line)
