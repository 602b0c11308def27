"""The images of a file, here or at a URL: itself, or those in an archive or a table."""

from __future__ import annotations

from collections.abc import Iterator

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.file import File, reason_of
from deltaenergy.data.formats.table import TABLE_EXTENSIONS, table_file_images
from deltaenergy.data.formats.tar import COMPRESSED_TARS, TAR_EXTENSIONS, compressed, tar_images
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.errors import Refused
from deltaenergy.errors import InputError

# Files that stand for the images in them.
CONTAINERS = TABLE_EXTENSIONS | TAR_EXTENSIONS
# What a folder without images may contain instead.
SHARDS = TAR_EXTENSIONS | {".parquet"}


def file_images(file: File) -> Iterator[ImageItem]:
    """The images of a file that was given. Raises `InputError` for an archive or table that cannot be read."""
    if file.suffix in TABLE_EXTENSIONS:
        return table_file_images(file)
    if file.suffix in TAR_EXTENSIONS:
        return tar_images(file)
    if file.name.partition("?")[0].lower().endswith(COMPRESSED_TARS):
        raise compressed(file)
    return iter([ImageItem(file.name, file)])


def found_images(file: File) -> Iterator[ImageItem]:
    """The images of a file that was found in a folder or list; one that cannot be read is listed as unreadable."""
    try:
        images = file_images(file.described())
        yield next(images)
    except (UnreadableImage, Refused, InputError) as error:
        yield ImageItem(file.name, None, problem=reason_of(error))
        return
    yield from images
