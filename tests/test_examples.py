"""The examples run: a score, a method and a model from another package pass the contract checks."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests import fresh

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """Where a process in which the plugin is installed finds it: its modules, and the metadata of a wheel."""
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
    return [plugin, tmp_path]


def run(installed: list[Path], script: str) -> str:
    done = fresh.run_code(script, path=installed)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plugin_imports_what_is_promised_and_nothing_below() -> None:
    rooms = {"deltaenergy", "deltaenergy.scores", "deltaenergy.classifiers", "deltaenergy.models"}
    for file in sorted((EXAMPLES / "plugin").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deltaenergy"):
                assert node.module in rooms, f"{file.name} imports {node.module}"
                exported = importlib.import_module(node.module).__all__
                assert {name.name for name in node.names} <= set(exported), file.name


def test_a_score_from_another_package(installed: list[Path]) -> None:
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


def test_a_method_from_another_package(installed: list[Path]) -> None:
    out = run(
        installed,
        "import deltaenergy as de\n"
        "from deltaenergy.testing.methods import METHOD_CHECKS, every_score_works_on_it\n"
        "assert 'class-bias' in de.list_methods()\n"
        "from deltaenergy.classifiers.methods import make_method\n"
        "method = make_method('class-bias')\n"
        "every_score_works_on_it(method, ['delta-energy', 'knn', 'gl-mcm'])\n"
        "for check in METHOD_CHECKS:\n"
        "    if check is not every_score_works_on_it:\n"
        "        check(method)\n"
        "print('fine')",
    )
    assert out.strip() == "fine"


def test_a_model_from_another_package(installed: list[Path]) -> None:
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


def test_the_command_line_knows_them(installed: list[Path]) -> None:
    out = run(installed, "from deltaenergy.cli.main import run; run(['methods'])")
    assert "margin" in out and "class-bias" in out
