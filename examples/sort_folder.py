"""Sort photographs into folders by class, with one for those that are none of the classes.

    python examples/sort_folder.py KNOWN PHOTOS OUT

KNOWN has one subfolder of known pictures per class: its names are the class names, its pictures set the threshold.
PHOTOS are copied to OUT/CLASS or to "OUT/none of these", and OUT/page.html shows them all. On the command line it is
`deltaenergy score --copy-to`, which can be undone.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import deltaenergy as de


def main(known: str, photos: str, out: str) -> None:
    classes = sorted(folder.name for folder in Path(known).iterdir() if folder.is_dir())
    classifier = de.ZeroShotClassifier(de.load_model("lite"), classes)
    detector = de.Detector(classifier, "delta-energy").calibrate(known)
    print(detector.guarantee)
    found = detector.predict(photos)
    for verdict in found:
        place = Path(out) / ("none of these" if verdict.is_ood else verdict.label)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy2(verdict.path, place)
    de.write_report(found, Path(out) / "page.html", detector=detector)
    print(f"{sum(verdict.is_ood for verdict in found)} of {len(found)} are none of these.")


if __name__ == "__main__":
    main(*sys.argv[1:])
