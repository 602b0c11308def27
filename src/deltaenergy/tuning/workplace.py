"""Where an unfinished run keeps its views and checkpoints: files of our own, the only ones that are ever removed."""

from __future__ import annotations

from pathlib import Path

from deltaenergy.files import remove_bound
from deltaenergy.tuning.checkpoints import RECORD
from deltaenergy.tuning.prepare import VIEWS_FILE

# Inside of the folder that the result goes to. Nobody else uses the name.
FOLDER = ".deltaenergy-tuning"
SEARCHED = "search-*"


def clear_workplace(folder: Path) -> None:
    """Remove the views and checkpoints of a run from `folder`, and the folder itself if nothing else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for place in (*sorted(folder.glob(SEARCHED)), folder):
        if place.is_symlink() or not place.is_dir():
            continue
        if (place / RECORD).is_file():
            remove_bound(place, RECORD)
        if place.is_dir():
            (place / VIEWS_FILE).unlink(missing_ok=True)
            if not any(place.iterdir()):
                place.rmdir()
