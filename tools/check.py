"""Lint, types, and the tests of what changed since a branch; for every few minutes of work.

    python tools/check.py [main]            or: make check

The tests of `src/deltaenergy/a/b.py` are `tests/a/test_b*.py`, or else `test_b*.py` in a folder above, or else the
files of tests that name `deltaenergy.a.b`, or else all in `tests/a`. A changed file of tests is run itself; one that
others share stands for its folder. After 40 seconds no further test begins; how many that leaves is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = "tests/test_architecture.py"
PACKAGE = "src/deltaenergy/"
SECONDS = 40


def changed_files(root: Path, base: str) -> list[str]:
    """What differs from the commit where `base` was left, committed or not; files that are gone are left out."""
    since = _git(root, "merge-base", "HEAD", base)[0]
    differing = _git(root, "diff", "--name-only", "--diff-filter=d", since)
    return sorted({*differing, *_git(root, "ls-files", "--others", "--exclude-standard")})


def tests_of(changed: Iterable[str], root: Path) -> list[str]:
    """The files and folders of tests that look at these files."""
    found = {ALWAYS}
    for name in changed:
        path = Path(name)
        if name.startswith(PACKAGE) and path.suffix == ".py":
            found |= _tests_of_module(Path(name.removeprefix(PACKAGE)), root)
        elif name.startswith("tests/") and path.suffix == ".py":
            if path.name.startswith("test_"):
                found.add(name)
            elif path.parent != Path("tests"):
                found.add(path.parent.as_posix())
        elif name.startswith("tools/"):
            found |= _matching(root, f"tests/tools/test_{path.stem}*.py")
            found |= _matching(root, f"tests/tools/test_{path.parent.name}*.py")
        elif path.suffix == ".md":
            found.add("tests/docs/test_code_blocks.py::test_commands_have_these_options")
    folders = {one for one in found if not one.endswith(".py") and "::" not in one}
    return sorted(one for one in found if not any(one.startswith(f"{folder}/") for folder in folders))


def _tests_of_module(module: Path, root: Path) -> set[str]:
    """`a/b.py` -> its files of tests."""
    folder = Path("tests") / module.parent
    for near in (folder, *folder.parents[:-1]):
        if own := _matching(root, f"{near.as_posix()}/test_{module.stem}*.py"):
            return own
    parts = module.with_suffix("").parts
    dotted = ".".join(("deltaenergy", *(parts[:-1] if parts[-1] == "__init__" else parts)))
    naming = {one for one in _matching(root, "tests/**/test_*.py") if dotted in (root / one).read_text("utf-8")}
    if naming and dotted != "deltaenergy":
        return naming
    return {folder.as_posix()} if module.parent.parts and (root / folder).is_dir() else set()


def _matching(root: Path, pattern: str) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.glob(pattern)}


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


class Limit:
    """For pytest: no test starts after this many seconds."""

    def __init__(self, seconds: float) -> None:
        self._until, self._left = time.monotonic() + seconds, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """True instead of a run."""
        late = time.monotonic() > self._until
        self._left += late
        return late or None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what is left."""
        if self._left:
            terminalreporter.write_line(f"Time is up: {self._left} tests were not started. make test runs all.")


def main(base: str) -> int:
    """Run all side by side; the exit code is 1 if any of them finds something."""
    tests = tests_of(changed_files(ROOT, base), ROOT)
    print("Tests:", *tests, flush=True)
    jobs = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
    running = [subprocess.Popen([sys.executable, "-m", *job], cwd=ROOT) for job in jobs]
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    codes = [int(pytest.main(["-q", "-x", *tests], plugins=[Limit(SECONDS)]))]
    codes += [process.wait() for process in running]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "main"))
