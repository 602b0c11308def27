"""Verdicts for FiftyOne: `labels.json` and `data.json` for its FiftyOneImageClassificationDataset importer.

    data.json       {"<id>": "<path of the image>", …}
    labels.json     {"classes": ["dog", …], "labels": {"<id>": {"label": 0, "confidence": 0.9, "attributes": {…}}, …}}

    fiftyone.Dataset.from_dir(folder, dataset_type=fiftyone.types.FiftyOneImageClassificationDataset)

A rejected image has the label *none of these*, and its closest class as an attribute. FiftyOne is not needed to write
the files, and images are not copied.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltaenergy.detector.verdict import NONE_OF_THESE
from deltaenergy.errors import InputError
from deltaenergy.files import lock_folder, write_json

LABELS, DATA = "labels.json", "data.json"
# Columns that are not attributes.
_OWN = frozenset({"path", "id", "label", "confidence"})


def names_fiftyone(path: str | Path) -> bool:
    """Whether results go to FiftyOne: a folder named `fiftyone`, or `….fiftyone`."""
    name = Path(path).name.lower()
    return name == "fiftyone" or name.endswith(".fiftyone")


def check_fiftyone(folder: str | Path) -> None:
    """Raise `InputError` for a folder where FiftyOne would read other files than ours."""
    if (Path(folder) / "data").exists():
        raise InputError(
            f"{folder} has a folder data, and FiftyOne would look there for the images rather than in {DATA}: choose "
            "another folder."
        )


def write_fiftyone(folder: str | Path, rows: Iterable[Mapping[str, Any]], classes: Sequence[str]) -> tuple[int, int]:
    """Write both files; returns how many images they have, and how many were skipped because they are not files.

    Args:
        folder: created if it does not exist.
        rows: `path`, `label` and `confidence` of each image; all else, such as `score` and `is_ood`, becomes an
            attribute.
        classes: the class names.
    """
    check_fiftyone(folder)
    names = list(dict.fromkeys(classes))
    unknown = NONE_OF_THESE if NONE_OF_THESE not in names else f"{NONE_OF_THESE} (by deltaenergy)"
    places = {name: position for position, name in enumerate([*names, unknown])}
    labels: dict[str, Any] = {}
    data: dict[str, str] = {}
    left_out = 0
    for number, row in enumerate(rows, start=1):
        path = Path(str(row["path"]))
        if not path.is_file():
            left_out += 1
            continue
        # Without a dot: FiftyOne reads what follows as a file extension.
        name = f"image-{number:07}"
        data[name] = os.path.abspath(path)  # noqa: PTH100
        rejected = bool(row.get("is_ood"))
        attributes = {re.sub(r"\W+", "_", key).strip("_"): _value(one) for key, one in row.items() if key not in _OWN}
        labels[name] = {
            "label": places[unknown if rejected else row["label"]],
            "confidence": _value(row.get("confidence")),
            "attributes": {"closest_class": row["label"], **attributes},
        }
    with lock_folder(folder):
        write_json(Path(folder) / DATA, data)
        write_json(Path(folder) / LABELS, {"classes": list(places), "labels": labels})
    return len(data), left_out


def _value(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
