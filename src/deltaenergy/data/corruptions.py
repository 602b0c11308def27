"""Blurred, noisy, compressed and dark copies of images, for thresholds that are to tolerate such images."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image, ImageFilter

from deltaenergy.data.items import ImageItem, Lazy, load_rgb
from deltaenergy.errors import InputError, did_you_mean

Corruption = Callable[[Image.Image, np.random.Generator], Image.Image]


def blur(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A Gaussian of 1.5% of the shorter side."""
    return image.filter(ImageFilter.GaussianBlur(0.015 * min(image.size)))


def noise(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Gaussian noise in each colour, of a deviation of 15% of the range."""
    pixels = np.asarray(image, dtype=np.float32)
    noisy = pixels + 255 * 0.15 * rng.standard_normal(pixels.shape, dtype=np.float32)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Compressed at quality 8."""
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=8)
    return Image.open(packed).convert("RGB")


def dark(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A quarter of the light."""
    return image.point(lambda value: value // 4)


CORRUPTIONS: dict[str, Corruption] = {"blur": blur, "noise": noise, "jpeg": jpeg, "dark": dark}


def corruption_kinds(kinds: str | Sequence[str]) -> tuple[str, ...]:
    """The names of kinds, also from one text with commas; an unknown one is an error."""
    names = [kind.strip() for kind in (kinds.split(",") if isinstance(kinds, str) else kinds)]
    for name in names:
        if name not in CORRUPTIONS:
            raise InputError(f"`tolerate` has an unknown corruption {name!r}.{did_you_mean(name, CORRUPTIONS)}")
    return tuple(dict.fromkeys(names))


def half_corrupted(items: Iterable[ImageItem], kinds: Sequence[str]) -> list[ImageItem]:
    """The same images, each left as it is or corrupted by one of `kinds`, with equal chance (fixed seed).

    So these are independent draws from the mixture of clean and corrupted images.
    """
    rng = np.random.default_rng(0)
    return [corrupted(item, kinds[int(rng.integers(len(kinds)))]) if rng.random() < 0.5 else item for item in items]


def corrupted(item: ImageItem, kind: str) -> ImageItem:
    """The image as a corrupted copy; what is random in it depends only on the image's name."""
    if item.problem is not None:
        return item
    seed = int.from_bytes(hashlib.blake2b(f"{kind} {item.id}".encode(), digest_size=8).digest())
    return replace(item, source=Lazy(lambda: CORRUPTIONS[kind](load_rgb(item), np.random.default_rng(seed))))
