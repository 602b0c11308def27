"""Kill a run that fills a store with worker processes, and count: `python -m tests.scale.kills [trials] [seed]`.

A worker, or the driver, is killed at a random moment; the run ends well or is run again; the store must have the
bytes of one that nobody disturbed.
"""

from __future__ import annotations

import functools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests import fresh

IMAGES = 40
PROGRAM = """
import sys, warnings
import deltaenergy as de
warnings.simplefilter("ignore")
model = de.load_model(sys.argv[1])
print("loaded", flush=True)
de.build_store(model, sys.argv[2], sys.argv[3], shard_size=4, batch_size=2, workers=int(sys.argv[4]) or None)
"""


def prepare(folder: Path) -> tuple[Path, Path]:
    """A tiny model and some pictures."""
    from tests.checkpoints import write_clip  # here: processes that `fresh` starts import this module, and no more

    pictures = folder / "pictures"
    pictures.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for i in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(pictures / f"{i:02d}.png")
    (pictures / "13.png").write_bytes(b"no picture")
    return write_clip(folder / "model"), pictures


def start(model: Path, pictures: Path, out: Path, workers: int) -> fresh.Running:
    """A run, once its model is loaded."""
    process = fresh.start_code(PROGRAM, model, pictures, out, workers, folder=model.parent)
    process.wait_for("loaded")
    return process


def children(process: int) -> list[int]:
    """The ids of a process's children that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if int(parent) == process and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(processes: list[int], seconds: float = 60) -> None:
    """Wait until none of these is alive."""
    until = time.monotonic() + seconds
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < until, "a worker outlives the one that started it"
        time.sleep(0.02)


def wait_for_a_shard(store: Path) -> None:
    """Wait until the first is there, while others are encoded."""
    until = time.monotonic() + 300
    while not list(store.glob("*.arrow")):
        assert time.monotonic() < until, "no shard is filled"
        time.sleep(0.002)


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def trial(
    model: Path, pictures: Path, out: Path, whole: dict[str, bytes], victim: str, wait: Callable[[], None]
) -> str:
    """Kill the `victim` when `wait` returns, let the store be finished, and compare."""
    process = start(model, pictures, out, 2)
    wait()
    workers = children(process.pid)
    target = process.pid if victim == "driver" else next(iter(workers), None)
    outcome = "too late"
    if target is not None and process.poll() is None:
        subprocess.run(["kill", "-KILL", str(target)], check=False)
        outcome = "killed"
    code = process.wait(300)
    if victim == "driver":
        wait_until_gone(workers)
        if outcome == "killed":
            assert code in (-signal.SIGKILL, 0)
    else:
        assert code == 0, "the others finish its work"
    if code != 0:
        assert start(model, pictures, out, 2).wait(300) == 0
    found = content(out)
    assert found == whole, f"other bytes: {sorted(dict(found.items() ^ whole.items()))}"
    return f"{victim}: {outcome}"


def campaign(folder: Path, trials: int, seed: int) -> Counter[str]:
    """This many kills of each kind; one that came too late, when all was done, is counted and tried again."""
    model, pictures = prepare(folder)
    begun = time.monotonic()
    assert start(model, pictures, folder / "whole", 0).wait(300) == 0
    timed = time.monotonic()
    assert start(model, pictures, folder / "timed", 2).wait(300) == 0
    longest = time.monotonic() - timed
    assert content(folder / "timed") == content(folder / "whole")
    choose = random.Random(seed)
    tried: Counter[str] = Counter()
    for victim in ("worker", "driver"):
        while tried[f"{victim}: killed"] < trials:
            out = folder / f"{victim}-{tried.total()}"
            wait = functools.partial(time.sleep, choose.uniform(0, longest * 0.8))
            outcome = trial(model, pictures, out, content(folder / "whole"), victim, wait)
            tried[outcome] += 1
            if outcome.endswith("too late"):  # others use the machine less than before
                longest *= 0.9
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return tried


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as workspace:
        arguments = [int(argument) for argument in sys.argv[1:]]
        print(dict(campaign(Path(workspace), *(arguments + [20, 0][len(arguments) :]))))
