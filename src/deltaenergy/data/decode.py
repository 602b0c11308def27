"""Open one image as RGB, or say in a short sentence why not.

Whatever comes in, out comes what a person would see: upright (EXIF rotation applied), first frame only, 16-bit grey
scaled to 8 bits, transparency laid on white. The bytes of a broken file can make Pillow raise nearly anything; here
it all becomes `UnreadableImage`. No global setting of Pillow is touched, so any number of threads may decode at once.
"""

from __future__ import annotations

import codecs
import io
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

if TYPE_CHECKING:
    import numpy.typing as npt

# About twice Pillow's own warning limit, where Pillow refuses too. Larger pictures are taken for decompression bombs.
MAX_PIXELS = 178_956_970

# Formats that are decoded in this process from their own bytes. Left out on purpose: EPS (starts Ghostscript), ICO
# and ICNS (their header does not tell the decoded size), TGA (has no signature, so noise passes for it).
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")

# File name endings that count as images when a folder is listed.
EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif"}
)

ImageSource: TypeAlias = Path | Image.Image | bytes | Callable[[], "ImageSource"]

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# A PIL image may stand twice in a list, and its lazy loading is not made for two threads. Few locks serve all images.
_LOCKS = tuple(threading.Lock() for _ in range(64))


class UnreadableImage(Exception):
    """The image cannot be decoded; the message is the reason."""


def open_image(source: ImageSource) -> Image.Image:
    """The image upright, in RGB, first frame only. Raises `UnreadableImage`, and nothing else for a broken image.

    Transparent parts are laid on white. An image given as a PIL object is left as it is; the result is a copy.
    """
    try:
        if isinstance(source, Image.Image):
            with _LOCKS[id(source) // 64 % len(_LOCKS)]:
                rgb = _to_rgb(source)
            return rgb.copy() if rgb is source else rgb
        if callable(source):
            return open_image(source())
        if isinstance(source, bytes):
            return _decode(io.BytesIO(source))
        _check_file(source)
        with source.open("rb") as stream:
            return _decode(stream)
    except UnreadableImage:
        raise
    # Pillow's parsers raise OSError, SyntaxError, ValueError, KeyError, struct.error, zlib.error, MemoryError and more.
    except Exception as error:
        raise UnreadableImage(_reason(error)) from error


def _check_file(path: Path) -> None:
    """Refuse what is no regular file before opening it: to open a named pipe would wait for ever."""
    try:
        status = path.stat()
    except FileNotFoundError:
        broken = path.is_symlink()
        raise UnreadableImage(
            "a symbolic link to a file that does not exist" if broken else "the file does not exist"
        ) from None
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableImage("a folder, not an image file")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableImage("not a regular file")


def _decode(stream: IO[bytes]) -> Image.Image:
    start = stream.read(512)
    if not start:
        raise UnreadableImage("the file is empty")
    stream.seek(0)
    Image.init()  # registers all plugins once; Image.open would miss formats otherwise
    try:
        image = Image.open(stream, formats=[name for name in FORMATS if name in Image.OPEN])
    except UnidentifiedImageError:
        kind = "it holds text" if _is_text(start) else "unknown format or damaged header"
        raise UnreadableImage(f"not an image: {kind}") from None
    return _to_rgb(image)


def _to_rgb(image: Image.Image) -> Image.Image:
    width, height = image.size
    if not width or not height:
        raise UnreadableImage(f"it has no pixels ({width} × {height})")
    if width * height > MAX_PIXELS:
        raise UnreadableImage(
            f"too large: {width} × {height} pixels exceed the limit of {MAX_PIXELS // 1_000_000} million"
        )
    if image.mode == "LAB":
        raise UnreadableImage("its colour space LAB cannot be converted to RGB")
    image.load()
    rotation = _UPRIGHT.get(_orientation(image))
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        image = _eight_bit(image)
    elif image.has_transparency_data:
        image = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image if rotation is None else image.transpose(rotation)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # damaged EXIF data do not make the pixels unreadable
        return 1
    return value if isinstance(value, int) else 1


def _eight_bit(image: Image.Image) -> Image.Image:
    """Grey values of 16 or 32 bits in 8 bits, where Pillow's own conversion would clip all above 255 to white.

    Integers count from 0 (black) to 65535 (white), floats from 0 to 1. Values outside these ranges carry no scale
    of their own: there the smallest is black and the largest white.
    """
    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise UnreadableImage("its grey values hold NaN or infinity")
    low, high = float(values.min()), float(values.max())
    black, white = 0.0, 1.0 if image.mode == "F" else 65535.0
    if low < black or high > white:
        black, white = low, high
    scale = 255 / (white - black) if white > black else 0.0
    scaled: npt.NDArray[np.float64] = (values.astype(np.float64) - black) * scale
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


def _is_text(start: bytes) -> bool:
    try:
        # The incremental decoder does not mind that the last character may be cut.
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return all(character >= " " or character.isspace() for character in text)


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"too large: it exceeds the limit of {MAX_PIXELS // 1_000_000} million pixels"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror.lower()}"
    first_line = (str(error).splitlines() or [""])[0][:100]
    if "truncated" in first_line.lower() or isinstance(error, EOFError):
        return "the file is truncated: its end is missing"
    return f"the image is damaged ({first_line or type(error).__name__})"
