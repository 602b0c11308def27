"""Images at URLs: folders and patterns on an object store, archives and tables there and on the web, lists of URLs, and
single images.

A folder on an object store is a beginning that names share. It is listed as a local folder is: files with an image's
suffix, in the same order, without names that begin with a dot, each image labelled with the folder that it is in. Only
names, sizes and tags are read.
"""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from deltaenergy.data.decode import EXTENSIONS, FAR_THREADS
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.files import CONTAINERS, SHARDS, file_images, found_images
from deltaenergy.data.formats.folder import braces
from deltaenergy.data.formats.table import TABLE_EXTENSIONS
from deltaenergy.data.formats.tar import COMPRESSED_TARS, TAR_EXTENSIONS, compressed
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.client import get, list_objects
from deltaenergy.data.remote.errors import Missing, Refused, explained
from deltaenergy.data.remote.url import checked_url, is_web, scheme_of, suffix_of
from deltaenergy.data.streams import OtherFiles
from deltaenergy.errors import InputError

ListStore = Callable[[str], Iterator[ImageItem] | None]

LIST_EXTENSIONS = frozenset({".txt"})
# A hundred bytes per URL: longer lists are better kept as tables.
_MOST_LIST_BYTES = 1 << 28


def url_images(given: str, list_store: ListStore, others: OtherFiles, *, alone: bool) -> Iterator[ImageItem]:
    """The images that a URL stands for, in a stable order; one given `alone` must be there.

    What is wrong with the URL itself is an error now; the store is asked when the first image is needed.

    Args:
        given: the URL.
        list_store: gives the images of a folder that is a feature store, None for other folders.
        others: counts files in folders that are not images.
        alone: whether nothing else was given. A missing image in a list is unreadable when its turn comes.
    """
    url = checked_url(given)
    if len(names := braces(url)) > 1 and (alone or suffix_of(url) not in EXTENSIONS):
        return _each(url, names, list_store, others)
    return _images_at(url, list_store, others, alone)


def remote_folders(given: str, domains: bool) -> list[ImageItem]:
    """The images of `given/CLASS/`, or with `domains` of `given/DOMAIN/CLASS/`, labelled with the folders' names.

    An image outside the class folders is an error. Empty folders do not exist on an object store.
    """
    url = checked_url(given)
    if is_web(url):
        raise _no_folders(url)
    depth = 2 if domains else 1
    items = []
    for file in _images_among(_below(url), url):
        parts = _parts(file, url)
        if len(parts) <= depth:
            kind = "domain and class folders" if domains else "class folders"
            raise InputError(f"{file.url} is outside the {kind} of {url}. Move it into one.")
        items.append(ImageItem(file.url, file, parts[depth - 1], parts[0] if domains else None))
    return items


def _each(url: str, names: list[str], list_store: ListStore, others: OtherFiles) -> Iterator[ImageItem]:
    """The images of every name that braces stand for, once all are known to be there; a name may have braces itself."""
    if _refusal(url) is None:
        yield from _images_at(url, list_store, others, True)
        return
    plain = [name for name in names if not glob.has_magic(name) and not name.endswith("/")]
    with ThreadPoolExecutor(FAR_THREADS, thread_name_prefix="look") as pool:
        for refused in pool.map(_refusal, plain):
            if refused is not None:
                raise InputError(f"{refused}. It is one of {len(names)} that {url} stands for.")
    for name in names:
        yield from _images_at(name, list_store, others, True)


def _refusal(url: str) -> Refused | None:
    """Why nothing can be read at a URL, None if something can."""
    try:
        RemoteFile(url).described()
    except Refused as refused:
        return refused
    return None


def _images_at(url: str, list_store: ListStore, others: OtherFiles, alone: bool) -> Iterator[ImageItem]:
    """The images at a URL without braces."""
    suffix, is_pattern = suffix_of(url), not is_web(url) and glob.has_magic(url)
    if url.partition("?")[0].lower().endswith(COMPRESSED_TARS):
        raise compressed(RemoteFile(url))
    if suffix in CONTAINERS and not is_pattern and not url.endswith("/"):
        return _from_container(url)
    if is_web(url) and suffix not in LIST_EXTENSIONS and (url.endswith("/") or "*" in url):
        raise _no_folders(url)
    if suffix in LIST_EXTENSIONS:
        return _listed_urls(url)
    if is_pattern:
        return _matching(url, others)
    if not is_web(url) and (suffix not in EXTENSIONS or url.endswith("/")):
        return _from_folder(url, list_store, others)
    return _from_image(url, list_store, others) if alone else iter([ImageItem(url, RemoteFile(url))])


def _from_container(url: str) -> Iterator[ImageItem]:
    try:
        file = RemoteFile(url).described()
    except Refused as refused:
        raise explained(refused) from refused
    yield from file_images(file)


def _from_image(url: str, list_store: ListStore, others: OtherFiles) -> Iterator[ImageItem]:
    """An image that must be there, or a folder of its name."""
    try:
        yield ImageItem(url, RemoteFile(url).described())
    except Refused as refused:
        if not (isinstance(refused, Missing) and refused.is_folder):
            raise explained(refused) from refused
        yield from _from_folder(url, list_store, others)


def _from_folder(url: str, list_store: ListStore, others: OtherFiles) -> Iterator[ImageItem]:
    """The images in a folder; of one that has none, those in its archives and Parquet files."""
    stored = list_store(url)
    if stored is not None:
        yield from stored
        return
    files = _below(url)
    has_images = any(file.suffix in EXTENSIONS for file in files)
    if not has_images and not any(file.suffix in SHARDS for file in files):
        _images_among(files, url)
    for file in files:
        if file.suffix in EXTENSIONS:
            yield ImageItem(file.url, file, (None, *_parts(file, url))[-2])
        elif file.suffix in SHARDS and not has_images:
            yield from found_images(file)
        else:
            others.add(file.url)


def _matching(pattern: str, others: OtherFiles) -> Iterator[ImageItem]:
    """The images that match, and those in folders that match, then those of archives that match, and of tables if the
    pattern asks for their suffix. `*` stays inside a name, `**` is any depth.
    """
    fixed, wild = [], pattern.split("/")
    while not glob.has_magic(wild[0]):
        fixed.append(wild.pop(0))
    if len(fixed) < 3:
        raise InputError(f"{pattern} leaves the bucket open. Name it, as in {scheme_of(pattern)}://bucket/*.jpg.")
    wild, root = [part for part in wild if part], "/".join(fixed)
    wanted = TAR_EXTENSIONS | ({suffix_of(pattern)} & TABLE_EXTENSIONS)
    images, containers = [], []
    for file in _below(root):
        parts = _parts(file, root)
        if file.suffix in EXTENSIONS and _fits(parts, wild):
            images.append(file)
        elif _fits(parts, wild, itself=True):
            if file.suffix in wanted:
                containers.append(file)
            else:
                others.add(file.url)
    if not images and not containers:  # a name may have [ and ] itself
        try:
            yield from file_images(RemoteFile(pattern).described())
        except Missing:
            raise InputError(f"No image matches the pattern {pattern!r}.") from None
        except Refused as refused:
            raise explained(refused) from refused
    for file in images:
        yield ImageItem(file.url, file)
    for file in containers:
        yield from found_images(file)


def _fits(parts: Sequence[str], pattern: Sequence[str], *, itself: bool = False) -> bool:
    """Whether a name matches, or, unless it must do so itself, a folder that it is in."""
    if not pattern:
        return not (itself and parts)
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return _fits(parts, rest, itself=itself) or (bool(parts) and _fits(parts[1:], pattern, itself=itself))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], first) and _fits(parts[1:], rest, itself=itself)


def _listed_urls(url: str) -> Iterator[ImageItem]:
    """The images of a text file with one URL per line; archives and Parquet files stand for the images in them."""
    try:
        text = get(url, _MOST_LIST_BYTES).decode("utf-8-sig")
    except Refused as refused:
        raise explained(refused) from refused
    except UnicodeDecodeError as error:
        raise InputError(f"The list {url} is not text in UTF-8 ({error.reason}).") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError(f"The list {url} contains no URL.")
    for number, line in lines:
        try:
            file = RemoteFile(checked_url(line, "the line"))
        except InputError as error:
            if number == lines[0][0]:
                raise InputError(f"Line {number} of the list {url} is wrong: {error}") from error
            yield ImageItem(f"{url} (line {number})", None, problem=str(error))
        else:
            yield from found_images(file) if file.suffix in SHARDS else [ImageItem(file.url, file)]


def _below(folder: str) -> list[RemoteFile]:
    """Every file below a folder, in the order of a local one: each folder sorted by name."""
    try:
        found = [RemoteFile(one.url, one.size, one.version) for one in list_objects(folder)]
    except Refused as refused:
        raise explained(refused) from refused
    names = {file: _parts(file, folder) for file in found}
    # An object without bytes that other names begin with only marks a folder; so does one of the folder's own name.
    folders = {parts[:depth] for parts in names.values() for depth in range(1, len(parts))}
    files = [
        file
        for file, parts in names.items()
        if parts and not any(part.startswith(".") for part in parts) and (file.size or parts not in folders)
    ]
    return sorted(files, key=names.__getitem__)


def _parts(file: RemoteFile, folder: str) -> tuple[str, ...]:
    """The parts of a file's name below a folder."""
    return tuple(file.url.removeprefix(folder.rstrip("/")).split("/")[1:])


def _images_among(files: list[RemoteFile], url: str) -> list[RemoteFile]:
    images = [file for file in files if file.suffix in EXTENSIONS]
    if not images:
        what = f"{len(files)} other files, such as {files[0].url!r}" if files else "nothing is there"
        raise InputError(f"No images in {url} ({what}). Image files end in .jpg, .png, .webp, ….")
    return images


def _no_folders(url: str) -> InputError:
    return InputError(
        f"{url} is a folder or pattern, but a web server cannot be listed. Give the URLs of images, or of a list of "
        "them that ends in .txt, one URL per line."
    )
