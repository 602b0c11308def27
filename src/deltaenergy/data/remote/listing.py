"""Images at URLs: folders and patterns on an object store, archives and tables there and on the web, lists of URLs, and
single images.

A folder on an object store is a beginning that names share. It is listed as a local folder is: files with an image's
suffix, in the same order, without names that begin with a dot, each image labelled with the folder that it is in. Only
names, sizes and tags are read.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from deltaenergy.data.decode import EXTENSIONS, FAR_THREADS
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.folder import (
    CONTAINERS,
    SHARDS,
    braces,
    class_folder_images,
    file_images,
    folder_images,
    found_images,
    matching_images,
    split_pattern,
)
from deltaenergy.data.formats.tar import COMPRESSED_TARS
from deltaenergy.data.formats.walk import EntryKind, FolderEntry
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.client import get, list_objects
from deltaenergy.data.remote.errors import Missing, Refused, explained
from deltaenergy.data.remote.url import checked_url, is_web, scheme_of, suffix_of
from deltaenergy.data.streams import OtherFiles
from deltaenergy.errors import InputError

LIST_EXTENSIONS = frozenset({".txt"})
# A hundred bytes per URL: longer lists are better kept as tables.
_MOST_LIST_BYTES = 1 << 28


def url_images(given: str, others: OtherFiles, *, alone: bool) -> Iterator[ImageItem]:
    """The images that a URL stands for, in a stable order; one given `alone` must be there.

    What is wrong with the URL itself is an error now; the store is asked when the first image is needed. `others`
    counts files in folders that are not images.
    """
    url = checked_url(given)
    if len(names := braces(url)) > 1 and (alone or suffix_of(url) not in EXTENSIONS):
        return _each(url, names, others)
    return _images_at(url, others, alone)


def remote_folders(given: str, domains: bool) -> list[ImageItem]:
    """The images of the class folders in a folder, as `class_folder_images` gives them. Empty ones do not exist."""
    url = checked_url(given)
    if is_web(url):
        raise _no_folders(url)
    return class_folder_images(url, _below(url), domains)


def _each(url: str, names: list[str], others: OtherFiles) -> Iterator[ImageItem]:
    """The images of every name that braces stand for, once all are known to be there; a name may have braces itself."""
    if _refusal(url) is None:
        yield from _images_at(url, others, True)
        return
    plain = [name for name in names if not glob.has_magic(name) and not name.endswith("/")]
    with ThreadPoolExecutor(FAR_THREADS, thread_name_prefix="look") as pool:
        for refused in pool.map(_refusal, plain):
            if refused is not None:
                raise InputError(f"{refused}. It is one of {len(names)} that {url} stands for.")
    for name in names:
        yield from _images_at(name, others, True)


def _refusal(url: str) -> Refused | None:
    """Why nothing can be read at a URL, None if something can."""
    try:
        RemoteFile(url).described()
    except Refused as refused:
        return refused
    return None


def _images_at(url: str, others: OtherFiles, alone: bool) -> Iterator[ImageItem]:
    """The images at a URL without braces."""
    suffix, is_pattern = suffix_of(url), not is_web(url) and glob.has_magic(url)
    if url.partition("?")[0].lower().endswith(COMPRESSED_TARS):
        return file_images(RemoteFile(url))
    if suffix in CONTAINERS and not is_pattern and not url.endswith("/"):
        return _at(url, others)
    if suffix in LIST_EXTENSIONS:
        return _listed_urls(url)
    if is_pattern:
        return _matching(url, others)
    if is_web(url) and (url.endswith("/") or "*" in url):
        raise _no_folders(url)
    if not is_web(url) and (suffix not in EXTENSIONS or url.endswith("/")):
        return folder_images(url, _below(url), others)
    return _at(url, others) if alone else iter([ImageItem(url, RemoteFile(url))])


def _at(url: str, others: OtherFiles) -> Iterator[ImageItem]:
    """The images of a file that must be there, or of a folder with the name of an image."""
    file = None
    with explained():
        try:
            file = RemoteFile(url).described()
        except Missing as missing:
            if not missing.is_folder or suffix_of(url) in CONTAINERS:
                raise
    yield from folder_images(url, _below(url), others) if file is None else file_images(file)


def _matching(pattern: str, others: OtherFiles) -> Iterator[ImageItem]:
    root, wild = split_pattern(pattern.split("/"))
    if len(root) < 3:
        raise InputError(f"{pattern} leaves the bucket open. Name it, as in {scheme_of(pattern)}://bucket/*.jpg.")
    images = matching_images(pattern, _below("/".join(root)), wild, others, alone=True)
    try:
        yield next(images)
    except InputError:
        if isinstance(_refusal(pattern), Missing):
            raise
        images = _at(pattern, others)  # its name has [ and ] itself
    yield from images


def _listed_urls(url: str) -> Iterator[ImageItem]:
    """The images of a text file with one URL per line; archives and Parquet files stand for the images in them."""
    try:
        with explained():
            text = get(url, _MOST_LIST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"The list {url} is not text in UTF-8 ({error.reason}).") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError(f"The list {url} contains no URL.")
    for number, line in lines:
        try:
            file = RemoteFile(checked_url(line, f"Line {number} of the list {url}"))
        except InputError as error:
            if number == lines[0][0]:
                raise
            yield ImageItem(f"{url} (line {number})", None, problem=str(error))
        else:
            yield from found_images(file) if file.suffix in SHARDS else [ImageItem(file.url, file)]


def _below(folder: str) -> Iterator[FolderEntry]:
    """Every file below a folder, in the order of a local one: each folder sorted by name."""
    prefix = folder.rstrip("/") + "/"
    with explained():
        found = [(tuple(one.url.removeprefix(prefix).split("/")), one) for one in list_objects(folder)]
    # An object without bytes that other names begin with only marks a folder; so does one of the folder's own name.
    folders = {parts[:depth] for parts, _ in found for depth in range(1, len(parts))}
    entries = []
    for parts, one in found:
        is_marker = not one.size and parts in folders
        if one.url.startswith(prefix) and not is_marker and not any(part.startswith(".") for part in parts):
            file = RemoteFile(one.url, one.size, one.version)
            entries.append(FolderEntry(file, EntryKind.IMAGE if file.suffix in EXTENSIONS else EntryKind.OTHER, parts))
    yield from sorted(entries, key=lambda entry: entry.parts)


def _no_folders(url: str) -> InputError:
    return InputError(
        f"{url} is a folder or pattern, but a web server cannot be listed. Give the URLs of images, or of a list of "
        "them that ends in .txt, one URL per line."
    )
