"""Open one image as RGB, or say in a short sentence why not.

Whatever comes in, out comes what a person would see: upright (EXIF rotation applied), first frame only, 16-bit grey
scaled to 8 bits, transparency laid on white. The bytes of a broken file can make Pillow raise nearly anything; here
it all becomes `UnreadableImage`. No global setting of Pillow is touched, so any number of threads may decode at once,
as far as the budget of pixels reaches (`pixel_budget.py`).
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from deltaenergy.data.pixel_budget import PIXELS, PixelBudget
from deltaenergy.errors import InputError, UnreachableError, first_line, used_up_its_memory

if TYPE_CHECKING:
    import numpy.typing as npt

# About twice Pillow's own warning limit, where Pillow refuses too. Larger images are taken for decompression bombs.
MAX_PIXELS = 178_956_970

# Huge JPEG files are decoded at 1/2, 1/4 or 1/8 of their size (the format's own coarser steps), as small as leaves both
# sides at this length: nine times the input of a CLIP. Other images are decoded in full.
DRAFT_SIDE = 2048

# Conversions that need several copies of the pixels are made in strips of about this many.
STRIP_PIXELS = 1 << 22

# Formats that are decoded in this process from their own bytes. Left out on purpose: EPS (starts Ghostscript), ICO
# and ICNS (their header does not have the decoded size), TGA (has no signature, so noise passes for it).
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")

# How HEIC files begin, behind their length and `ftyp`: iPhones write heic, others mif1.
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"})
_INSTALL_HEIC = "pip install 'deltaenergy[heic]'"
_heic_wanted = True

# File name endings that count as images when a folder is listed.
EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif"}
)

# A request to an object store takes about 50 ms, most of it waiting.
FAR_THREADS = 32

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

# A PIL image may be in a list twice, and its lazy loading is not made for two threads. Few locks serve all images.
_LOCKS = tuple(threading.Lock() for _ in range(64))


class UnreadableImage(Exception):
    """The image cannot be decoded; the message is the reason."""


class Openable(Protocol):
    """An encoded image that is read when it is needed: a file, or a part of one."""

    def open(self) -> IO[bytes]:
        """The image's bytes as a file. Raises `UnreadableImage`."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """How many pixels are decoded at once: JPEG files above `draft_above` are made smaller while they are decoded."""

    draft_above: int = 50_000_000
    strip_pixels: int = STRIP_PIXELS
    budget: PixelBudget = PIXELS


_LIMITS = DecodeLimits()


ImageSource: TypeAlias = Openable | Image.Image | bytes | Callable[[], Any] | None


def reading_threads(sources: Iterable[object], near: int) -> int:
    """How many threads read images at a time: `near` from disks, more if some are at URLs."""
    return max(near, FAR_THREADS) if any(getattr(source, "is_remote", False) for source in sources) else near


def open_image(source: ImageSource, limits: DecodeLimits = _LIMITS) -> Image.Image:
    """The image upright, in RGB, first frame only. Raises `UnreadableImage`, and nothing else for a broken image.

    Transparent parts are laid on white. An image given as a PIL object is left as it is; the result is a copy.
    """
    with opened(source, limits) as image:
        return image


@contextlib.contextmanager
def opened(source: ImageSource, limits: DecodeLimits = _LIMITS) -> Iterator[Image.Image]:
    """`open_image` for a block that needs the image only for a moment: until it ends, its pixels count as decoded."""
    _ = limits.budget.limit  # a wrong setting is not the image's fault
    with contextlib.ExitStack() as held:
        with reasons():
            image = _open(source, held, limits)
        yield image


@contextlib.contextmanager
def reasons() -> Iterator[None]:
    """Whatever goes wrong while an image is read becomes `UnreadableImage`, unless it is not the image's fault.

    Too little memory is the image's fault, whose header may claim any size, unless the process has used up its limit.
    """
    try:
        yield
    except (UnreadableImage, UnreachableError):
        raise
    # Pillow's parsers raise OSError, SyntaxError, ValueError, KeyError, struct.error, zlib.error, MemoryError and more.
    except Exception as error:
        if isinstance(error, MemoryError) and used_up_its_memory():
            raise
        raise UnreadableImage(_reason(error)) from error


def _open(source: ImageSource, held: contextlib.ExitStack, limits: DecodeLimits) -> Image.Image:
    if isinstance(source, Image.Image):
        # The budget first: a thread that waited for it with the lock in hand could stop another with the same lock.
        _check_size(source)
        held.enter_context(limits.budget.hold(source.width * source.height))
        with _LOCKS[id(source) // 64 % len(_LOCKS)]:
            rgb = _to_rgb(source, limits.strip_pixels)
        return rgb.copy() if rgb is source else rgb
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), held, limits)
    if source is None:
        raise UnreadableImage("only its name is known")
    if callable(source):
        return _open(source(), held, limits)
    with source.open() as stream:
        return _decode(stream, held, limits)


def _decode(stream: IO[bytes], held: contextlib.ExitStack, limits: DecodeLimits) -> Image.Image:
    image = open_header(stream)
    _check_size(image)
    pixels = image.width * image.height
    if image.format in {"JPEG", "MPO"} and pixels > limits.draft_above:
        image.draft(None, (DRAFT_SIDE, DRAFT_SIDE))
        # A progressive file is held whole while it is decoded, at whatever size.
        pixels = pixels if "progressive" in image.info else image.width * image.height
    held.enter_context(limits.budget.hold(pixels))
    return _to_rgb(image, limits.strip_pixels)


def open_header(stream: IO[bytes]) -> Image.Image:
    """The image with its size known and no pixel decoded. Raises `UnreadableImage`, and whatever Pillow does."""
    start = stream.read(512)
    if not start:
        raise UnreadableImage("the file is empty")
    stream.seek(0)
    Image.init()  # registers all plugins once; Image.open would miss formats otherwise
    reads_heic = _heic_wanted and _register_heic()
    formats = [name for name in FORMATS if name in Image.OPEN and (reads_heic or name != "HEIF")]
    try:
        return Image.open(stream, formats=formats)
    except UnidentifiedImageError:
        if _is_heic(start) and not _heic_wanted:
            raise UnreadableImage("a HEIC image, which this service was not started to read (option heic)") from None
        if _is_heic(start) and not reads_heic:
            raise UnreadableImage(f"a HEIC image, which needs an extra: {_INSTALL_HEIC}") from None
        kind = "it contains text" if _is_text(start) else "unknown format or damaged header"
        raise UnreadableImage(f"not an image: {kind}") from None


def use_heic(wanted: bool) -> None:
    """Whether HEIC images are read in this process; by default they are, where `pillow-heif` is installed.

    libheif is native code that reads bytes from unknown senders: a service uses it only on request.
    """
    global _heic_wanted
    if wanted and not _register_heic():
        raise InputError(f"HEIC images need an extra that is not installed: {_INSTALL_HEIC}.")
    _heic_wanted = wanted


@functools.cache
def _register_heic() -> bool:
    """Let Pillow know of HEIC, if `pillow-heif` is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _is_heic(start: bytes) -> bool:
    """An ISO media file (`ftyp`) whose first brand is one of HEIF's."""
    return start[4:8] == b"ftyp" and start[8:12] in _HEIC_BRANDS


def begins_as_image(start: bytes) -> bool:
    """Whether a file that begins so (12 bytes are enough) is an image in one of the formats that have a signature."""
    if start.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")):
        return True
    if start.startswith((b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")):  # TIFF, JPEG 2000
        return True
    is_webp = start.startswith(b"RIFF") and start[8:12] == b"WEBP"
    is_bmp = start.startswith(b"BM") and start[6:10] == bytes(4)
    is_avif = start[4:12] in (b"ftypavif", b"ftypavis")
    return is_webp or is_bmp or is_avif or _is_heic(start)


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if not width or not height:
        raise UnreadableImage(f"it has no pixels ({width} × {height})")
    if width * height > MAX_PIXELS:
        raise UnreadableImage(
            f"too large: {width} × {height} pixels exceed the limit of {MAX_PIXELS // 1_000_000} million"
        )
    if image.mode == "LAB":
        raise UnreadableImage("its colour space LAB cannot be converted to RGB")


def _to_rgb(image: Image.Image, strip_pixels: int) -> Image.Image:
    image.load()
    rotation = _UPRIGHT.get(_orientation(image))
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        image = _eight_bit(image, strip_pixels)
    elif image.has_transparency_data:
        image = _on_white(image, strip_pixels)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image if rotation is None else image.transpose(rotation)


def strips(image: Image.Image, pixels: int = STRIP_PIXELS) -> Iterator[tuple[tuple[int, int, int, int], Image.Image]]:
    """The image from top to bottom in parts of bounded size, each with its position (left, top, right, bottom)."""
    rows = max(1, pixels // max(1, image.width))
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        yield box, image.crop(box)


def _on_white(image: Image.Image, strip_pixels: int) -> Image.Image:
    result = Image.new("RGB", image.size)
    for box, strip in strips(image, strip_pixels):
        part = strip.convert("LA").convert("RGBA") if strip.mode == "La" else strip.convert("RGBA")
        result.paste(Image.alpha_composite(Image.new("RGBA", part.size, "white"), part).convert("RGB"), box)
    return result


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # damaged EXIF data do not make the pixels unreadable
        return 1
    return value if isinstance(value, int) else 1


def _eight_bit(image: Image.Image, strip_pixels: int) -> Image.Image:
    """Grey values of 16 or 32 bits in 8 bits, where Pillow's own conversion would clip all above 255 to white.

    Integers count from 0 (black) to 65535 (white), floats from 0 to 1. Values outside these ranges carry no scale
    of their own: there the smallest is black and the largest white.
    """
    low, high = np.inf, -np.inf
    for _, strip in strips(image, strip_pixels):
        values = np.asarray(strip)
        if not np.isfinite(values).all():
            raise UnreadableImage("its grey values hold NaN or infinity")
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    black, white = 0.0, 1.0 if image.mode == "F" else 65535.0
    if low < black or high > white:
        black, white = low, high
    scale = 255 / (white - black) if white > black else 0.0
    result = Image.new("L", image.size)
    for box, strip in strips(image, strip_pixels):
        scaled: npt.NDArray[np.float64] = (np.asarray(strip).astype(np.float64) - black) * scale
        result.paste(Image.fromarray(np.rint(scaled).astype(np.uint8)), box)
    return result


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
    said = first_line(error)[:100]
    if "truncated" in said.lower() or isinstance(error, EOFError):
        return "the file is truncated: its end is missing"
    return f"the image is damaged ({said})"
