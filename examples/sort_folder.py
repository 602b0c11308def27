"""Sort photographs into folders by class, with one for those that are none of the classes.

    python examples/sort_folder.py KNOWN PHOTOS OUT

KNOWN has one subfolder of known images per class: its names are the class names, its images set the threshold. PHOTOS
are copied to OUT/known/CLASS or to "OUT/none of these", and OUT/page.html shows them all. On the command line it is
`deltaenergy sort`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import deltaenergy as de


def main(known: str, photos: str, out: str) -> None:
    classes = sorted(folder.name for folder in Path(known).iterdir() if folder.is_dir())
    verdicts = de.score(photos, classes, known=known)
    done = de.sort(verdicts, out, how="copy")
    print(verdicts.detector.guarantee)
    de.write_report(done.verdicts, Path(out) / "page.html", detector=verdicts.detector)
    print(f"{verdicts.counts.rejected} of {verdicts.counts.images} are none of these.")
    print(f"To undo: deltaenergy undo {done.undo}")


if __name__ == "__main__":
    main(*sys.argv[1:])
