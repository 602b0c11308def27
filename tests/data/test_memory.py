"""Memory is bounded: decoded pixels have a budget, huge JPEG files are decoded smaller, conversions go in strips."""

from __future__ import annotations

import functools
import io
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deltaenergy import TowerModel
from deltaenergy.data.decode import DecodeLimits, open_image, opened, strips
from deltaenergy.data.items import ImageItem, hash_content
from deltaenergy.data.pixel_budget import DEFAULT_PIXELS, PixelBudget
from deltaenergy.errors import InputError
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.tuning.views import view_pixels

# The budget.


class Held:
    """How many pixels are out at the moment, and whether there were ever too many."""

    def __init__(self, limit: int) -> None:
        self.limit, self.sizes, self.worst = limit, [], 0
        self.lock = threading.Lock()

    def take(self, pixels: int) -> None:
        with self.lock:
            self.sizes.append(pixels)
            assert len(self.sizes) == 1 or sum(self.sizes) <= self.limit
            self.worst = max(self.worst, len(self.sizes))

    def give(self, pixels: int) -> None:
        with self.lock:
            self.sizes.remove(pixels)


@settings(max_examples=40)
@given(st.integers(1, 100), st.lists(st.integers(1, 150), min_size=1, max_size=30), st.integers(1, 8))
def test_never_more_than_the_budget_and_never_stuck(limit: int, pictures: list[int], threads: int) -> None:
    budget, held = PixelBudget(limit), Held(limit)

    def work(pixels: int) -> None:
        with budget.hold(pixels):
            held.take(pixels)
            time.sleep(0)
            held.give(pixels)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, pictures))
    assert held.sizes == []


def test_small_pictures_are_decoded_side_by_side() -> None:
    budget, held = PixelBudget(100), Held(100)
    together = threading.Barrier(4, timeout=300)

    def work(pixels: int) -> None:
        with budget.hold(pixels):
            held.take(pixels)
            together.wait()
            held.give(pixels)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [25] * 4))
    assert held.worst == 4


def test_a_large_picture_is_not_passed_over() -> None:
    """Small ones that come later wait behind it, or a stream of them would keep it waiting for ever."""
    budget, order = PixelBudget(10), []
    first, waiting = threading.Event(), threading.Event()

    def work(name: str, pixels: int) -> None:
        with budget.hold(pixels):
            order.append(name)

    def hold_first() -> None:
        with budget.hold(5):
            first.set()
            waiting.wait(300)

    threads = [threading.Thread(target=hold_first)]
    threads[0].start()
    first.wait(300)
    for position, (name, pixels) in enumerate([("large", 50), ("small", 1), ("tiny", 1)], start=1):
        threads.append(threading.Thread(target=work, args=(name, pixels)))
        threads[-1].start()
        while len(budget._queue) < position:
            time.sleep(0.001)
    waiting.set()
    for thread in threads:
        thread.join(300)
    assert order[0] == "large"
    assert sorted(order[1:]) == ["small", "tiny"]


def test_who_holds_a_picture_may_open_another() -> None:
    budget, other = PixelBudget(10), threading.Event()

    def work() -> None:
        with budget.hold(1):
            other.set()

    with budget.hold(10), budget.hold(10):
        waiting = threading.Thread(target=work)
        waiting.start()
        while not budget._queue:
            time.sleep(0.001)
        assert not other.is_set(), "another thread waits for both"
    waiting.join(300)
    assert other.is_set()


def test_pixels_come_back_after_an_error() -> None:
    budget = PixelBudget(10)
    for _ in range(3):
        with pytest.raises(KeyError), budget.hold(10):
            raise KeyError
    assert budget._held == 0


def test_a_thread_that_gives_up_waiting_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = PixelBudget(10)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), budget.hold(1):
            pass
    with budget.hold(1):
        pass


def test_the_environment_sets_it(monkeypatch: pytest.MonkeyPatch, tiny_clip: TowerModel, photos: Path) -> None:
    assert PixelBudget().limit == DEFAULT_PIXELS
    monkeypatch.setenv("DELTAENERGY_PIXEL_BUDGET", " 1234 ")
    assert PixelBudget().limit == 1234
    for wrong in ("0", "-1", "1e8", "many", "1.5", "9" * 5000, "²"):
        monkeypatch.setenv("DELTAENERGY_PIXEL_BUDGET", wrong)
        with pytest.raises(InputError, match="DELTAENERGY_PIXEL_BUDGET is"):
            tiny_clip.encode(photos)
        with pytest.raises(InputError, match="DELTAENERGY_PIXEL_BUDGET is"):
            open_image(Image.new("RGB", (2, 2)))


@pytest.mark.parametrize(("limit", "together"), [(40 * 48, 1), (2 * 40 * 48, 2), (None, 4)])
@pytest.mark.parametrize("reader", ["encode", "views"])
def test_the_readers_keep_to_it(
    tiny_clip: TowerModel,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    together: int,
    reader: str,
) -> None:
    """Pictures are 48 × 40: `together` of them fit in the budget, and there are four threads."""
    if limit is not None:
        monkeypatch.setenv("DELTAENERGY_PIXEL_BUDGET", str(limit))
    lock, now, most, two = threading.Lock(), 0, 0, threading.Event()

    def slow(self: Image.Image, *arguments: object, **options: object) -> Image.Image:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now > 1:
                two.set()
        if limit is None:
            two.wait(300)  # there is room for another
        else:
            time.sleep(0.02)
        with lock:
            now -= 1
        return resize(self, *arguments, **options)  # type: ignore[arg-type]

    resize = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", slow)
    if reader == "encode":
        assert len(tiny_clip.encode(photos).items) == 8
    else:
        items = [ImageItem(path.name, path) for path in sorted(photos.rglob("*.png"))]
        assert len(list(view_pixels(tiny_clip, items, [(1, 0, i) for i in range(8)]))) == 8
    assert most <= together
    if limit is None:
        assert most > 1, "four threads should work side by side"


# Huge JPEG files.


@functools.cache
def photograph() -> Image.Image:
    """Shapes at every scale, and noise."""
    width, height = 1200, 1050
    y, x = np.mgrid[:height, :width].astype(np.float32)
    layers = [127 + 60 * np.sin(x / 7) * np.sin(y / 5) + 60 * np.sin((x + y) / 211), 255 * x / width, 255 * y / height]
    noise = 12 * np.random.default_rng(0).standard_normal((height, width, 3), dtype=np.float32)
    return Image.fromarray(np.clip(np.stack(layers, -1) + noise, 0, 255).astype(np.uint8))


SIZE = (4200, 4100)


def large() -> Image.Image:
    """Made anew for each use: it takes 70 MB."""
    image, tile = Image.new("RGB", SIZE), photograph()
    for left, top in itertools.product(range(0, SIZE[0], tile.width), range(0, SIZE[1], tile.height)):
        image.paste(tile, (left, top))
    return image


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


# As if 10 million pixels were huge; those of the tests have 17.
LOW = DecodeLimits(draft_above=10_000_000)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 50}, {"subsampling": 0}])
def test_a_huge_jpeg_is_decoded_smaller_and_looks_the_same(options: dict[str, object]) -> None:
    data = encoded(large(), **options)
    small = open_image(data, LOW)
    assert small.size == (2100, 2050)
    full = Image.open(io.BytesIO(data))
    seen, expected = (np.asarray(Preprocessing().frame(image)).astype(int) for image in (small, full))
    assert np.abs(seen - expected).max() <= 3
    assert np.abs(seen - expected).mean() < 0.25


def same(found: Image.Image, expected: Image.Image) -> bool:
    """Compared in strips: as arrays, both would take 50 MB more."""
    parts = ((np.asarray(part), np.asarray(expected.crop(box).convert("RGB"))) for box, part in strips(found, 1 << 20))
    return found.size == expected.size and all(np.array_equal(*pair) for pair in parts)


def test_other_pictures_are_decoded_in_full() -> None:
    grey = large().convert("L")  # a quarter of the memory
    assert same(open_image(encoded(grey, "BMP"), LOW), grey)
    # Not above the limit, and too narrow to be made smaller.
    data, limits = encoded(grey), DecodeLimits(draft_above=SIZE[0] * SIZE[1])
    assert same(open_image(data, limits), Image.open(io.BytesIO(data)))
    data = encoded(large().crop((0, 0, 4000, 2600)))
    assert same(open_image(data, LOW), Image.open(io.BytesIO(data)))


def test_huge_and_rotated_or_in_pairs() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(encoded(large(), exif=exif), LOW).size == (2050, 2100)
    pair = encoded(large(), "MPO", save_all=True, append_images=[photograph()])
    assert open_image(pair, LOW).size == (2100, 2050)
    assert open_image(encoded(large().convert("L")), LOW).mode == "RGB"
    assert open_image(encoded(large().convert("CMYK")), LOW).size == (2100, 2050)


def test_what_is_taken_from_the_budget() -> None:
    budget = PixelBudget(1)
    limits = replace(LOW, budget=budget)
    for data, pixels in (
        (encoded(large()), 2100 * 2050),
        (encoded(large(), progressive=True), SIZE[0] * SIZE[1]),  # held whole while it is decoded
        (encoded(photograph(), "PNG"), 1200 * 1050),
    ):
        with opened(data, limits):
            assert budget._held == pixels
        assert budget._held == 0


# Strips.


@pytest.mark.parametrize("rows", [1, 3, 7, 1000])
def test_conversions_do_not_depend_on_the_strips(rows: int) -> None:
    rng = np.random.default_rng(0)
    width, height = 37, 29
    limits = DecodeLimits(strip_pixels=rows * width)
    colours = Image.fromarray(rng.integers(0, 256, (height, width, 4), dtype=np.uint8))
    palette = colours.convert("RGB").quantize(16)
    palette.info["transparency"] = bytes(int(v) for v in rng.integers(0, 256, 16))
    grey = colours.convert("L")
    grey.info["transparency"] = 77
    keyed = colours.convert("RGB")
    keyed.info["transparency"] = keyed.getpixel((5, 5))
    for image in (colours, palette, grey, keyed, colours.convert("LA"), colours.convert("RGBa")):
        rgba = image.convert("RGBA")
        expected = Image.alpha_composite(Image.new("RGBA", image.size, "white"), rgba).convert("RGB")
        np.testing.assert_array_equal(np.asarray(open_image(image, limits)), np.asarray(expected))
    for values in (
        rng.integers(0, 65536, (height, width)).astype(np.uint16),
        rng.integers(-500, 70_000, (height, width)).astype(np.int32),
        rng.normal(size=(height, width)).astype(np.float32),
    ):
        exact = values.astype(np.float64)
        low, high = (0, 65535) if values.dtype == np.uint16 else (exact.min(), exact.max())
        expected_grey = np.rint((exact - low) * (255 / (high - low)))
        np.testing.assert_array_equal(np.asarray(open_image(Image.fromarray(values), limits))[..., 0], expected_grey)


def test_pictures_with_equal_numbers_and_other_palettes_differ() -> None:
    """A solid red and a solid blue picture with a palette each have the same index everywhere."""
    red, blue = (Image.new("RGB", (8, 8), colour).quantize(2) for colour in ("red", "blue"))
    assert red.tobytes() == blue.tobytes()
    contents = [hash_content(ImageItem("x", image))[0] for image in (red, blue, red.convert("RGB"))]
    assert contents[0] != contents[1]
    assert contents[0] == contents[2]
