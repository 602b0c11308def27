"""How a dataset is laid out on disk. Each layout finds its files under the dataset's folder, and the class of each.

    folders  one folder per class, domain or split:            layouts: ["{domain}/{class}", "images/{split}/{class}"]
    coop     a split file of CoOp (Zhou et al., IJCV 2022):    file: split_zhou_OxfordPets.json
    lists    text files that name the images of each split:    files: {train: annotations/trainval.txt}
    table    a CSV file with a line per image                  file: metadata.csv

Only names are read, never images.
"""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from deltaenergy.data.catalogue.class_names import ClassName, NameList
from deltaenergy.data.file import LocalFile, is_file, is_folder
from deltaenergy.data.formats.walk import EntryKind, FolderEntry, list_folder, walk
from deltaenergy.errors import InputError


@dataclass(frozen=True, slots=True)
class DatasetImage:
    """An image of a dataset: where it is, and its class, split and domain as far as the layout says.

    With a `problem` it is something that should be an image, or a folder of them, and cannot be read.
    """

    path: Path
    entry: ClassName | None = None
    split: str | None = None
    domain: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Vocabulary:
    """What a dataset calls its classes, splits and domains. `names` is None where any folder is a class."""

    names: NameList | None
    splits: Mapping[str, tuple[str, ...]]
    domains: Mapping[str, tuple[str, ...]]
    labelled: bool

    def class_of(self, text: str) -> ClassName | None:
        return ClassName(text, text) if self.names is None else self.names.find(text)

    def class_in(self, file: Path, image: str, *texts: str) -> ClassName:
        """The class that the first of these texts means that means one; `file` lists the image with them."""
        entry = next(filter(None, map(self.class_of, texts)), None)
        if entry is None:
            raise InputError(f"{str(file)!r}: the class {texts[-1]!r} of {image!r} is none of this dataset's.")
        return entry


@dataclass(frozen=True)
class Layout(ABC):
    """One way in which a dataset may be laid out on disk.

    `expected` counts its images when it is complete: by split, by domain, or `all`.
    """

    expected: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    per_class: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def is_there(self, folder: Path, words: Vocabulary) -> bool:
        """Whether the dataset is in `folder` in this way, whole or in part."""

    @abstractmethod
    def find(self, folder: Path, words: Vocabulary) -> Iterator[DatasetImage]:
        """Its images, in a stable order."""


@dataclass(frozen=True)
class Folders(Layout):
    """Folders whose names say class, domain and split; the first layout that is there counts.

    A layout's last part is `{class}`, or anything else where images have no class. With `class_is: index` class
    folders are numbers, counted from 0.
    """

    layouts: tuple[str, ...]
    class_is: str = "key"

    def is_there(self, folder: Path, words: Vocabulary) -> bool:
        return self._layout(folder, words) is not None

    def find(self, folder: Path, words: Vocabulary) -> Iterator[DatasetImage]:
        layout = self._layout(folder, words)
        if layout is not None:
            yield from self._follow(folder, layout, words, {})

    def _layout(self, folder: Path, words: Vocabulary) -> tuple[str, ...] | None:
        for layout in self.layouts:
            parts = PurePosixPath(layout).parts
            if any(found.problem is None for found in self._follow(folder, parts, words, {})):
                return parts
        return None

    def _follow(
        self, folder: Path, parts: tuple[str, ...], words: Vocabulary, known: dict[str, Any]
    ) -> Iterator[DatasetImage]:
        if not parts:
            for entry in walk(folder):
                yield self._found(entry, known)
            return
        part, rest = parts[0], parts[1:]
        if not part.startswith("{"):
            if is_folder(folder / part):
                yield from self._follow(folder / part, rest, words, known)
            return
        kind = part.strip("{}")
        for child, meaning in self._children(folder, kind, words):
            more = known if meaning is None else {**known, kind: meaning}
            if child.problem is not None:
                yield self._found(child, more)
            else:
                yield from self._follow(child.path, rest, words, more)

    def _found(self, entry: FolderEntry, known: dict[str, Any]) -> DatasetImage:
        return DatasetImage(entry.path, known.get("class"), known.get("split"), known.get("domain"), entry.problem)

    def _children(self, folder: Path, kind: str, words: Vocabulary) -> Iterator[tuple[FolderEntry, Any]]:
        """The folders in `folder` that are a class, split or domain, with which; the folder itself if it is closed."""
        children = [child for child in list_folder(folder) if child.kind in (EntryKind.FOLDER, EntryKind.CLOSED)]
        aliases = words.splits if kind == "split" else words.domains
        by_name = {alias.lower(): name for name, others in aliases.items() for alias in (name, *others)}
        for child in children:
            name = child.path.name
            if child.path == folder:
                yield child, None
            elif kind == "class":
                if (entry := self._class(name, words)) is not None:
                    yield child, entry
            elif not aliases:
                yield child, name
            elif name.lower() in by_name:
                yield child, by_name[name.lower()]
        # Classes of SUN397 are folders inside folders: a/abbey, c/church/outdoor.
        for entry in words.names.classes if kind == "class" and words.names is not None else ():
            if "/" in entry.key and is_folder(folder / entry.key):
                yield FolderEntry(LocalFile(folder / entry.key), EntryKind.FOLDER), entry

    def _class(self, name: str, words: Vocabulary) -> ClassName | None:
        if self.class_is == "index" and words.names is not None:
            return words.names.classes[int(name)] if name.isdigit() and int(name) < len(words.names.classes) else None
        return words.class_of(name)


@dataclass(frozen=True)
class CoopSplit(Layout):
    """`{"train": [[path, label, name], …], "val": …, "test": …}`; paths are relative to one of the `images` folders.

    The class is found by the image's folder, else by the name; with `label: index` by the label.
    """

    file: str
    images: tuple[str, ...]
    label: str = "name"

    def is_there(self, folder: Path, words: Vocabulary) -> bool:
        return is_file(folder / self.file)

    def find(self, folder: Path, words: Vocabulary) -> Iterator[DatasetImage]:
        file = folder / self.file
        try:
            splits = json.loads(file.read_text(encoding="utf-8"))
            rows = [(split, str(row[0]), int(row[1]), str(row[2])) for split in splits for row in splits[split]]
        except (OSError, ValueError, TypeError, IndexError, KeyError, RecursionError) as error:
            raise InputError(f"{str(file)!r} cannot be read as a CoOp split file: {error}") from error
        images = next((folder / name for name in self.images if is_folder(folder / name)), folder / self.images[0])
        for split, path, index, name in rows:
            yield DatasetImage(images / path, self._class(words, file, path, index, name), split)

    def _class(self, words: Vocabulary, file: Path, path: str, index: int, name: str) -> ClassName:
        if self.label == "index" and words.names is not None and 0 <= index < len(words.names.classes):
            return words.names.classes[index]
        folder = PurePosixPath(path).parent
        return words.class_in(file, path, str(folder), folder.name, name)


@dataclass(frozen=True)
class Lists(Layout):
    """Text files with one image per line, one file per split; `image` is its path with `{}` for the line's first word.

    The class is the rest of the line (`label: rest`), the image's folder (`folder`), or its file name without the
    number at its end (`file`).
    """

    files: Mapping[str, str]
    image: str
    label: str

    def is_there(self, folder: Path, words: Vocabulary) -> bool:
        return any(is_file(folder / file) for file in self.files.values())

    def find(self, folder: Path, words: Vocabulary) -> Iterator[DatasetImage]:
        for split, name in self.files.items():
            file = folder / name
            if not is_file(file):
                continue
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError) as error:
                raise InputError(f"{str(file)!r} cannot be read as a list of images: {error}") from error
            for line in lines:
                if line.strip() and not line.startswith("#"):
                    first, _, rest = line.strip().partition(" ")
                    path = PurePosixPath(first)
                    texts = {"rest": rest, "folder": path.parent.name, "file": re.sub(r"_\d+$", "", path.stem)}
                    entry = words.class_in(file, first, texts[self.label])
                    yield DatasetImage(folder / self.image.format(first), entry, split)


@dataclass(frozen=True)
class TableLayout(Layout):
    """A CSV file with a line per image: its columns for path, class, split and domain, the last three as numbers."""

    file: str
    path_column: str
    class_column: str
    split_column: str
    domain_column: str
    splits: tuple[str, ...]
    domains: tuple[str, ...]

    def is_there(self, folder: Path, words: Vocabulary) -> bool:
        return is_file(folder / self.file)

    def find(self, folder: Path, words: Vocabulary) -> Iterator[DatasetImage]:
        file = folder / self.file
        assert words.names is not None
        try:
            with file.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    entry = words.names.classes[int(row[self.class_column])]
                    split, domain = self.splits[int(row[self.split_column])], self.domains[int(row[self.domain_column])]
                    yield DatasetImage(folder / row[self.path_column], entry, split, domain)
        except (OSError, KeyError, ValueError, TypeError, IndexError, csv.Error) as error:
            raise InputError(f"{str(file)!r} cannot be read as this dataset's table: {error!r}") from error
