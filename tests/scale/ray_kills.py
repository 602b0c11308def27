"""Kill what works on Ray, and count: `python -m tests.scale.ray_kills [trials] [seed] [features|score] [target …]`.

`features --ray` and `score --ray` run on a Ray of their own. An actor, the driver, or the head of the cluster is killed
at a random moment; the command is run again, and the store or the table must have the bytes of one that nobody
disturbed. A kill that came too late, when all was done, is counted apart, and tried again.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple, Protocol

import deltaenergy as de
from tests.checkpoints import write_clip
from tests.scale.conftest import draw
from tests.scale.kills import content
from tests.scale.ray_here import SETTINGS

IMAGES, PARTS = 24, 12

# What is killed, and how its process is recognised among those that the command started.
TARGETS = {"worker": "ray::MapWorker", "driver": "", "gcs": "gcs/gcs_server", "raylet": "raylet/raylet"}
_SCRIPT = """
import sys
from deltaenergy.scale import ray
ray.PATIENCE = 5.0
from deltaenergy.cli.main import run
run(sys.argv[1:])
"""
# No run takes a tenth of this on a machine of its own.
SECONDS = 300.0


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`deltaenergy` with these arguments in a process of its own, which ends with the block, and Ray's folder."""
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
            yield process, folder
        finally:
            process.kill()
            process.wait()


class Kill(NamedTuple):
    """How a command ended (-9: its driver was killed), and whether the kill came before its work was done."""

    code: int
    in_time: bool


def run_and_kill(target: str, work: Work, at: int, rng: random.Random) -> Kill:
    """Run on Ray, kill the target when `at` parts of the work are there and a moment has passed."""
    with started(*work.command, "--ray", "local", "--workers", 1) as (process, folder):
        until = time.monotonic() + SECONDS
        while work.done() < at and process.poll() is None:
            assert time.monotonic() < until, "the command does not go on"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        found = [process.pid] if target == "driver" else _matching(folder, TARGETS[target])
        in_time = bool(found) and process.poll() is None and work.done() < PARTS
        if found and process.poll() is None:
            os.kill(rng.choice(found), signal.SIGKILL)
        code = process.wait(SECONDS)
        # An actor whose driver was killed ends a moment later, and holds its shard until then.
        _wait(lambda: not _matching(folder, TARGETS["worker"]), "an actor outlives it")
        for pid in _family(folder):  # what watches and logs may take longer
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait(lambda: not _family(folder), "what is killed does not end")
        return Kill(code, in_time)


class Work(Protocol):
    """A command in twelve parts, how many of them are there, and what must come out."""

    command: list[object]

    def done(self) -> int:
        """So many of its parts are there."""
        ...

    def finish(self) -> None:
        """Check what is there, do the rest, and compare."""
        ...


class Filling:
    """`features`: a store in shards of two images."""

    def __init__(self, model: de.TowerModel, pictures: Path, out: Path, whole: dict[str, bytes]) -> None:
        self.command: list[object] = ["features", pictures, "--model", model.name, "--out", out]
        self.command += ["--shard-size", 2, "--on", "batch=2"]
        self._model, self._pictures, self._out, self._whole = model, pictures, out, whole

    def done(self) -> int:
        return len(list(self._out.glob("*.arrow")))

    def finish(self) -> None:
        there = {name: data for name, data in content(self._out).items() if name[0] != "." and name != "store.json"}
        assert there.items() <= self._whole.items(), "what is there is right already"
        de.build_store(self._model, self._pictures, self._out, shard_size=2, batch_size=2)
        found = content(self._out)
        assert found == self._whole, f"other bytes: {sorted(dict(found.items() ^ self._whole.items()))}"


class Scoring:
    """`score`: the table of that store's verdicts."""

    def __init__(self, detector: Path, store: Path, out: Path, whole: bytes) -> None:
        self.command: list[object] = ["score", store, "--detector", detector, "--out", out]
        self._out, self._whole = out, whole
        out.parent.mkdir()

    def done(self) -> int:
        return PARTS if self._out.exists() else len(list(self._out.parent.glob(".deltaenergy-*.parts/*.parquet")))

    def finish(self) -> None:
        assert not self._out.exists() or self._out.read_bytes() == self._whole, "all or nothing"
        before = self.done()
        with started(*self.command, "--ray", "local", "--workers", 1) as (process, _):
            assert process.wait(SECONDS) == 1, f"one image cannot be read; {before} parts were there"
        assert self._out.read_bytes() == self._whole
        assert list(self._out.parent.iterdir()) == [self._out], "nothing is left beside it"


def trial(target: str, at: int, rng: random.Random, work: Work) -> Kill:
    """Kill the target when `at` parts are there, run the command again, and compare."""
    kill = run_and_kill(target, work, at, rng)
    # A worker is started again; a driver may be done before the kill, and actors before they miss their head.
    assert kill.code in {"worker": (1,), "driver": (-9, 1), "gcs": (1, 2), "raylet": (1, 2)}[target], kill
    work.finish()
    return kill


def prepare(folder: Path) -> Path:
    """Pictures, one of them damaged."""
    draw(folder, IMAGES - 1, 3)
    (folder / "010-damaged.png").write_bytes(b"no picture")
    return folder


def verdicts(folder: Path, model: de.TowerModel, store: Path) -> tuple[Path, bytes]:
    """A detector, and the table that one process writes of a store."""
    detector, out = folder / "detector", folder / "whole.csv"
    classifier = de.ZeroShotClassifier(model, ["cat", "dog", "bird"])
    de.Detector(classifier, "mcm").calibrate(draw(folder / "known", 30, 2)).save(detector)
    with started("score", store, "--detector", detector, "--out", out) as (process, _):
        assert process.wait(SECONDS) == 1, "one image cannot be read"
    return detector, out.read_bytes()


def campaign(folder: Path, trials: int, seed: int, words: Sequence[str]) -> Counter[str]:
    """So many kills in time of a worker, of the driver and of the head, or of those among the words."""
    model, pictures = de.load_model(write_clip(folder / "model")), prepare(folder / "pictures")
    de.build_store(model, pictures, folder / "whole", shard_size=2, batch_size=2)
    whole, rng, tried = content(folder / "whole"), random.Random(seed), Counter[str]()
    detector, table = verdicts(folder, model, folder / "whole")
    commands = [word for word in ("features", "score") if word in words] or ["features", "score"]
    targets = [word for word in TARGETS if word in words] or ["worker", "driver", "gcs"]
    for command, target in product(commands, targets):
        for number in range(3 * trials):
            name, at = f"{command}-{target}-{number}", rng.randrange(PARTS)
            work: Work = Scoring(detector, folder / "whole", folder / name / "verdicts.csv", table)
            if command == "features":
                work = Filling(model, pictures, folder / name, whole)
            kill = trial(target, at, rng, work)
            when = f"ended with {kill.code}" if kill.in_time else "too late"
            tried[f"{command}, {target}, {when}"] += 1
            print(dict(tried), flush=True)
            if sum(count for key, count in tried.items() if key.startswith(f"{command}, {target}, ended")) == trials:
                break
    return tried


def _matching(folder: str, word: str) -> list[int]:
    """Those of the family whose command begins with the word (Ray's actors), or that run a program of that name."""
    programs = {pid: _program(pid) for pid in _family(folder)}
    return [pid for pid, program in programs.items() if program.startswith(word) or program.endswith(word)]


def _family(folder: str) -> list[int]:
    """The processes of a command that are alive, also those whose parent is gone: they share an environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile, or is somebody else's
                if f"RAY_TMPDIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until, otherwise
        time.sleep(0.1)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    named = [argument for argument in sys.argv[1:] if not argument.isdigit()]
    with tempfile.TemporaryDirectory(prefix="de-kills-") as workspace:
        wanted, start = numbers + [20, 0][len(numbers) :]
        campaign(Path(workspace), wanted, start, named)
