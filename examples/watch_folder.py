"""Check a day's images, and report when they no longer look like the calibration images.

    python examples/watch_folder.py DETECTOR TODAY STATE.json

Run it every day with that day's folder; the state carries over. It exits with 3 once the images have changed, for a
scheduler. On the command line it is `deltaenergy monitor`.
"""

from __future__ import annotations

import sys

import deltaenergy as de


def main(detector: str, today: str, state: str) -> int:
    with de.Monitor.open(state, de.Detector.load(detector)) as monitor:
        monitor.watch(today)
    print(monitor.status)
    de.write_report(monitor, f"{state}.html")
    return 3 if monitor.changed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
