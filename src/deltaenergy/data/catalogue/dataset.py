"""The datasets of the field as data: one YAML file each in datasets/, read into a `Dataset`.

    dataset = get_dataset("pacs")
    items = dataset.images("data/", domain="sketch")        # ImageItems with canonical labels
    classifier = ZeroShotClassifier(model, dataset.names, dataset.template)

A dataset is in a folder of the data root that has one of its names, whatever the case and punctuation; a number after
the name marks a part of the dataset (`dtd10`). How it may be laid out there is described in `layouts.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from deltaenergy.core.classes import DEFAULT_TEMPLATE
from deltaenergy.data.catalogue.class_names import ClassName, NameList, name_list, plain_name, template_ensemble
from deltaenergy.data.catalogue.layouts import CoopSplit, DatasetImage, Folders, Layout, Lists, TableLayout, Vocabulary
from deltaenergy.data.file import LocalFile, is_folder, user_path
from deltaenergy.data.formats.walk import folders_in
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import DeltaEnergyError, InputError, did_you_mean

_FOLDER = resources.files("deltaenergy.data.catalogue") / "datasets"
_KINDS: Mapping[str, type[Layout]] = {"folders": Folders, "coop": CoopSplit, "lists": Lists, "table": TableLayout}
LABELS = ("name", "key", "superclass")


class DatasetMissingError(DeltaEnergyError):
    """A dataset, or the split of it that was requested, is not under the data root."""


@dataclass(frozen=True)
class Dataset:
    """A dataset: where it is, what its classes are called, how many images it has, and where a person gets it.

    Attributes:
        name, title: for commands and for tables.
        folders: names that its folder may bear; unless `parts` is false, also with a number after them.
        sources: the layouts it may have there; the first that is there counts.
        names_from: its canonical name list, None if its images have no class or any folder is a class.
        labelled: whether its images have classes at all; open sets need none.
        base: the dataset whose images it takes, restricted to its own classes, where it has no folder itself.
        label_by: what `images` labels by by default: `name`, or `superclass`.
        template: the single prompt used for it; `ensemble` names CLIP's list of prompts.
        test_split: the split that results are reported on; images of a source without splits belong to it.
        licence, obtain, paper: for people.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    sources: tuple[Layout, ...]
    licence: str
    obtain: str
    paper: str
    names_from: str | None = None
    labelled: bool = True
    aliases: tuple[str, ...] = ()
    parts: bool = True
    base: str | None = None
    label_by: str = "name"
    template: str = DEFAULT_TEMPLATE
    ensemble: str | None = None
    splits: Mapping[str, tuple[str, ...]] | None = None
    domains: Mapping[str, tuple[str, ...]] | None = None
    test_split: str = "test"

    @property
    def classes(self) -> tuple[ClassName, ...]:
        """Keys, names and superclasses in canonical order; empty where folders are the classes, or there are none."""
        return self._names.classes if self._names is not None else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The class names in canonical order: what a classifier is given. Superclasses occur once each."""
        texts = [self._label(entry, self.label_by) for entry in self.classes]
        return tuple(dict.fromkeys(texts)) if self.label_by == "superclass" else tuple(texts)

    @property
    def names_hash(self) -> str | None:
        """Identity of the name list, for reports."""
        return self._names.hash if self._names is not None else None

    @property
    def templates(self) -> tuple[str, ...]:
        """CLIP's ensemble of prompts for it, or else its one template."""
        return template_ensemble(self.ensemble) if self.ensemble is not None else (self.template,)

    def locate(self, root: str | Path) -> tuple[Path, Layout] | None:
        """The folder in which the dataset is under `root`, and how it is laid out there; or None."""
        for folder in self.candidates(user_path(root)):
            for source in self.sources:
                if source.is_there(folder, self._words):
                    return folder, source
        return get_dataset(self.base).locate(root) if self.base is not None else None

    def find(self, root: str | Path) -> Iterator[DatasetImage]:
        """Every image with its class, split and domain. Raises `DatasetMissingError`."""
        located = self.locate(root)
        if located is None:
            raise DatasetMissingError(self.missing(root))
        folder, source = located
        for found in source.find(folder, self._words):
            # A folder that cannot be listed may have no class, and is still reported.
            if found.entry is not None or found.problem is not None or not self.labelled:
                yield found

    def images(
        self, root: str | Path, split: str | None = None, domain: str | None = None, *, label: str | None = None
    ) -> list[ImageItem]:
        """The images under `root`, labelled with canonical class names.

        Args:
            root: the data root.
            split: `train`, `val` or `test`; None for all. Images without splits are its test split.
            domain: one domain; None for all.
            label: `name`, `key` (what the dataset itself calls the class; unique) or `superclass`.
        """
        label = label or self.label_by
        if label not in LABELS:
            raise InputError(f"Unknown label {label!r}.{did_you_mean(label, LABELS)}")
        if domain is not None and self.domains and domain not in self.domains:
            raise InputError(f"{self.title} has no domain {domain!r}.{did_you_mean(domain, self.domains)}")
        everything = list(self.find(root))
        chosen = [found for found in everything if split is None or (found.split or self.test_split) == split]
        if split is not None and not chosen:
            known = sorted({found.split or self.test_split for found in everything})
            raise DatasetMissingError(
                f"{self.title} has no images of the split {split!r} under {root} (found: {', '.join(known) or 'none'})."
            )
        return [
            ImageItem(
                found.path.as_posix(),
                LocalFile(found.path),
                self._label(found.entry, label) if found.entry is not None else None,
                found.domain,
                found.problem,
            )
            for found in chosen
            if domain is None or found.domain == domain
        ]

    def missing(self, root: str | Path) -> str:
        """Where it was searched, and where to get it."""
        names = " or ".join(repr(str(Path(root) / folder)) for folder in self.folders[:2])
        base = f", or {get_dataset(self.base).title}" if self.base is not None else ""
        return f"{self.title} is not there: no folder {names}{base}. {self.obtain}"

    @property
    def _names(self) -> NameList | None:
        return name_list(self.names_from) if self.names_from is not None else None

    @property
    def _words(self) -> Vocabulary:
        splits = self.splits or (get_dataset(self.base).splits if self.base is not None else None)
        return Vocabulary(self._names, splits or {}, self.domains or {}, self.labelled)

    def _label(self, entry: ClassName, label: str) -> str:
        text = getattr(entry, label)
        if text is None:
            raise InputError(f"{self.title} has no superclasses.")
        return str(text)

    def candidates(self, root: Path) -> list[Path]:
        """The folders of `root` that may be this dataset: those with its name, then parts of it."""
        if not is_folder(root):
            raise InputError(f"The data root {str(root)!r} is not a folder.")
        if self.folders == (".",):
            return [root]
        exact, parts, order = [], [], [plain_name(folder) for folder in self.folders]
        for child in folders_in(root):
            plain = plain_name(child.name)
            is_part = any(plain.removeprefix(name).isdecimal() for name in order if plain.startswith(name))
            if plain in order:
                exact.append(child)
            elif self.parts and is_part and plain not in _all_folder_names():
                parts.append(child)
        return sorted(exact, key=lambda child: order.index(plain_name(child.name))) + parts


def get_dataset(name: str) -> Dataset:
    catalogue = _catalogue()
    wanted = name.strip().lower().replace("_", "-")
    for dataset in catalogue.values():
        if wanted == dataset.name or wanted in dataset.aliases:
            return dataset
    raise InputError(f"Unknown dataset {name!r}.{did_you_mean(wanted, catalogue)}")


def list_datasets() -> list[str]:
    return list(_catalogue())


@functools.cache
def _catalogue() -> dict[str, Dataset]:
    files = (file for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    datasets = (_parse(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files)
    return {dataset.name: dataset for dataset in sorted(datasets, key=lambda dataset: dataset.name)}


@functools.cache
def _all_folder_names() -> frozenset[str]:
    return frozenset(plain_name(folder) for dataset in _catalogue().values() for folder in dataset.folders)


def _parse(record: dict[str, Any]) -> Dataset:
    layouts = [_KINDS[layout.pop("kind")](**_frozen(layout)) for layout in record.pop("sources", [])]
    for key, value in record.items():
        if isinstance(value, str):
            record[key] = " ".join(value.split())
        elif isinstance(value, dict):  # splits and domains
            record[key] = _frozen(value)
    return Dataset(sources=tuple(layouts), **_frozen(record))


def _frozen(record: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
