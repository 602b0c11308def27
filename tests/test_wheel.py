"""The wheel carries everything that the installed package reads at run time."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (made,) = folder.glob("deltaenergy-*.whl")
    return made


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_file_of_the_package_is_in_the_wheel(wheel_names: set[str]) -> None:
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    weights = {f"deltaenergy/models/lite/{name}.safetensors" for name in ("weights", "image_tower")}
    assert {*weights, "deltaenergy/py.typed"} <= expected
    assert expected <= wheel_names


def test_nothing_else_is_installed_at_the_top(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert "deltaenergy" in tops
    assert all(top == "deltaenergy" or top.endswith(".dist-info") for top in tops)


def test_licence_and_notices_travel_along(wheel_names: set[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
    assert any(name.endswith("licenses/NOTICE") for name in wheel_names)


@pytest.mark.campaign
def test_the_wheel_runs_the_demo_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Away from the checkout, with nothing but what the wheel itself asks for."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "torch"], check=True)  # first and alone, as in the Makefile
    subprocess.run([*pip, f"{wheel}[demo]"], check=True)
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    work = tmp_path / "work"
    work.mkdir()
    code = "import deltaenergy; print(deltaenergy.__file__)"
    found = subprocess.run(
        [str(python), "-c", code], cwd=work, env=settings, check=True, capture_output=True, text=True
    )
    assert Path(found.stdout.strip()).is_relative_to(tmp_path)
    command = [str(python.parent / "deltaenergy"), "demo"]
    demo = subprocess.run(command, cwd=work, env=settings, check=True, capture_output=True, text=True)
    assert "none of these" in demo.stdout
    assert any(work.rglob("*.html"))
