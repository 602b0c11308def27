"""Lint, types and the test suite, as jobs of which as many run at once as there are cores.

    python tools/suite.py [--all] [--no-lint] [--jobs N] [tests/folder or file ...]        or: make test

What most tests import is imported once, here. Each job is a copy of this process (a fork) that runs the tests of up to
`FILES` neighbouring files, which share what they make, and ends: nothing that one job leaves behind costs another one
memory. How long each took, its CPU time and the most memory of a process in it are printed.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINT = ("ruff check .", "ruff format --check .", "mypy")
FILES = 6
QUIET = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")  # of plugins that are shared
CAMPAIGNS = ("-m", "", "--hypothesis-profile=campaign")
# Processes side by side keep to one thread each; scripts that tests start write what they compile.
SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
SHARED = (
    "numpy PIL.Image pyarrow.parquet rich.progress scipy.stats sklearn.linear_model sklearn.metrics torch"
    " transformers.models.clip.modeling_clip yaml deltaenergy.cli.main deltaenergy.detector"
)
NO_TESTS = 5  # pytest's exit code where all tests of a job are left out
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclass(frozen=True)
class Job:
    """Words of a command: pytest's arguments, or those of a linter."""

    name: str
    words: tuple[str, ...]
    is_lint: bool = False


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    job: Job
    code: int
    output: str
    seconds: float
    cpu_seconds: float
    megabytes: float

    @property
    def failed(self) -> bool:
        return self.code not in (0, NO_TESTS)

    @property
    def summary(self) -> str:
        """The last line that it printed, without the time."""
        return re.sub(r" in [\d.]+s.*", "", (self.output.splitlines() or [""])[-1])


def groups(paths: Iterable[str], root: Path, files: int) -> list[Job]:
    """The test files below these paths: those of one folder in equal parts, the largest part first."""
    folders: dict[Path, list[Path]] = {}
    for path in map(root.joinpath, paths):
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            folders.setdefault(file.parent, []).append(file)
    sized = []
    for folder, found in folders.items():
        count = -(-len(found) // files)
        for i in range(count):
            part = found[i * len(found) // count : (i + 1) * len(found) // count]
            name = f"{folder.relative_to(root).as_posix()} {i + 1}/{count}"
            words = tuple(file.relative_to(root).as_posix() for file in part)
            sized.append((sum(file.stat().st_size for file in part), Job(name, words)))
    return [job for _, job in sorted(sized, key=lambda one: -one[0])]


def run(jobs: Sequence[Job], at_once: int, root: Path) -> Iterator[Ended]:
    """Run them, so many at once; each as soon as it has ended. What still runs is ended with this generator."""
    waiting, running = list(jobs), {}
    with tempfile.TemporaryDirectory(prefix="suite-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job, own = waiting.pop(0), Path(tempfile.mkdtemp(dir=folder))
                    running[_start(job, own, root)] = job, own, time.monotonic()
                process, status, used = os.wait4(-1, 0)
                job, own, since = running.pop(process)
                output = (own / "output").read_text(encoding="utf-8", errors="replace")
                shutil.rmtree(own, ignore_errors=True)
                seconds, cpu = time.monotonic() - since, used.ru_utime + used.ru_stime
                yield Ended(job, os.waitstatus_to_exitcode(status), output, seconds, cpu, used.ru_maxrss * 1024 / 1e6)
        finally:
            for process in running:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)


def _start(job: Job, folder: Path, root: Path) -> int:
    """The number of a process that does this job in a group of its own, and prints into `folder`."""
    sys.stdout.flush()
    if process := os.fork():
        os.setpgid(process, process)
        return process
    code = 1
    try:
        os.setpgid(0, 0)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not what a caller made of them
        with (folder / "output").open("wb") as output, Path(os.devnull).open("rb") as nothing:
            for number, stream in enumerate((nothing, output, output)):
                os.dup2(stream.fileno(), number)
        os.chdir(root)
        if job.is_lint:
            code = subprocess.run([sys.executable, "-m", *job.words], check=False).returncode
        else:
            own = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}", *QUIET]
            code = pytest.main([*own, *job.words])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # not what this process would do at its own end


def tell(ended: Ended) -> None:
    """One line; all that it printed if it failed, and otherwise what was skipped."""
    used = f"{ended.seconds:6.1f} s {ended.cpu_seconds:6.1f} CPU s {ended.megabytes:5.0f} MB"
    print("FAILED" if ended.failed else "ok    ", used, f" {ended.job.name}:", ended.summary, flush=True)
    for line in ended.output.splitlines():
        if ended.failed or line.startswith("SKIPPED"):
            print("   ", line, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run all; the exit code is 1 if a job failed."""
    parser = argparse.ArgumentParser(description="Lint, types and the test suite.")
    parser.add_argument("paths", nargs="*", default=["tests"], help="folders and files of tests")
    parser.add_argument("--all", action="store_true", help="with the campaigns")
    parser.add_argument("--no-lint", action="store_true", help="only tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (default: the cores)")
    given = parser.parse_args(arguments)
    os.environ.update(SETTINGS)
    sys.path.insert(0, str(ROOT / "src"))
    compileall.compile_dir(ROOT / "src", quiet=1)  # not by tests that allow only small files
    for name in SHARED.split():
        importlib.import_module(name)
    gc.freeze()  # or each copy would write to the memory that they share
    options = CAMPAIGNS if given.all else ()
    tests = [Job(job.name, (*options, *job.words)) for job in groups(given.paths, ROOT, FILES)]
    lint = [] if given.no_lint else [Job(words, tuple(words.split()), is_lint=True) for words in LINT]
    since, ended = time.monotonic(), []
    for one in run([*lint, *tests], given.jobs, ROOT):
        ended.append(one)
        tell(one)
    most = max(ended, key=lambda one: one.megabytes)
    print(f"\n{time.monotonic() - since:.0f} s, {sum(one.cpu_seconds for one in ended):.0f} CPU s;", end=" ")
    print(f"the most memory: {most.megabytes:.0f} MB ({most.job.name})")
    failed = [one.job.name for one in ended if one.failed]
    print("Failed:" if failed else "All passed.", *failed, sep="\n    " if failed else "")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for number, word in (found for one in ended if not one.job.is_lint for found in COUNTS.findall(one.summary)):
        counts["failed" if word == "error" else word] += int(number)
    counts["failed"] = max(counts["failed"], len(failed))
    print(", ".join(f"{number} {word}" for word, number in counts.items()))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
