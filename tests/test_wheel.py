"""The wheel carries everything that the installed package reads at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("deltaenergy-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_file_of_the_package_is_in_the_wheel(wheel_names: set[str]) -> None:
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {"deltaenergy/models/lite/weights.safetensors", "deltaenergy/py.typed"} <= expected
    assert expected <= wheel_names


def test_nothing_else_is_installed_at_the_top(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert "deltaenergy" in tops
    assert all(top == "deltaenergy" or top.endswith(".dist-info") for top in tops)


def test_licence_and_notices_travel_along(wheel_names: set[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
    assert any(name.endswith("licenses/NOTICE") for name in wheel_names)
