"""Links from a page to a picture's own file: relative, so that a folder with both can be moved."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from deltaenergy.data.items import ImageItem


def file_link(item: ImageItem, page_folder: Path) -> str | None:
    """The address of the image's file as seen from the page, or None if it has none that exists."""
    source = item.source if isinstance(item.source, Path) else Path(item.id)
    try:
        if not source.is_file():
            return None
        full = os.path.abspath(source)  # noqa: PTH100
        relative = os.path.relpath(full, os.path.abspath(page_folder))  # noqa: PTH100
    except ValueError:  # another drive, or a name that no file has
        return None
    # The ./ keeps a name such as `http:x.jpg` from being taken for an address.
    return "./" + quote(os.fsencode(relative.replace(os.sep, "/")))
