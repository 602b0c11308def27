"""Little memory, few threads, small files: one message and one exit code, and no half result under its own name."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.hostile import VALID
from tests.cli.runner import Runner
from tests.cli.test_hostile import check, fill
from tests.cli.world import World
from tests.sampling import spread

pytestmark = pytest.mark.usefixtures("no_hang")

RUN = "from deltaenergy.cli.main import run; run()"
WORKING = ["calibrate", "choose", "evaluate", "explain", "features", "monitor", "score", "sort", "theory", "tune"]
# In KiB of addresses. With less, Python and NumPy cannot even start; with more, all of these commands have enough.
MEMORY = range(300_000, 2_400_000, 150_000)
# In blocks of 1 KiB.
FILE_SIZES = [0, 1, 2, 8, 32]
SCORE = ["score", "{images}", "--detector", "{detector}"]
WRITING = [
    [*SCORE, "--out", "{out}.csv"],
    [*SCORE, "--out", "{out}.parquet"],
    [*SCORE, "--out", "{out}.xlsx"],
    [*SCORE, "--out", "{out}.csv", "--report", "{out}.html"],
]


def limited(limit: str, arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own under this limit of the shell."""
    # A compiled module that did not fit would be kept as it is.
    own = {"TMPDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, **own}
    command = ["bash", "-c", f'{limit} && exec "$0" "$@"', sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place, check=False, timeout=200)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit addresses")
@pytest.mark.parametrize(("name", "memory"), spread(WORKING, MEMORY, 35))
def test_little_memory(name: str, memory: int, world: World, inside: Path) -> None:
    done = limited(f"ulimit -v {memory}", [name, *fill(VALID[name], world, inside / "out")], inside)
    assert done.returncode in {0, 2}, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == 0 or "Error: " in done.stderr


@pytest.mark.parametrize(("arguments", "size"), spread(WRITING, FILE_SIZES, 5))
def test_small_files(arguments: list[str], size: int, world: World, inside: Path) -> None:
    done = limited(f"ulimit -f {size}", fill(arguments, world, inside / "out"), inside)
    assert done.returncode in {0, 2}, done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "Error: " in done.stderr
        assert any(words in done.stderr.lower() for words in ("too large", "larger than", "temporary directory"))
    written = [path for path in inside.iterdir() if path.name.startswith("out.")]
    assert all(path.stat().st_size for path in written), "no empty file under the name that was given"


@pytest.mark.parametrize(("name", "allowed"), spread(WORKING, range(5), 3))
def test_few_threads(
    name: str, allowed: int, command: Runner, world: World, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses every thread after the first few: fewer are used, or it is said."""
    started, start = [], threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) > allowed:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr("deltaenergy.cli.main._share_few_threads", lambda: None)
    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    result = command(name, *fill(VALID[name], world, inside / "out"))
    monkeypatch.undo()
    check(result)
    assert result.code in {0, 2}
    if result.code:
        assert "threads" in result.err
