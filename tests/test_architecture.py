"""The import graph: rooms stand in one order, nothing reaches up, and private names stay in their room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import deltaenergy

ROOT = Path(deltaenergy.__file__).parent
# From the ground up. A room may use those before it.
ORDER = [
    "errors",
    "files",
    "core",
    "stats",
    "data",
    "store",
    "source",
    "models",
    "training",
    "classifiers",
    "tuning",
    "scores",
    "scoring",
    "detector",
    "sorting",
    "monitor",
    "bridges",
    "evaluation",
    "pipeline",
    "benchmarks",
    "report",
    "explanation",
    "theory",
    "demo",
    "serve",
    "scale",
    "testing",
    "cli",
]


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports() -> Iterator[tuple[str, str, str, str]]:
    """File, its room, the room it imports from, and the name, but for imports that only annotations need."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts in (("__init__",), ("__main__",)):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        ignored: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                ignored.update(id(child) for child in ast.walk(node))
        for node in ast.walk(tree):
            if id(node) in ignored:
                continue
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "deltaenergy":
                for alias in node.names:
                    module = node.module if node.module != "deltaenergy" else f"deltaenergy.{alias.name}"
                    if module and not module.endswith(".__version__"):
                        yield path.name, room_of(f"x.{parts[0]}"), room_of(module), alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith("deltaenergy."):
                        yield path.name, room_of(f"x.{parts[0]}"), room_of(alias.name), alias.name


def test_every_room_has_its_place() -> None:
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__", "__main__"} == set(ORDER)


def test_nothing_reaches_up() -> None:
    upward = {
        f"{room}/{file} imports {used}" for file, room, used, _ in imports() if ORDER.index(used) > ORDER.index(room)
    }
    assert not upward


def test_private_names_stay_in_their_room() -> None:
    private = {
        f"{room}/{file} imports {name} of {used}"
        for file, room, used, name in imports()
        if room != used and any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    }
    assert not private


def test_importing_the_package_loads_no_towers() -> None:
    import subprocess
    import sys

    script = "import sys, deltaenergy; print(sorted({'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
