"""Which datasets are under a data root, whether they are complete, and what to do about the others.

Complete means: as many images as the dataset was published with, in every split or domain, and of every class.
Files are counted, not opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltaenergy.data.catalogue.dataset import Dataset, get_dataset, list_datasets
from deltaenergy.data.file import is_file, is_folder, user_path
from deltaenergy.data.formats.walk import folders_in
from deltaenergy.errors import InputError

COMPLETE, PARTIAL, DIFFERS, PRESENT, ABSENT = "complete", "partial", "differs", "present", "absent"


@dataclass(frozen=True)
class Count:
    """How many images there are, and how many there should be where that is known."""

    found: int
    expected: int | None


@dataclass(frozen=True)
class DatasetReport:
    """What was found of one dataset.

    Attributes:
        status: `complete`; `partial` (something is missing); `differs` (more images than were published); `present`
            (no count was published to compare with); `absent`.
        counts: images by split or domain, or `all`.
        per_class: images of each class, by key.
        advice: what to do, one sentence or two; empty for a complete one.
    """

    name: str
    title: str
    status: str
    advice: str
    folder: str | None = None
    images: int = 0
    counts: dict[str, Count] = field(default_factory=dict)
    classes_expected: int = 0
    per_class: dict[str, int] = field(default_factory=dict)


def check_root(root: str | Path, names: Sequence[str] | None = None) -> list[DatasetReport]:
    """A report on each dataset of the catalogue, or on those named."""
    folder = user_path(root)
    if not is_folder(folder):
        raise InputError(f"The data root {str(root)!r} is not a folder.")
    chosen = [get_dataset(name) for name in names or list_datasets()]
    return [check_dataset(dataset, folder) for dataset in chosen if dataset.folders != (".",)]


def unknown_folders(root: str | Path) -> list[str]:
    """The folders under `root` that no dataset of the catalogue claims."""
    folder = user_path(root)
    datasets = [dataset for dataset in map(get_dataset, list_datasets()) if dataset.folders != (".",)]
    claimed = {path for dataset in datasets for path in dataset.candidates(folder)}
    return [child.name for child in folders_in(folder) if child not in claimed]


def check_dataset(dataset: Dataset, root: Path) -> DatasetReport:
    """Count what is there of one dataset."""
    located = dataset.locate(root)
    if located is None:
        return DatasetReport(dataset.name, dataset.title, ABSENT, dataset.missing(root))
    folder, source = located
    # A dataset that is in another's folder (ImageNet-10 in ImageNet-1k) has its own counts.
    source = source if source in dataset.sources else dataset.sources[0]
    by_part: Counter[str] = Counter()
    by_class: Counter[str] = Counter()
    in_part: Counter[tuple[str, str]] = Counter()
    for found in dataset.find(root):
        if found.problem is not None or not is_file(found.path):
            continue
        key = found.entry.key if found.entry is not None else ""
        for part in {"all", found.split or dataset.test_split, found.domain or "all"}:
            by_part[part] += 1
            in_part[part, key] += 1
        by_class[key] += 1
    expected = dict(source.expected)
    counts = {part: Count(by_part[part], expected.get(part)) for part in expected or ["all"]}
    complaints = [
        f"{part}: {by_part[part]:,} of {count:,} images" for part, count in expected.items() if by_part[part] != count
    ]
    missing = [entry.key for entry in dataset.classes if not by_class[entry.key]] if source.per_class else []
    uneven = [
        f"{key} ({in_part[part, key]} of {count})"
        for part, count in source.per_class.items()
        for key in sorted(by_class)
        if in_part[part, key] != count
    ]
    status, advice = _judge(expected, by_part, complaints, missing, uneven)
    if status == PARTIAL:
        advice += f" The whole set: {dataset.obtain}"
    return DatasetReport(
        name=dataset.name,
        title=dataset.title,
        status=status,
        advice=advice,
        folder=str(folder),
        images=by_part["all"],
        counts=counts,
        classes_expected=len(dataset.classes),
        per_class={key: count for key, count in sorted(by_class.items()) if key},
    )


def _judge(
    expected: dict[str, int], found: Counter[str], complaints: list[str], missing: list[str], uneven: list[str]
) -> tuple[str, str]:
    if not expected:
        return PRESENT, "How many images it should have is not published."
    if not complaints and not missing and not uneven:
        return COMPLETE, ""
    sentences = ["; ".join(complaints) + "."] if complaints else []
    if missing:
        sentences.append(f"{len(missing)} classes have no image, the first is {missing[0]}.")
    elif uneven:
        sentences.append(f"{len(uneven)} classes have another number of images, the first is {uneven[0]}.")
    if all(found[part] >= count for part, count in expected.items()) and not missing:
        return DIFFERS, " ".join(sentences)
    return PARTIAL, " ".join([*sentences, "It can be used as it is; results will be those of a part."])
