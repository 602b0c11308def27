"""Run a command on a Ray of its own, kill one of its processes when it is so far, and see how it ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.scale.ray_here import SETTINGS

# What is killed, and how its process is recognised among those that the command started.
TARGETS = {"worker": "ray::", "driver": "", "gcs": "gcs/gcs_server", "raylet": "raylet/raylet"}
_SCRIPT = """
import sys
from deltaenergy.scale import ray_cluster
ray_cluster.PATIENCE = 5.0
from deltaenergy.cli.main import run
run(sys.argv[1:])
"""
# No run takes a tenth of this on a machine of its own.
SECONDS = 300.0


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`deltaenergy` with these arguments, in a process of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="de-ray-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, **SETTINGS, "RAY_TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SCRIPT, *map(str, arguments)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def run_and_kill(target: str, progress: Callable[[], int], at: int, rng: random.Random, *arguments: object) -> int:
    """Start the command, kill the target when `progress` is at least `at` and a moment has passed; its exit code.

    -9 stands for a driver that was killed. The command may be done before the moment comes.
    """
    with started(*arguments) as process:
        until = time.monotonic() + SECONDS
        while progress() < at and process.poll() is None:
            assert time.monotonic() < until, "the command does not go on"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        found = [process.pid] if target == "driver" else _matching(process.pid, TARGETS[target])
        family = _descendants(process.pid)
        if found and process.poll() is None:
            os.kill(rng.choice(found), signal.SIGKILL)
        code = process.wait(SECONDS)
        # An actor whose driver was killed ends a moment later, and holds the store until then.
        _wait(lambda: not any(_command(pid) for pid in family), "Ray's processes outlive the command")
        return code


def _matching(parent: int, word: str) -> list[int]:
    """Descendants whose command begins with the word (Ray's actors), or runs a program of that name."""
    found = []
    for pid in _descendants(parent):
        program = _command(pid).split("\0")[0]
        if program.startswith(word) if word == "ray::" else program.endswith(word):
            found.append(pid)
    return [pid for pid in found if "Agent" not in _command(pid)]


def _descendants(parent: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                before = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(before, []).append(int(entry.name))
    found, waiting = [], [parent]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until, otherwise
        time.sleep(0.1)
