"""The examples run: a score, a method and a model from another package pass the contract checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the plugin is installed: its modules, and the metadata of a wheel."""
    plugin = EXAMPLES / "plugin"
    metadata = tmp_path / "deltaenergy_example_plugin-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: deltaenergy-example-plugin\nVersion: 0.1.0\n")
    text = (plugin / "pyproject.toml").read_text(encoding="utf-8")
    points = text.split("[project.entry-points.")[1:]
    lines = []
    for block in points:
        head, _, rest = block.partition("]\n")
        lines.append(f"[{head.strip(chr(34))}]")
        lines += [line.replace('"', "") for line in rest.split("\n\n")[0].splitlines()]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(plugin), str(tmp_path), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "DELTAENERGY_CACHE": str(tmp_path / "cache")}


def run(environment: dict[str, str], script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_score_from_another_package(installed: dict[str, str]) -> None:
    out = run(
        installed,
        "import numpy as np, deltaenergy as de\n"
        "from deltaenergy.testing import check_score\n"
        "from margin import margin\n"
        "assert 'margin' in de.list_scores()\n"
        "assert np.allclose(margin(np.array([[0.3, 0.1, 0.25]])), [0.05])\n"
        "check_score('margin'); print(de.make_score('margin').spec)",
    )
    assert out.strip() == "margin"


def test_a_method_from_another_package(installed: dict[str, str]) -> None:
    out = run(
        installed,
        "import deltaenergy as de\n"
        "from deltaenergy.testing import check_method\n"
        "assert 'class-bias' in de.list_methods()\n"
        "check_method('class-bias'); print('fine')",
    )
    assert out.strip() == "fine"


def test_a_model_from_another_package(installed: dict[str, str]) -> None:
    out = run(
        installed,
        "import numpy as np, deltaenergy as de\n"
        "from PIL import Image\n"
        "rng = np.random.default_rng(0)\n"
        "image = Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8))\n"
        "grey, lite = de.load_model('grey-lite'), de.load_model('lite')\n"
        "assert grey.fingerprint != lite.fingerprint and grey.name == 'grey-lite'\n"
        "same = grey.encode_images([image]) - lite.encode_images([image.convert('L').convert('RGB')])\n"
        "other = grey.encode_images([image]) - lite.encode_images([image])\n"
        "print(abs(same).max() < 1e-2, abs(other).max() > 1e-3)",
    )
    assert out.strip() == "True True"


def test_the_command_line_knows_them(installed: dict[str, str]) -> None:
    out = run(installed, "from deltaenergy.cli.main import run; run(['methods'])")
    assert "margin" in out and "class-bias" in out
