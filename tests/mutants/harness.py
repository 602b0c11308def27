"""Apply a mutant to a copy of the package, and run the tests that should notice it."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
# A mutant that makes a test run for ever is noticed too.
SECONDS = 300


class NotApplicable(Exception):
    """The code that a mutant changes is not there any more, or is there twice."""


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        name: module, class or function whose source is changed, dotted, below `deltaenergy`.
        fault: what goes wrong, in a few words.
        old: a piece of its source, which must be there exactly once.
        new: what stands in its place.
        tests: files, or tests in them, of which at least one must fail.
    """

    name: str
    fault: str
    old: str
    new: str
    tests: tuple[str, ...]

    def place(self) -> tuple[Path, str]:
        """The file, relative to the sources, and its text with the fault."""
        parts = ("deltaenergy", *self.name.split("."))
        for length in range(len(parts), 0, -1):
            stem = Path(*parts[:length])
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                if (SOURCES / path).is_file():
                    return path, self._changed((SOURCES / path).read_text(encoding="utf-8"), parts[length:])
        raise NotApplicable(f"{self.name}: there is no such module")

    def _changed(self, text: str, inside: tuple[str, ...]) -> str:
        start, end = self._span(text, inside)
        found = text[start:end].count(self.old)
        if found != 1:
            raise NotApplicable(f"{self.name}: {self.old!r} is there {found} times, not once")
        return text[:start] + text[start:end].replace(self.old, self.new) + text[end:]

    def _span(self, text: str, inside: tuple[str, ...]) -> tuple[int, int]:
        """Where the class or function begins and ends in the text; the whole text for a module."""
        body: list[ast.stmt] = ast.parse(text).body
        lines = [0]
        for line in text.splitlines(keepends=True):
            lines.append(lines[-1] + len(line))
        span = 0, len(text)
        for name in inside:
            nodes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            node = next((one for one in body if isinstance(one, nodes) and one.name == name), None)
            if node is None or node.end_lineno is None:
                raise NotApplicable(f"{self.name}: there is no {name!r}")
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            span, body = (lines[first - 1], lines[node.end_lineno]), node.body
        return span


@contextmanager
def sources_with(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the sources with the fault; weights and other data are links."""
    with TemporaryDirectory(prefix="deltaenergy-mutant-") as name:
        folder = Path(name)

        def copy(source: str, target: str) -> str:
            if source.endswith((".py", ".pyc")):
                return str(shutil.copy2(source, target))
            Path(target).symlink_to(source)
            return target

        shutil.copytree(SOURCES / "deltaenergy", folder / "deltaenergy", copy_function=copy)
        if mutant is not None:
            path, text = mutant.place()
            (folder / path).write_text(text, encoding="utf-8")
        yield folder


class Run:
    """The tests with the package in `folder`, in a fork of this process, which has imported all that takes long."""

    def __init__(self, folder: Path, tests: tuple[str, ...], seconds: float = SECONDS) -> None:
        self.tests, self.output = tests, folder / "output.txt"
        self._end = time.monotonic() + seconds
        self._child = os.fork()
        if self._child == 0:
            code = 3
            try:
                code = self._run(folder)
            finally:
                os._exit(code)

    def _run(self, folder: Path) -> int:
        with self.output.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.setsid()
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(folder)
        sys.path.insert(0, str(folder))
        import pytest

        options = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        code = int(pytest.main([*options, "--basetemp", str(folder / "temporary"), *self.tests]))
        sys.stdout.flush()
        return code

    def passed(self) -> bool | None:
        """Whether all tests passed; None while they run."""
        done, status = os.waitpid(self._child, os.WNOHANG)
        if not done:
            if time.monotonic() < self._end:
                return None
            os.killpg(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            return False
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, 1, 2):  # neither passed, nor failed, nor could not be collected
            raise RuntimeError(f"pytest ended with {code} for {', '.join(self.tests)}:\n{self.printed()}")
        return code == 0

    def printed(self) -> str:
        """The end of what pytest printed."""
        return self.output.read_text(encoding="utf-8", errors="replace")[-3000:]
