"""Where an unfinished run keeps its views and checkpoints: files of our own, the only ones that are ever removed."""

from __future__ import annotations

from pathlib import Path

from deltaenergy.files import remove_bound
from deltaenergy.training.checkpoints import RECORD
from deltaenergy.tuning.prepare import TEST_VIEWS_FILE, VIEWS_FILE

# Inside of the folder that the result goes to. Nobody else uses the name.
FOLDER = ".deltaenergy-tuning"
SEARCHED = "search-*"
METHOD = "method-"


def place_of(folder: Path, number: int, methods: int) -> Path:
    """Where one of several methods keeps its checkpoints; a method alone uses the folder itself."""
    return folder if methods == 1 else folder / f"{METHOD}{number:02d}"


def clear_workplace(folder: Path) -> None:
    """Remove the views and checkpoints of a run from `folder`, and the folder itself if nothing else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    methods = sorted(folder.glob(f"{METHOD}*"))
    for place in (*sorted(folder.glob(f"{METHOD}*/{SEARCHED}")), *methods, *sorted(folder.glob(SEARCHED)), folder):
        if place.is_symlink() or not place.is_dir():
            continue
        if (place / RECORD).is_file():
            remove_bound(place, RECORD)
        if place.is_dir():
            for name in (VIEWS_FILE, TEST_VIEWS_FILE):
                (place / name).unlink(missing_ok=True)
            if not any(place.iterdir()):
                place.rmdir()
