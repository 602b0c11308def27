"""Print the tables "Monitor" of docs/results/thresholds.md.

    python docs/tables/monitor.py [--runs 400] [--images 2000] [--csv FOLDER]

Scores of known images are normal; those of unknown images are three deviations lower, where the threshold rejects most
of them. The threshold is set on n known images (keep 0.95, confidence 0.9). Both tests of `deltaenergy.Monitor`, with
the default alpha and delta, read a stream in which the given share is unknown from the first image on. Every run draws
new calibration images and a new stream. In the second table the stream starts with known images only.
tests/docs/test_monitor_table.py compares a run with the monitor itself.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from output import add_csv, print_table

from deltaenergy.monitor.evidence import (
    EXPONENTS,
    STAKES,
    Restarts,
    ScoreCells,
    count_below,
    log_mean_of_two,
    log_rate_bets,
    log_rate_evidence,
    log_shift_bets,
    log_shift_evidence,
)
from deltaenergy.monitor.monitor import ALPHA, DELTA
from deltaenergy.stats.thresholds import threshold_of, upper_share

Floats = npt.NDArray[np.float64]
SIZES, SHARES = (100, 500, 2000), (0.0, 0.05, 0.1, 0.2)
KEEP, CONFIDENCE = 0.95, 0.9
QUIET, QUIET_SIZE = (0, 1000, 5000), 500
AT_ONCE = 200


def draw(size: int, share: float, images: int, seed: int, quiet: int = 0) -> tuple[Floats, Floats]:
    """Ascending scores of the calibration images, and those of the stream, whose first `quiet` images are known."""
    rng = np.random.default_rng([size, round(1000 * share), seed])
    known, unknown = np.sort(rng.normal(size=size)), rng.random(images) < share
    return known, np.concatenate([rng.normal(size=quiet), rng.normal(size=images) - 3.0 * unknown])


def first_alarm(known: Floats, stream: Floats, seed: int) -> tuple[int | None, str]:
    """The number of the image that raised the first alarm, and the test that did; the rate bet if both did."""
    threshold = threshold_of(known, KEEP, CONFIDENCE)
    bound = upper_share(count_below(known, threshold), len(known), DELTA)
    bar, cells, log_p, flagged = math.log(2 / ALPHA), ScoreCells(known, seed), 0.0, 0
    later = Restarts(len(STAKES), lambda flags: log_rate_bets(flags, bound)), Restarts(len(EXPONENTS), log_shift_bets)
    for start in range(0, len(stream), AT_ONCE):
        part = stream[start : start + AT_ONCE]
        flags = part < threshold
        rates, _ = later[0].add(flags.astype(np.float64))
        alarms = []
        for i in np.flatnonzero(flags):  # the evidence falls with all others
            flagged += 1
            if log_mean_of_two(log_rate_evidence(flagged, start + int(i) + 1, bound), rates[i]) >= bar:
                alarms.append((start + int(i) + 1, "rate"))
                break
        found = np.log(cells.p_values(part))
        logs = log_p + np.cumsum(found)
        evidence = log_shift_evidence(start + np.arange(1, len(part) + 1), logs)
        evidence = np.logaddexp(evidence, later[1].add(found)[0]) - math.log(2)
        alarms += [(start + int(i) + 1, "shift") for i in np.flatnonzero(evidence >= bar)[:1]]
        if alarms:
            return min(alarms)
        log_p = float(logs[-1])
    return None, ""


def row_of(first: int, share: float, found: list[tuple[int | None, str]], quiet: int = 0) -> list[object]:
    """Alarms, delays, and which test was first."""
    at = np.sort([np.inf if number is None else number - quiet for number, _ in found])
    alarms = np.isfinite(at).mean()
    by_rate = np.mean([test == "rate" for number, test in found if number is not None]) if alarms else 0.0
    delays = ["–" if share == 0 or not np.isfinite(number) else f"{number:,.0f}" for number in _parts(at)]
    return [f"{first:,}", f"{share:.0%}", f"{alarms:.1%}", *delays, f"{by_rate:.0%}"]


def _parts(at: Floats) -> list[float]:
    """The median and the ninth tenth, among observed values."""
    return [float(at[int(q * (len(at) - 1))]) for q in (0.5, 0.9)]


def main() -> None:
    """Print the tables, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--images", type=int, default=2000)
    add_csv(parser)
    given = parser.parse_args()
    head = ["unknown", "alarms", "median delay", "90% found after", "first by the rate bet"]

    def at_once() -> Iterator[list[object]]:
        for size in SIZES:
            for share in SHARES:
                runs = [first_alarm(*draw(size, share, given.images, seed), seed) for seed in range(given.runs)]
                yield row_of(size, share, runs)

    def after_quiet() -> Iterator[list[object]]:
        for quiet in QUIET:
            for share in SHARES[2:]:
                drawn = [draw(QUIET_SIZE, share, given.images, seed, quiet) for seed in range(given.runs // 4)]
                runs = [first_alarm(*one, seed) for seed, one in enumerate(drawn)]
                # An alarm before the change is a false alarm and has no delay.
                yield row_of(quiet, share, [run for run in runs if run[0] is None or run[0] > quiet], quiet)

    print_table("monitor", ["calibration images", *head], at_once(), given.csv)
    print()
    print_table("monitor-after-quiet", ["known images before", *head], after_quiet(), given.csv)


if __name__ == "__main__":
    main()
