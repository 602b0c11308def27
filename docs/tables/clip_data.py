"""Tests on real CLIP features: known images, unknown images, and the class vectors.

The folder contains OpenAI CLIP ViT-B/16 features (unit length): `images.npy` with `images.csv` (row, source,
imagenet_index; −1 = texture), `imagenet_text_*.npy` (1,000 class vectors in canonical order), and `pacs`, `dtd10`,
`food3`, `caltech101` (`.npy`, with the files in row order in `.json`) with `pacs_text.npy` and `pacs_text.json`.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deltaenergy import PrecomputedClassifier
from deltaenergy.benchmarks.spec import splits

Floats = npt.NDArray[np.float32]
TEXTS = {"photo": "imagenet_text_a_photo_of_a.npy", "descriptions": "imagenet_text_descriptions.npy"}


@dataclass(frozen=True)
class OpenTest:
    """Known images with their class, unknown images, and a classifier of the known classes.

    `to_choose` marks the known images that a choice or fit may use; it is then tested on the others.
    """

    name: str
    classifier: PrecomputedClassifier
    known: Floats
    truth: npt.NDArray[np.int64]
    to_choose: npt.NDArray[np.bool_]
    unknown: Floats


class ClipFeatures:
    """The folder, and the tests that can be made of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "images.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.images = _unit(np.load(folder / "images.npy"))
        self.index = np.array([int(row["imagenet_index"]) for row in rows])
        self.one_per_class = np.array([row["source"] == "one_per_class" for row in rows])
        # ImageNet's canonical order is that of its sorted WordNet ids; split 4 contains all of them.
        split = splits()["hard-splits"]["split4"]
        self.position = {wnid: i for i, wnid in enumerate(sorted(split["id"] + split["ood"]))}

    def published(self, text: str) -> list[OpenTest]:
        """Setup-I with its three seeds, the four hard splits, and ImageNet-1k against textures."""
        lists = splits()
        tests = [self.imagenet(f"Setup-I/{seed}", text, lists["setup1"][seed]) for seed in ("1", "2", "3")]
        for number in "1234":
            split = lists["hard-splits"][f"split{number}"]
            tests.append(self.imagenet(f"Split-{number}", text, split["id"], split["ood"]))
        everything = sorted(self.position)
        return [*tests, self.imagenet("1k/DTD", text, everything, unknown=self.images[self.index < 0])]

    def pacs_table(self) -> list[OpenTest]:
        """The seven PACS classes against the three open sets of the paper's Table 2."""
        return [self.pacs(f"PACS/{name}", unknown) for name, unknown in self.pacs_open_sets().items()]

    def pacs_open_sets(self) -> dict[str, Floats]:
        """Images that show none of the PACS classes, by dataset."""
        removed = set(splits()["caltech101-removed"]["pacs"])
        apart = np.array([Path(file).parent.name not in removed for file in self.files("caltech101")])
        return {
            "DTD-10": self.other("dtd10"),
            "food3": self.other("food3"),
            "Caltech": self.other("caltech101")[apart],
        }

    def fresh(self, text: str) -> list[OpenTest]:
        """Held-out tests, on which no setting was chosen: other class lists, seeds and pairs of datasets."""
        lists = splits()
        ten, twenty, hundred = lists["imagenet10"], lists["imagenet20"], lists["imagenet100"]
        wnids = np.array(sorted(self.position))
        tests = [
            self.imagenet("IN-10/IN-20", text, ten, twenty),
            self.imagenet("IN-20/IN-10", text, twenty, ten),
            self.imagenet("IN-10/IN-100", text, ten, hundred),
            self.imagenet("IN-100/IN-10", text, hundred, ten),
        ]
        for seed, count in ((4, 400), (5, 400), (6, 400), (7, 40)):
            drawn = wnids[np.random.RandomState(seed).choice(1000, count, replace=False)]
            tests.append(self.imagenet(f"{count} of 1k/{seed}", text, drawn.tolist()))
        return [
            *tests,
            self.imagenet("IN-100/DTD-10", text, hundred, unknown=self.other("dtd10")),
            self.imagenet("IN-20/food3", text, twenty, unknown=self.other("food3")),
            self.imagenet("IN-20/PACS", text, twenty, unknown=self.other("pacs")),
        ]

    def pacs_left_out(self) -> list[OpenTest]:
        """PACS with each class in turn as the unknown one."""
        names, truth, features = self.pacs_labels()
        return [
            self.pacs(f"PACS−{name}", features[truth == k], [other for other in names if other != name])
            for k, name in enumerate(names)
        ]

    def imagenet(
        self,
        name: str,
        text: str,
        closed: list[str],
        opened: list[str] | None = None,
        unknown: Floats | None = None,
    ) -> OpenTest:
        """ImageNet images of the closed classes, against those of the open classes (by default all others)."""
        columns = np.array(sorted(self.position[wnid] for wnid in closed))
        known = np.isin(self.index, columns)
        if unknown is None:
            rows = (self.index >= 0) & ~known
            if opened is not None:
                rows &= np.isin(self.index, [self.position[wnid] for wnid in opened])
            unknown = self.images[rows]
        vectors = self.texts(text)[columns]
        classifier = PrecomputedClassifier(vectors, [f"class {column}" for column in columns])
        truth = np.searchsorted(columns, self.index[known])
        return OpenTest(name, classifier, self.images[known], truth, self.one_per_class[known], unknown)

    def pacs(self, name: str, unknown: Floats, classes: list[str] | None = None) -> OpenTest:
        """PACS images of these classes against others; every second image is marked `to_choose`."""
        names, truth, features = self.pacs_labels()
        columns = [names.index(one) for one in classes or names]
        known = np.isin(truth, columns)
        vectors = self.other("pacs_text")[columns]
        positions = np.searchsorted(columns, truth[known])
        every_second = np.arange(known.sum()) % 2 == 0
        classifier = PrecomputedClassifier(vectors, [names[column] for column in columns])
        return OpenTest(name, classifier, features[known], positions, every_second, unknown)

    def pacs_labels(self) -> tuple[list[str], npt.NDArray[np.int64], Floats]:
        """Class names, the class of each PACS image, and its features."""
        names = self.files("pacs_text")
        truth = np.array([names.index(Path(file).parent.name) for file in self.files("pacs")])
        return names, truth, self.other("pacs")

    def pacs_domains(self) -> list[str]:
        """The domain of each PACS image."""
        return [Path(file).parent.parent.name for file in self.files("pacs")]

    def files(self, name: str) -> list[str]:
        """The files of a dataset in row order, or the names of class vectors."""
        listed: list[str] = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        return listed

    def other(self, name: str) -> Floats:
        """The features of another dataset."""
        return _unit(np.load(self.folder / f"{name}.npy"))

    def texts(self, text: str) -> Floats:
        """The 1,000 ImageNet class vectors of one of `TEXTS`, in canonical order."""
        return _unit(np.load(self.folder / TEXTS[text]))


def _unit(vectors: npt.NDArray[np.floating]) -> Floats:
    rows = vectors.astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
