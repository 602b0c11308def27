"""Memory and CPU time for each row of features: `score STORE --out FILE` and `evaluate` over 10⁴, 10⁵ and 10⁶ rows.

Stores of random unit features (D = 512) and a detector of 100 classes; for `evaluate`, half of the rows are known and
half open. In `evaluate-learned` the score (react) learns from the known ones; `evaluate-values` is the Python function
without the 1,000 bootstrap resamples behind the command's intervals. Each run is a process of its own, as a user would
start it. The peer is the same command on fewer rows. Goals: peak memory ≤ 1.25 times as much for a hundred times the
rows, and a row that costs the same (± 5%) at 10⁵ and at 10⁶. The cost of a row is (t(n) − t(1,024)) / (n − 1,024) in
CPU seconds of one thread after everything was imported and the detector loaded once (threads of OpenMP that wait for
each other spin, and count as busy: with two, others at work on the machine make a row cost up to four times as much); t
is the least of REPEATS runs, in turns. What each of them took is told, too: their spread says what a ratio is worth.

    python bench/rows.py [COMMAND …]        (default: all of COMMANDS)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import deltaenergy as de
from random_store import unit_rows, write_store

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.checkpoints import write_clip

FEW, ROWS, DIMENSION = 1_024, (10_000, 100_000, 1_000_000), 512
REPEATS = 3
NAMES = [f"class {k}" for k in range(100)]
COMMANDS = ("score-csv", "score-parquet", "evaluate-values", "evaluate", "evaluate-learned")


# The command, and at its end its peak memory (of its own image alone, which resource usage is not) and CPU seconds.
CHILD = """
import atexit, os, runpy, sys, time
import deltaenergy as de, deltaenergy.cli.main, deltaenergy.evaluation, pyarrow.parquet
detector = de.Detector.load(os.environ["DETECTOR"])
began = time.process_time()
def told():
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak.split()[1], time.process_time() - began, file=sys.stderr)
atexit.register(told)
if sys.argv[1] == "evaluate-values":
    de.evaluate(detector, id_sets=sys.argv[2], open_sets=sys.argv[3], resamples=0)
else:
    runpy.run_module("deltaenergy", run_name="__main__", alter_sys=True)
"""


class Cost(NamedTuple):
    """Of a process: peak memory in MB, CPU seconds."""

    memory: float
    seconds: float


def run(*arguments: str | Path) -> Cost:
    """`deltaenergy` in a process of its own."""
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    said = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stderr
    memory, seconds = said.split()[-2:]
    return Cost(int(memory) / 1024, float(seconds))


def stored(folder: Path, rows: int, seed: int, model: de.Model) -> Path:
    """A store there, which is written once for all runs."""
    return folder if folder.exists() else write_store(folder, rows, seed=seed, model=model.describe())


def measure(command: str, folder: Path, detector: Path, model: de.Model, rows: int) -> Cost:
    if command.startswith("score-"):
        store, out = stored(folder / "store", rows, 0, model), folder / f"out.{command.removeprefix('score-')}"
        out.unlink(missing_ok=True)
        return run("score", store, "--detector", detector, "--out", out)
    known = stored(folder / "known", rows // 2, 0, model)
    unknown = stored(folder / "open", rows // 2, 10**6, model)
    if command == "evaluate-values":
        return run(command, known, unknown)
    by: list[str | Path] = ["--detector", detector]
    if command == "evaluate-learned":
        by = ["--model", model.name, "--classes", ",".join(NAMES), "--score", "react"]
    return run("evaluate", "--id", known, "--open", unknown, *by)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        model = de.load_model(write_clip(Path(name) / "model", projection=DIMENSION))
        detector = Path(name) / "detector"
        os.environ["DETECTOR"] = str(detector)
        classifier = de.ZeroShotClassifier(model, NAMES)
        de.Detector(classifier, "delta-energy").calibrate(unit_rows(1_000, DIMENSION, 2)).save(detector)
        for command in sys.argv[1:] or COMMANDS:
            report(command, Path(name), detector, model)


def report(command: str, place: Path, detector: Path, model: de.Model) -> None:
    runs: dict[int, list[Cost]] = {rows: [] for rows in (FEW, *ROWS)}
    for _ in range(REPEATS):
        for rows, found in runs.items():
            folder = place / str(rows)
            folder.mkdir(exist_ok=True)
            found.append(measure(command, folder, detector, model, rows))
    costs = {
        rows: Cost(max(one.memory for one in found), min(one.seconds for one in found)) for rows, found in runs.items()
    }
    each = {rows: 1e6 * (costs[rows].seconds - costs[FEW].seconds) / (rows - FEW) for rows in ROWS}
    for rows in ROWS:
        seconds = ", ".join(f"{one.seconds:.1f}" for one in runs[rows])
        print(
            f"{command}, {rows:,} rows: peak {costs[rows].memory:.0f} MB, {seconds} CPU s, {each[rows]:.1f} µs per row"
        )
    growth = costs[ROWS[-1]].memory / costs[ROWS[0]].memory
    bytes_each = 2**20 * (costs[ROWS[-1]].memory - costs[ROWS[0]].memory) / (ROWS[-1] - ROWS[0])
    print(
        f"{command}: 100 times the rows take {growth:.2f}x the memory ({bytes_each:.0f} bytes per row), and a row at "
        f"{ROWS[-1]:,} costs {each[ROWS[-1]] / each[ROWS[-2]]:.2f}x one at {ROWS[-2]:,}",
        flush=True,
    )


if __name__ == "__main__":
    main()
