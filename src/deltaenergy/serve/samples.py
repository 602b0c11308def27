"""Sample photographs for the page, where the packages that hold them are installed; and the scores it offers."""

from __future__ import annotations

import functools
import io

from PIL import Image

from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError

SIDE = 640


@functools.lru_cache(1)
def _photographs() -> tuple[ImageItem, ...]:
    from deltaenergy.demo import sample_photographs

    try:
        return tuple(sample_photographs())
    except InputError:
        return ()


def names() -> list[dict[str, str | None]]:
    """Name and class of each sample; none if there are no samples."""
    return [{"name": item.id, "label": item.label} for item in _photographs()]


@functools.lru_cache(32)
def photograph(number: int) -> bytes | None:
    """A sample as JPEG, small enough for a page."""
    from deltaenergy.data.decode import UnreadableImage, open_image

    if not 0 <= number < len(_photographs()):
        return None
    try:
        image = open_image(_photographs()[number].source)
    except UnreadableImage:
        return None
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "JPEG", quality=88)
    return data.getvalue()


@functools.lru_cache(1)
def simple_scores() -> list[str]:
    """The scores that can be asked for with class names alone."""
    from deltaenergy.scores.registry import list_scores
    from deltaenergy.serve.engine import check_unfitted

    found = []
    for name in list_scores():
        try:
            check_unfitted(name)
        except InputError:
            continue
        found.append(name)
    return found
