"""Everything that the package imports is declared in pyproject.toml, and everything that is declared is used."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Where the name of a package differs from the name by which it is imported.
IMPORTED_AS = {
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit_learn": "sklearn",
    "scikit_image": "skimage",
    "python_multipart": "multipart",
}
# Imported by other packages, where ours hands them something to do.
INDIRECT = {
    "multipart": "starlette reads forms with it",
    "onnx": "torch.onnx.export writes graphs with it",
    "onnxscript": "torch.onnx.export writes graphs with it",
    "skimage": "the demo reads the photographs inside it, found by find_spec",
}
# Extras for people who work on the package, and not for those who use it.
FOR_DEVELOPERS = {"dev", "docs"}


def declared(requirements: list[str]) -> set[str]:
    """The names by which the required packages are imported."""
    names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("-", "_") for requirement in requirements}
    return {IMPORTED_AS.get(name, name) for name in names}


@functools.cache
def imported(*, always: bool) -> dict[str, set[str]]:
    """Packages that the sources import -> files; `always`: only by statements that run when a module is imported."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body if always else ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            elif isinstance(node, ast.Call) and _loads_by_name(node):
                modules = [str(node.args[0].value)]  # type: ignore[attr-defined]
            else:
                continue
            for module in modules:
                found.setdefault(module.split(".")[0], set()).add(file.relative_to(ROOT).as_posix())
    ours = {"deltaenergy", *sys.stdlib_module_names}
    return {name: files for name, files in found.items() if name not in ours}


def _loads_by_name(call: ast.Call) -> bool:
    """`library("openvino", …)` of the backends, and importlib's functions."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    first = call.args[0] if call.args else None
    by_name = name in {"library", "import_module", "find_spec"}
    return by_name and isinstance(first, ast.Constant) and isinstance(first.value, str)


EXTRAS = {name: declared(extra) for name, extra in PROJECT["optional-dependencies"].items()}
OF_USERS = set().union(*(names for extra, names in EXTRAS.items() if extra not in FOR_DEVELOPERS))
CORE = declared(PROJECT["dependencies"])


def test_everything_imported_is_declared() -> None:
    missing = {name: files for name, files in imported(always=False).items() if name not in CORE | OF_USERS}
    assert not missing, "imported by the package, and not among its dependencies or extras in pyproject.toml"


def test_everything_declared_is_imported() -> None:
    assert imported(always=False).keys() | INDIRECT.keys() >= CORE | OF_USERS


def test_what_the_bare_package_imports_is_no_extra() -> None:
    """Only folders that an extra is for may import it at their top."""
    rooms = ("/serve/", "/sklearn", "/bridges/", "/pytorch_ood/")
    top = {
        name: sorted(file for file in files if not any(room in file for room in rooms))
        for name, files in imported(always=True).items()
        if name not in CORE
    }
    assert not {name: files for name, files in top.items() if files}


def test_every_dependency_has_a_lower_bound() -> None:
    """Found by trial; `make test-lowest` installs exactly these."""
    assert all(re.fullmatch(r"[\w-]+>=[\d.]+", requirement) for requirement in PROJECT["dependencies"])


def test_dependencies_are_explained() -> None:
    """docs/dependencies.md has a row for each dependency and each extra."""
    rows = re.findall(r"^\| `?([\w-]+)`? \|", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8"), re.M)
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert names | EXTRAS.keys() <= set(rows)
