"""Kill what fills a store on Ray, and count: `python -m tests.scale.ray_kills [trials] [seed]`.

`features --ray` runs on a Ray of its own. An actor, the driver, or the head of the cluster is killed at a random
moment; the store is finished by another run, and must have the bytes of one that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import deltaenergy as de
from tests.checkpoints import write_clip
from tests.scale.conftest import content, draw
from tests.scale.ray_here import SETTINGS

IMAGES = 24

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
        _wait(lambda: not any("ray::ShardActor" in _command(pid) for pid in family), "an actor outlives the command")
        for pid in family:  # what watches and logs may take longer
            if "/ray/" in _command(pid) or _command(pid).startswith("ray::"):
                os.kill(pid, signal.SIGKILL)
        return code


def trial(
    target: str, at: int, rng: random.Random, model: de.TowerModel, pictures: Path, out: Path, whole: dict[str, bytes]
) -> str:
    """Kill the target when `at` shards are there, finish the store, and compare; says how the command ended."""
    command = ["features", pictures, "--model", model.name, "--shard-size", 2, "--batch-size", 2, "--out", out]

    def shards() -> int:
        return len(list(out.glob("*.index.parquet")))

    code = run_and_kill(target, shards, at, rng, *command, "--ray", "local", "--workers", 1)
    # A worker is started again; a driver may be done before the kill, and actors before they miss their head.
    assert code in {"worker": (1,), "driver": (-9, 1), "gcs": (1, 2), "raylet": (1, 2)}[target], code
    there = {name: data for name, data in content(out).items() if name[0] != "." and name != "store.json"}
    assert there.items() <= whole.items(), "what is there is right already"
    de.build_store(model, pictures, out, batch_size=2)
    assert content(out) == whole
    return f"{target}: ended with {code}"


def prepare(folder: Path) -> Path:
    """Pictures, one of them damaged."""
    draw(folder, IMAGES - 1, 3)
    (folder / "010-damaged.png").write_bytes(b"no picture")
    return folder


def campaign(folder: Path, trials: int, seed: int) -> Counter[str]:
    """So many kills of a worker, of the driver and of the head."""
    model, pictures = de.load_model(write_clip(folder / "model")), prepare(folder / "pictures")
    de.build_store(model, pictures, folder / "whole", shard_size=2, batch_size=2)
    whole, rng, tried = content(folder / "whole"), random.Random(seed), Counter[str]()
    for target in ("worker", "driver", "gcs"):
        for number in range(trials):
            at, out = rng.randrange(IMAGES // 2), folder / f"{target}-{number}"
            tried[trial(target, at, rng, model, pictures, out, whole)] += 1
            print(dict(tried), flush=True)
    return tried


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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="de-kills-") as workspace:
        arguments = [int(argument) for argument in sys.argv[1:]]
        campaign(Path(workspace), *(arguments + [20, 0][len(arguments) :]))
