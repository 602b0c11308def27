"""Sort photographs into folders by class, with those that are none of the classes apart.

    python examples/sort_a_folder.py good/ photos/ sorted/

`good/` has one folder of known images per class. Files are copied, never moved or overwritten, and an undo file says
what was done: `deltaenergy undo sorted/undo-1.jsonl` takes it back.
"""

from __future__ import annotations

import sys
from pathlib import Path

import deltaenergy as de
from deltaenergy.sorting import Entry, How, plan_sorting, sort_files


def main(good: str, photos: str, out: str) -> None:
    """Calibrate on `good`, judge `photos`, copy them into `out`."""
    classes = sorted(folder.name for folder in Path(good).iterdir() if folder.is_dir())
    detector = de.Detector(de.ZeroShotClassifier(de.load_model("lite"), classes)).calibrate(good)
    print(detector.guarantee)
    found = detector.predict(photos)
    plan = plan_sorting([Entry(Path(verdict.id), verdict.label, verdict.is_ood) for verdict in found], out, How.COPY)
    done = sort_files(plan)
    known = sum(not verdict.is_ood for verdict in found)
    print(f"{known} known, {len(found) - known} none of these. To take it back: deltaenergy undo {done.undo}")


if __name__ == "__main__":
    main(*sys.argv[1:])
