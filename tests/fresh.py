"""Run Python code in a process of its own that need not import torch again.

A server process imports the large packages that this one builds on, once, and is forked for each run: a few
hundredths of a second in the place of two seconds. This package itself is imported anew by every run.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS = 300
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["numpy", "pandas", "PIL.Image", "pyarrow.parquet", "safetensors.torch", "torch", "yaml", "fastapi"]
)


@dataclass(frozen=True)
class Done:
    """How a run ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Running:
    """A script that runs: `python script arguments` in the folder `cwd`, with `path` before all that is searched."""

    def __init__(self, script: Path, *arguments: object, path: Sequence[Path] = (), cwd: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.streams = Path(self._folder.name, "out"), Path(self._folder.name, "err")
        for stream in self.streams:
            stream.touch()
        words = [str(script), *map(str, arguments)]
        first = [str(script.parent), *map(str, path)]
        self._process = _PROCESSES.Process(
            target=_main, args=(words, first, str(cwd or Path.cwd()), dict(os.environ), self.streams)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._process.exitcode

    def wait(self, seconds: float = SECONDS) -> int:
        """The exit code, once it has ended; a signal's number is negative."""
        self._process.join(seconds)
        code = self.poll()
        assert code is not None, f"not done after {seconds} s"
        return code

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()
        self._process.join()

    def wait_for(self, text: str) -> str:
        """The first line of what it prints that has this text."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            ended = self.poll() is not None
            lines = "".join(stream.read_text(encoding="utf-8") for stream in self.streams).splitlines(keepends=True)
            for line in lines:
                if text in line and line.endswith("\n"):
                    return line
            if ended:
                break
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not printed, but {lines}")


def run_script(script: Path, *arguments: object, path: Sequence[Path] = (), cwd: Path | None = None) -> Done:
    """Run a script to its end; see `Running`."""
    running = Running(script, *arguments, path=path, cwd=cwd)
    try:
        code = running.wait()
    finally:
        running.kill()
    return Done(code, *(stream.read_text(encoding="utf-8") for stream in running.streams))


def run_code(code: str, *arguments: object, path: Sequence[Path] = (), cwd: Path | None = None) -> Done:
    """`python -c code arguments` to its end."""
    with tempfile.TemporaryDirectory() as folder:
        return run_script(_written(code, folder), *arguments, path=path, cwd=cwd)


def start_code(code: str, *arguments: object, folder: Path) -> Running:
    """`python -c code arguments`, which runs; the code is kept in the folder."""
    return Running(_written(code, folder), *arguments)


def _written(code: str, folder: str | Path) -> Path:
    script = Path(folder) / "script.py"
    script.write_text(code, encoding="utf-8")
    return script


def _main(words: list[str], first: list[str], cwd: str, environment: dict[str, str], streams: Sequence[Path]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, stream in enumerate(streams, start=1):
        with stream.open("wb") as file:
            os.dup2(file.fileno(), number)
    assert "deltaenergy" not in sys.modules
    sys.path[:0] = first
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
