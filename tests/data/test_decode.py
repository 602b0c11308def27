"""Every kind of file that a folder of pictures may hold: decoded as a person sees it, or refused with a reason."""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from deltaenergy.data import decode
from deltaenergy.data.decode import MAX_PIXELS, UnreadableImage, open_image
from deltaenergy.data.file import LocalFile
from deltaenergy.errors import InputError
from tests.sampling import examples

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(width: int = 40, height: int = 30) -> Image.Image:
    """Smooth colours with some noise: what compresses like a photograph."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 30, (height, width, 3))
    return Image.fromarray((np.stack([x * 5, y * 7, x + y], axis=-1) % 226 + noise).astype(np.uint8))


def pixels(source: Path | Image.Image | bytes) -> np.ndarray:
    source = LocalFile(source) if isinstance(source, Path) else source
    image = open_image(source)
    assert image.mode == "RGB"
    return np.asarray(image)


def reason(source: object) -> str:
    source = LocalFile(source) if isinstance(source, Path) else source
    with pytest.raises(UnreadableImage) as caught:
        open_image(source)  # type: ignore[arg-type]
    return str(caught.value)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


# What can be shown.


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_exact_formats_give_the_pixels_that_were_saved(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "picture"
    picture().save(path, kind)
    assert np.array_equal(pixels(path), np.asarray(picture()))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "JPEG2000", "AVIF"])
def test_lossy_formats_give_about_the_pixels_that_were_saved(kind: str) -> None:
    flat = Image.new("RGB", (64, 48), (200, 100, 50))
    if kind == "AVIF" and "AVIF" not in Image.SAVE:
        pytest.skip("this Pillow has no AVIF")
    assert np.abs(pixels(encoded(flat, kind)).astype(int) - (200, 100, 50)).max() <= 4


def test_jpeg_is_decoded_as_pillow_does_it() -> None:
    data = encoded(picture(400, 300), "JPEG")
    assert np.array_equal(pixels(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_cmyk_becomes_the_colours_it_stands_for() -> None:
    inks = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow ink: red
    assert (pixels(encoded(inks, "TIFF")) == RED).all()
    assert np.abs(pixels(encoded(inks, "JPEG", quality=95)).astype(int) - RED).max() <= 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped_to_white(kind: str) -> None:
    grey = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    expected = np.round(grey.astype(np.float64) / 65535 * 255)
    got = pixels(encoded(Image.fromarray(grey), kind))
    assert np.array_equal(got, np.repeat(expected[..., None], 3, axis=2))


def test_big_endian_sixteen_bit_grey() -> None:
    grey = np.array([[0, 257, 25700, 65535]], np.uint16)
    image = Image.frombytes("I;16B", (4, 1), grey.astype(">u2").tobytes())
    assert pixels(image)[0, :, 0].tolist() == [0, 1, 100, 255]


def test_integers_and_floats_beyond_sixteen_bits_are_stretched() -> None:
    wide = Image.fromarray(np.array([[-1000, 600, 1000]], np.int32))
    assert pixels(encoded(wide, "TIFF"))[0, :, 0].tolist() == [0, 204, 255]
    assert pixels(Image.fromarray(np.array([[0.0, 0.2, 1.0]], np.float32)))[0, :, 0].tolist() == [0, 51, 255]
    assert pixels(Image.fromarray(np.array([[100.0, 140.0, 200.0]], np.float32)))[0, :, 0].tolist() == [0, 102, 255]
    assert pixels(Image.fromarray(np.full((1, 2), 70000, np.int32)))[0, :, 0].tolist() == [0, 0]
    assert "NaN" in reason(Image.fromarray(np.array([[0.0, np.nan]], np.float32)))


def test_transparency_is_laid_on_white() -> None:
    image = Image.new("RGBA", (3, 1), RED)
    image.putpixel((1, 0), (255, 0, 0, 0))
    image.putpixel((2, 0), (0, 0, 0, 51))  # black at one fifth: 255 · 0.8 = 204
    for source in (encoded(image, "PNG"), encoded(image, "WEBP", lossless=True, exact=True), image):
        assert pixels(source)[0].tolist() == [list(RED), list(WHITE), [204, 204, 204]]


def test_palette_with_transparent_index() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 0), 1)
    for source in (encoded(image, "PNG", transparency=1), encoded(image, "GIF", transparency=1)):
        assert pixels(source)[0].tolist() == [list(RED), list(WHITE)]


def test_palette_with_alpha_table() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, 0, 0, 0])
    image.putpixel((1, 0), 1)
    assert pixels(encoded(image, "PNG", transparency=bytes([255, 51])))[0].tolist() == [list(RED), [204, 204, 204]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "La", "PA", "RGBa", "YCbCr", "HSV", "RGBX", "CMYK"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    first = Image.new("RGBA" if mode.endswith("a") or mode == "PA" else "RGB", (4, 4), "white")
    image = first.convert("LA").convert("La") if mode == "La" else first.convert(mode)
    assert (pixels(image) >= 250).all()


def test_animated_gif_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    assert (pixels(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])) == RED).all()


def test_picture_pair_of_a_stereo_camera_gives_the_first() -> None:
    first, second = Image.new("RGB", (16, 16), RED), Image.new("RGB", (16, 16), BLUE)
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert np.abs(pixels(data).astype(int) - RED).max() <= 4


EXIF_TO_UPRIGHT = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a.swapaxes(0, 1), 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", EXIF_TO_UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_rotation_is_applied_once(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), kind, exif=exif)
    expected = EXIF_TO_UPRIGHT[orientation](np.asarray(picture()))
    assert np.array_equal(pixels(data), expected)
    assert np.array_equal(pixels(Image.open(io.BytesIO(data))), expected)


def test_jpeg_from_a_camera_held_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(encoded(picture(40, 30), "JPEG", exif=exif)).size == (30, 40)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_hide_the_picture() -> None:
    data = encoded(picture(), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff" + bytes(8))
    assert open_image(data).size == (40, 30)


def test_path_outside_ascii(tmp_path: Path) -> None:
    path = tmp_path / "Bücher – 写真 🐕.png"
    picture().save(path)
    assert np.array_equal(pixels(path), np.asarray(picture()))


def test_a_pil_image_is_left_as_it_is() -> None:
    image = picture()
    before = image.tobytes()
    result = open_image(image)
    result.paste("black", (0, 0, 40, 30))
    assert result is not image
    assert image.tobytes() == before


def test_one_lazy_pil_image_in_many_threads() -> None:
    expected = np.asarray(picture(300, 200))
    for _ in range(5):
        image = Image.open(io.BytesIO(encoded(picture(300, 200), "PNG")))
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(open_image, [image] * 16))
        assert all(np.array_equal(np.asarray(result), expected) for result in results)


def test_a_function_is_asked_for_its_image() -> None:
    assert open_image(lambda: encoded(picture(), "PNG")).size == (40, 30)
    assert open_image(lambda: picture).size == (40, 30)

    def fails() -> bytes:
        raise KeyError("no such row")

    assert "no such row" in reason(fails)


# What cannot.


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.jpg"
    path.touch()
    assert reason(path) == "the file is empty"
    assert reason(b"") == "the file is empty"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_truncated_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "truncated"
    data = encoded(picture(200, 150), kind)
    path.write_bytes(data[: len(data) // 2])
    assert reason(path)


def test_truncated_jpeg_is_called_truncated() -> None:
    data = encoded(picture(200, 150), "JPEG")
    assert reason(data[: len(data) // 2]) == "the file is truncated: its end is missing"


@pytest.mark.parametrize("text", ["hello", "<!DOCTYPE html>\n<p>Not found</p>" * 50, "\ufeffGrüße, 世界!\n" * 99])
def test_text_renamed_to_jpg(tmp_path: Path, text: str) -> None:
    path = tmp_path / "text.jpg"
    path.write_text(text, encoding="utf-8")
    assert reason(path) == "not an image: it contains text"


def test_other_binary_file() -> None:
    assert reason(b"PK\x03\x04" + bytes(100)) == "not an image: unknown format or damaged header"


def test_postscript_is_not_run() -> None:
    assert "not an image" in reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")


def test_no_pixels() -> None:
    assert reason(Image.new("RGB", (0, 0))) == "it has no pixels (0 × 0)"
    assert reason(Image.new("RGB", (5, 0))) == "it has no pixels (5 × 0)"
    assert reason(png_header(0, 0))
    assert reason(b"GIF89a" + bytes(7) + b";")


@pytest.mark.parametrize("users_limit", [Image.MAX_IMAGE_PIXELS, None])
@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 2**31 - 1), (MAX_PIXELS + 1, 1)])
def test_decompression_bomb(monkeypatch: pytest.MonkeyPatch, users_limit: int | None, size: tuple[int, int]) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", users_limit)
    assert reason(png_header(*size)).startswith("too large: ")
    assert users_limit == Image.MAX_IMAGE_PIXELS


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    assert reason(png_header(20_000, 20_000)) == "too large: 20000 × 20000 pixels exceed the limit of 178 million"


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "locked.png"
    picture().save(path)
    path.chmod(0)
    if os.access(path, os.R_OK):  # the superuser may read everything

        def refuse(self: Path, *_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
    assert reason(path) == "no permission to read it"


def test_missing_file_and_broken_link(tmp_path: Path) -> None:
    assert reason(tmp_path / "missing.jpg") == "the file does not exist"
    link = tmp_path / "link.jpg"
    link.symlink_to(tmp_path / "gone.jpg")
    assert reason(link) == "a symbolic link to a file that does not exist"


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    link = tmp_path / "link.jpg"
    link.symlink_to(link)
    assert reason(link) == "cannot be read: its symbolic links lead in a circle"


def test_folder_pipe_and_impossible_name(tmp_path: Path) -> None:
    assert reason(tmp_path) == "a folder, not an image file"
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reason(tmp_path / "pipe.jpg") == "a named pipe, not a regular file"
    assert reason(Path("a\0b.jpg")) == "no file has this name: it contains a NUL character"
    assert reason(Path("a\ud800.jpg")) == "no file has this name: it is not valid text"
    assert reason(Path("x" * 5000 + ".jpg")).startswith("cannot be read: ")
    (tmp_path / "file").touch()
    assert reason(tmp_path / "file" / "a.jpg")


def test_colours_that_pillow_cannot_convert() -> None:
    assert "LAB" in reason(Image.new("LAB", (2, 2)))


def test_closed_pil_image(tmp_path: Path) -> None:
    picture().save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    image.close()
    assert reason(image)


def test_not_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(self: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", exhausted)
    assert reason(encoded(picture(), "PNG")) == "not enough memory to decode it"
    monkeypatch.setattr("deltaenergy.data.decode.used_up_its_memory", lambda: True)
    with pytest.raises(MemoryError):
        reason(encoded(picture(), "PNG"))


def test_reasons_are_short() -> None:
    for data in (b"", b"text", png_header(0, 0), encoded(picture(), "PNG")[:60]):
        assert len(reason(data)) < 160
        assert "\n" not in reason(data)


# Whatever the bytes are, the outcome is an RGB image or `UnreadableImage`.

VALID = {
    "JPEG": encoded(picture(), "JPEG"),
    "progressive JPEG": encoded(picture(), "JPEG", progressive=True),
    "PNG": encoded(picture(), "PNG"),
    "GIF": encoded(picture(), "GIF", save_all=True, append_images=[picture().rotate(90)]),
    "WEBP": encoded(picture(), "WEBP"),
    "TIFF": encoded(picture(), "TIFF", compression="tiff_lzw"),
    "BMP": encoded(picture(), "BMP"),
    "JPEG2000": encoded(picture(), "JPEG2000"),
    "16-bit PNG": encoded(Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40)), "PNG"),
}


def check_opened_or_refused(data: bytes) -> None:
    try:
        image = open_image(data)
    except UnreadableImage as error:
        assert str(error)
    else:
        assert image.mode == "RGB"
        assert min(image.size) > 0


@pytest.mark.filterwarnings("ignore")
@given(st.binary(max_size=2000))
@settings(max_examples=examples(100), deadline=None)
def test_random_bytes(data: bytes) -> None:
    check_opened_or_refused(data)


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(sorted(VALID)), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_truncations(kind: str, draw: st.DataObject) -> None:
    valid = VALID[kind]
    check_opened_or_refused(valid[: draw.draw(st.integers(0, len(valid)))])


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(sorted(VALID)), st.data())
@settings(max_examples=examples(400), deadline=None)
def test_flipped_bytes(kind: str, draw: st.DataObject) -> None:
    data = bytearray(VALID[kind])
    # Most faults that matter are in the header, so half of the flips go there.
    places = st.one_of(st.integers(0, 64), st.integers(0, len(data) - 1))
    for place, value in draw.draw(st.lists(st.tuples(places, st.integers(1, 255)), min_size=1, max_size=8)):
        data[place] ^= value
    check_opened_or_refused(bytes(data))


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)


@pytest.fixture
def heic_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """A stand-in for pillow-heif: pictures of the size in the list, whose decoding fails the test."""
    sizes = [(8, 6)]

    class Heif(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self) -> None:
            self._size, self._mode = sizes[0], "RGB"

        def load(self) -> None:
            assert self.size[0] * self.size[1] < MAX_PIXELS, "a bomb is refused by its header"
            self.im = Image.new("RGB", self.size, RED).im

    def register() -> None:
        Image.register_open("HEIF", Heif, lambda start: start[4:12] == b"ftypheic")

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register))
    decode._register_heic.cache_clear()
    yield sizes
    decode._register_heic.cache_clear()
    Image.OPEN.pop("HEIF", None)
    Image.ID.remove("HEIF")


def test_a_heic_image_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    decode._register_heic.cache_clear()
    with pytest.raises(UnreadableImage, match=r"deltaenergy\[heic\]"):
        open_image(HEIC)
    with pytest.raises(InputError, match=r"deltaenergy\[heic\]"):
        decode.use_heic(True)
    decode._register_heic.cache_clear()


def test_heic_registers_itself_and_obeys_the_limit(heic_plugin: list[tuple[int, int]]) -> None:
    assert (pixels(HEIC) == RED).all() and pixels(HEIC).shape == (6, 8, 3)
    heic_plugin[0] = (20_000, 20_000)
    with pytest.raises(UnreadableImage, match="too large"):
        open_image(HEIC)


def test_a_service_reads_no_heic_unless_told_to(heic_plugin: list[tuple[int, int]]) -> None:
    open_image(HEIC)  # even where somebody has registered the format
    decode.use_heic(False)
    try:
        with pytest.raises(UnreadableImage, match="option heic"):
            open_image(HEIC)
    finally:
        decode.use_heic(True)
    open_image(HEIC)
