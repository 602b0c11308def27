"""Other looks of a photograph: greyscale, line drawings, silhouettes, flat colours, paint, wrong colours."""

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import ndimage
from skimage import feature, filters


def _grey(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L"), np.float32) / 255


def _picture(values: np.ndarray) -> Image.Image:
    return Image.fromarray((np.clip(values, 0, 1) * 255).astype(np.uint8)).convert("RGB")


def greyscale(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Without colour, with more or less contrast."""
    return ImageEnhance.Contrast(image.convert("L").convert("RGB")).enhance(rng.uniform(0.7, 1.6))


def outline(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Edges, black on white or white on black, thin or thick."""
    edges = feature.canny(_grey(image), sigma=rng.uniform(1.2, 3.5))
    width = int(rng.integers(1, 4))
    if width > 1:
        edges = ndimage.binary_dilation(edges, iterations=width - 1)
    lines = _picture(edges.astype(np.float32)).filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.8)))
    return lines if rng.random() < 0.25 else ImageOps.invert(lines)


def pencil(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Thresholded difference of Gaussians: strokes with some shading."""
    grey, sigma = _grey(image), rng.uniform(0.6, 2.0)
    detail = ndimage.gaussian_filter(grey, sigma) - 0.98 * ndimage.gaussian_filter(grey, 1.6 * sigma)
    return _picture(np.where(detail > 0.005, 1.0, 1 + np.tanh(rng.uniform(20, 80) * (detail - 0.005))))


def silhouette(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The darker or lighter part, whichever is not at the border, in black."""
    grey = ndimage.gaussian_filter(_grey(image), rng.uniform(1, 4))
    dark = grey < filters.threshold_otsu(grey)
    border = np.concatenate([dark[0], dark[-1], dark[:, 0], dark[:, -1]]).mean()
    return _picture((dark if border > 0.5 else ~dark).astype(np.float32))


def cartoon(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Few flat, strong colours and dark outlines."""
    flat = image.filter(ImageFilter.MedianFilter(5)).quantize(int(rng.integers(5, 12))).convert("RGB")
    flat = ImageEnhance.Color(flat).enhance(rng.uniform(1.2, 2.2))
    edges = feature.canny(_grey(image), sigma=rng.uniform(1.5, 3.0))
    lines = ndimage.binary_dilation(edges, iterations=int(rng.integers(1, 3)))
    return Image.fromarray(np.where(lines[..., None], 0, np.asarray(flat)).astype(np.uint8))


def paint(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Patches of few colours, as a brush leaves them, paler or stronger."""
    strokes = ImageOps.posterize(image.filter(ImageFilter.MedianFilter(5)), int(rng.integers(2, 5)))
    return ImageEnhance.Color(strokes).enhance(rng.uniform(0.5, 1.8))


def recoloured(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """All hues turned by the same angle."""
    hue, saturation, value = image.convert("HSV").split()
    shift = int(rng.integers(40, 216))
    turned = hue.point(lambda h: (h + shift) % 256)
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


def blurred(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """As if enlarged from a thumbnail."""
    small = int(rng.integers(28, 72))
    return image.resize((small, small)).resize(image.size, Image.Resampling.BICUBIC)


def views(image: Image.Image, index: int, rng: np.random.Generator) -> list[Image.Image]:
    """Five other looks; which of the milder ones depends on the index."""
    mild = ((silhouette, greyscale), (paint, recoloured), (silhouette, blurred), (outline, paint))[index // 2 % 4]
    return [style(image, rng) for style in (outline, pencil, cartoon, *mild)]
