"""What an address stands for: the images of a folder or pattern on an object store, of archives and tables there, of a
list of addresses, or one image.

A folder on an object store is a beginning that names share. It is listed as a local folder is: image endings only,
in the same order, names with a leading dot passed over, each image labelled with the folder that it lies in. Only
names, sizes and tags are read.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from deltaenergy.data.decode import EXTENSIONS, FAR_THREADS, Refusal
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.pattern import braces
from deltaenergy.data.formats.table import TABLE_EXTENSIONS, table_file_images
from deltaenergy.data.formats.tar import COMPRESSED_TARS, TAR_EXTENSIONS, compressed
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.client import RemoteObject, get, head, list_objects
from deltaenergy.data.remote.errors import Denied, Missing, Refused
from deltaenergy.data.remote.table import RemoteTable
from deltaenergy.data.remote.tar import remote_tar_images
from deltaenergy.data.remote.url import SCHEMES, checked_url, is_web, root_of, scheme_of, suffix_of
from deltaenergy.errors import InputError

# What gives the images of a folder.
ListFolder = Callable[[str], Iterator[ImageItem]]
# What a folder without pictures may hold instead.
PARTS = TAR_EXTENSIONS | {".parquet"}
LIST_EXTENSIONS = frozenset({".txt"})
# A hundred bytes an address: longer lists are better kept as tables.
_MOST_LIST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class _Object:
    """One object of a listing, with its parts behind the folder that was listed."""

    address: str
    parts: tuple[str, ...]
    size: int | None
    version: str | None

    def item(self, label: str | None = None, domain: str | None = None) -> ImageItem:
        return ImageItem(self.address, RemoteFile(self.address, self.size, self.version), label, domain)

    @property
    def ending(self) -> str:
        """What its name ends in."""
        return suffix_of(self.address)

    @property
    def is_image(self) -> bool:
        return self.ending in EXTENSIONS

    @property
    def folder(self) -> str | None:
        """The name of the folder that it lies in, None if that is the one that was listed."""
        return self.parts[-2] if len(self.parts) > 1 else None


def single(address: str) -> ImageItem:
    """The image at an address that is taken on trust: whether it is there will show when its turn comes."""
    return ImageItem(address, RemoteFile(address))


def remote_images(given: str, folder: ListFolder, *, alone: bool) -> Iterator[ImageItem]:
    """The images that an address stands for, in a stable order. What was given `alone` must be there.

    `folder` lists a folder: `folder_images`, or a function that also knows folders of another kind.
    What is wrong with the address itself is said now; the store is asked when the first image is wanted.
    """
    address = checked_url(given)
    ending = suffix_of(address)
    if len(names := braces(address)) > 1 and (alone or ending not in EXTENSIONS):
        return _each(address, names, folder)
    return _ask_for(address, alone, folder)


def _each(address: str, names: list[str], folder: ListFolder) -> Iterator[ImageItem]:
    """The images of every name that braces stand for, once all are seen to be there; a name may hold braces, too."""
    if _why_not(address) is None:
        yield from _ask_for(address, True, folder)
        return
    plain = [name for name in names if not glob.has_magic(name) and not name.endswith("/")]
    with ThreadPoolExecutor(FAR_THREADS, thread_name_prefix="look") as pool:
        for name, reason in zip(plain, pool.map(_why_not, plain)):
            if reason is not None:
                raise InputError(f"{name}: {reason}. It is one of {len(names)} that {address} stands for.")
    for name in names:
        yield from _ask_for(name, True, folder)


def _why_not(address: str) -> str | None:
    """Why there is nothing to be had at an address, None if there is something."""
    try:
        head(address)
    except Refused as refused:
        return refused.reason
    return None


def _ask_for(address: str, alone: bool, folder: ListFolder) -> Iterator[ImageItem]:
    """The images at an address without braces."""
    ending = suffix_of(address)
    magic = not is_web(address) and glob.has_magic(address)
    if address.lower().partition("?")[0].endswith(COMPRESSED_TARS):
        raise compressed(address)
    if ending in TAR_EXTENSIONS | TABLE_EXTENSIONS and not magic:
        return _from_part(address)
    if is_web(address) and ending not in LIST_EXTENSIONS and (address.endswith("/") or "*" in address):
        raise _no_folders(address)
    return _from_store(address, alone, folder)


def _from_part(address: str) -> Iterator[ImageItem]:
    """The images of an archive, or of a table."""
    yield from _inside(_said(address, lambda: head(address)))


def _inside(of: RemoteObject) -> Iterator[ImageItem]:
    return remote_tar_images(of) if suffix_of(of.url) in TAR_EXTENSIONS else table_file_images(RemoteTable(of))


def _from_store(address: str, alone: bool, folder: ListFolder) -> Iterator[ImageItem]:
    ending = suffix_of(address)
    if ending in LIST_EXTENSIONS:
        yield from _listed_addresses(address)
    elif not is_web(address) and glob.has_magic(address):
        yield from _matching(address)
    elif not is_web(address) and (ending not in EXTENSIONS or address.endswith("/")):
        yield from folder(address)
    elif not alone:
        yield single(address)
    else:
        try:
            found = head(address)
        except Missing as missing:
            if not missing.is_folder:
                raise _explained(missing) from missing
            yield from folder_images(address)
        except Refused as refused:
            raise _explained(refused) from refused
        else:
            yield ImageItem(address, RemoteFile(address, found.size, found.version))


def remote_folders(given: str, domains: bool) -> list[ImageItem]:
    """The images of `given/CLASS/`, or with `domains` of `given/DOMAIN/CLASS/`, labelled with the folders' names.

    An image outside the class folders is an error. Empty folders do not exist on an object store.
    """
    address = checked_url(given)
    if is_web(address):
        raise _no_folders(address)
    depth = 2 if domains else 1
    items = []
    for one in _images_among(_below(address), address):
        if len(one.parts) <= depth:
            kind = "domain and class folders" if domains else "class folders"
            raise InputError(f"{one.address} lies outside the {kind} of {address}. Move it into one.")
        items.append(one.item(one.parts[depth - 1], one.parts[0] if domains else None))
    return items


def _no_folders(address: str) -> InputError:
    return InputError(
        f"{address} is a folder or pattern, but a web server cannot be listed. Give the addresses of images, or of a "
        "list of them that ends in .txt, one address a line."
    )


def folder_images(address: str) -> Iterator[ImageItem]:
    """The pictures in a folder; of one that holds none, those in its archives and Parquet files."""
    found = _below(address)
    images = [one for one in found if one.is_image]
    if images or not any(one.ending in PARTS for one in found):
        yield from (one.item(one.folder) for one in _images_among(found, address))
        return
    for one in found:
        if one.ending in PARTS:
            yield from _from_found(one)


def _from_found(one: _Object) -> Iterator[ImageItem]:
    """The images of an archive or table that was found; what is refused is listed as unreadable."""
    try:
        return _inside(head(one.address))
    except Refused as refused:
        return iter([ImageItem(one.address, Refusal(refused.reason))])


def _images_among(found: list[_Object], address: str) -> list[_Object]:
    images = [one for one in found if one.is_image]
    if not images:
        what = f"It holds {len(found)} other objects, such as {found[0].address!r}." if found else "Nothing is there."
        raise InputError(f"{address} holds no image. {what} Image files end in .jpg, .png, .webp, ….")
    return images


def _below(folder: str, prefix: str = "") -> list[_Object]:
    """Everything below a folder whose name there begins so, in the order of a local one: each folder sorted by name."""
    root = folder.rstrip("/")
    found: list[RemoteObject] = _said(folder, lambda: list(list_objects(root)))
    skipped = len(root) + 1
    objects = []
    for one in found:
        parts = tuple(one.url[skipped:].split("/"))
        if parts[0].startswith(prefix) and parts[-1] and not any(part.startswith(".") for part in parts):
            objects.append(_Object(one.url, parts, one.size, one.version))
    objects.sort(key=lambda one: one.parts)
    return objects


def _matching(pattern: str) -> Iterator[ImageItem]:
    """The images that match, and those in folders that match, then those of archives that match, and of tables if the
    pattern asks for their ending. `*` stays inside a name, `**` is any depth.
    """
    fixed, wild = [], pattern.split("/")
    while not glob.has_magic(wild[0]):
        fixed.append(wild.pop(0))
    if len(fixed) < 3:
        raise InputError(f"{pattern} leaves the bucket open. Name it, as in {scheme_of(pattern)}://bucket/*.jpg.")
    wild = [part for part in wild if part]
    literal = re.split(r"[*?[]", wild[0], maxsplit=1)[0]
    below = _below("/".join(fixed), literal)
    found = [one for one in below if one.is_image and _fits(one.parts, wild)]
    wanted = TAR_EXTENSIONS | ({suffix_of(pattern)} & TABLE_EXTENSIONS)
    parts = [one for one in below if one.ending in wanted and _fits(one.parts, wild, itself=True)]
    if not found and not parts:
        # A name may hold [ and ], too.
        try:
            exact = head(pattern)
        except Missing:
            raise InputError(f"No image matches the pattern {pattern!r}.") from None
        if suffix_of(pattern) in wanted:
            yield from _from_part(pattern)
        else:
            yield ImageItem(pattern, RemoteFile(pattern, exact.size, exact.version))
    for one in found:
        yield one.item()
    for one in parts:
        yield from _from_found(one)


def _fits(parts: tuple[str, ...], pattern: Sequence[str], *, itself: bool = False) -> bool:
    """Whether a name matches, or, unless it must do so itself, a folder that it lies in."""
    if not pattern:
        return not (itself and parts)
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return _fits(parts, rest, itself=itself) or (bool(parts) and _fits(parts[1:], pattern, itself=itself))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], first) and _fits(parts[1:], rest, itself=itself)


def _listed_addresses(address: str) -> Iterator[ImageItem]:
    """The images of a text file with one address a line; archives and Parquet files stand for all of theirs."""
    data = _said(address, lambda: get(address, _MOST_LIST_BYTES))
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"The list {address} is no text in UTF-8 ({error.reason}).") from error
    if not any(line.strip() for line in lines):
        raise InputError(f"The list {address} holds no address.")
    for number, line in enumerate(lines, start=1):
        if text := line.strip():
            line = checked_url(text, f"Line {number} of the list {address}")
            yield from _from_part(line) if suffix_of(line) in PARTS else [single(line)]


def _said(address: str, request: Any) -> Any:
    """What `request` gives; what the server refused is told with the address."""
    try:
        return request()
    except Refused as refused:
        raise _explained(refused) from refused


def _explained(refused: Refused) -> InputError:
    hint, credentials = "", SCHEMES[scheme_of(refused.url)].credentials
    if isinstance(refused, Denied) and credentials:
        hint = f" Credentials are read from the environment: {credentials}."
    elif isinstance(refused, Missing) and not is_web(refused.url):
        hint = f" Check the name; {root_of(refused.url)}/ lists the bucket."
    return InputError(f"{refused}.{hint}")
