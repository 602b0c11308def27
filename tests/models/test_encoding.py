"""The way from images to features, with a model whose features are known without weights."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError, UnreadableImagesError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.source import image_stream


class MeanColour(TowerModel):
    """The feature of an image is the direction of (mean red, mean green, mean blue)."""

    def __init__(self, preprocessing: Preprocessing | None = None) -> None:
        self.name, self.fingerprint, self.feature_dim, self.logit_scale = "mean colour", "0", 3, 100.0
        self.preprocessing = preprocessing or Preprocessing(8, 8, mean=(0, 0, 0), std=(1, 1, 1))
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.batch_sizes: list[int] = []

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        self.batch_sizes.append(len(pixels))
        return torch.nn.functional.normalize(pixels.mean(dim=(2, 3)), dim=1)

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        patches = pixels.flatten(2).transpose(1, 2)
        return self.image_features(pixels), torch.nn.functional.normalize(patches, dim=2)


def colours(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(1, 256, (count, 3))


def flat_images(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (20, 12), tuple(int(part) for part in colour)) for colour in colours(count)]


def directions(count: int) -> np.ndarray:
    values = colours(count).astype(np.float64)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def decode_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("decode")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert decode_threads() == []


@pytest.mark.parametrize("count", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_row_i_is_image_i(count: int, batch_size: int) -> None:
    model = MeanColour()
    features = model.encode_images(flat_images(count), batch_size=batch_size)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, directions(count), atol=1e-6)
    expected = [min(batch_size, count - start) for start in range(0, count, batch_size)]
    assert sorted(model.batch_sizes) == sorted(expected), "in any order where several run at a time"


def test_order_is_kept_when_the_first_image_takes_longest() -> None:
    def slow(seconds: float, image: Image.Image) -> Any:
        def read() -> Image.Image:
            time.sleep(seconds)
            return image

        return read

    images = flat_images(12)
    items = [ImageItem(f"{i}", slow(0.02 * (12 - i) / 12, image)) for i, image in enumerate(images)]
    encoded = MeanColour().encode(items, batch_size=5)
    assert [item.id for item in encoded.items] == [f"{i}" for i in range(12)]
    np.testing.assert_allclose(encoded.features, directions(12), atol=1e-6)


def test_features_do_not_depend_on_the_batch() -> None:
    images = flat_images(33)
    together = MeanColour().encode_images(images, batch_size=33)
    for batch_size in (1, 2, 32):
        np.testing.assert_allclose(MeanColour().encode_images(images, batch_size=batch_size), together, atol=1e-7)
    np.testing.assert_allclose(MeanColour().encode_images(images[::-1])[::-1], together, atol=1e-7)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_unreadable_images_are_listed_and_skipped(tmp_path: Path, batch_size: int) -> None:
    names = [f"{i}.png" for i in range(8)]
    for name, image in zip(names, flat_images(8)):
        image.save(tmp_path / name)
    broken = {0: "empty", 3: "text", 4: "not exist", 7: "empty"}
    for i in (0, 7):
        (tmp_path / names[i]).write_bytes(b"")
    (tmp_path / names[3]).write_text("no image")
    (tmp_path / names[4]).unlink()
    encoded = MeanColour().encode([tmp_path / name for name in names], batch_size=batch_size)
    readable = [i for i in range(8) if i not in broken]
    assert [Path(item.id).name for item in encoded.items] == [names[i] for i in readable]
    np.testing.assert_allclose(encoded.features, directions(8)[readable], atol=1e-6)
    assert [Path(skipped.id).name for skipped in encoded.unreadable] == [names[i] for i in broken]
    assert all(part in skipped.reason for part, skipped in zip(broken.values(), encoded.unreadable))


def test_encode_images_needs_every_image(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImagesError, match=r"gone\.png"):
        MeanColour().encode_images([*flat_images(2), tmp_path / "gone.png"])


@pytest.mark.parametrize("batch_size", [1, 4])
def test_nothing_but_unreadable_images(batch_size: int) -> None:
    calls: list[tuple[int, int | None]] = []
    encoded = MeanColour().encode([b""] * 6, batch_size=batch_size, progress=lambda *call: calls.append(call))
    assert encoded.features.shape == (0, 3)
    assert encoded.items == []
    assert len(encoded.unreadable) == 6
    assert calls[-1] == (6, 6)


def test_no_images() -> None:
    calls: list[tuple[int, int | None]] = []
    encoded = MeanColour().encode([], progress=lambda *call: calls.append(call))
    assert encoded.features.shape == (0, 3)
    assert encoded.items == encoded.unreadable == calls == []
    assert MeanColour().encode_images([]).shape == (0, 3)


def test_progress_counts_unreadable_images_too() -> None:
    calls: list[tuple[int, int | None]] = []
    images = [*flat_images(5), b"", b"", *flat_images(4)]
    MeanColour().encode(images, batch_size=4, progress=lambda *call: calls.append(call))
    assert calls == [(4, 11), (8, 11), (11, 11)]


def test_progress_tells_the_total_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path\n" + "".join(f"{row}.png\n" for row in range(7)))
    calls: list[tuple[int, int | None]] = []
    MeanColour().encode(tmp_path / "t.csv", batch_size=4, progress=lambda *call: calls.append(call))
    assert calls == [(4, 7), (7, 7)]


def test_images_are_listed_as_batches_are_asked_for() -> None:
    listed: list[int] = []
    picture = flat_images(1)[0]

    def listing() -> Iterator[ImageItem]:
        for number in range(100_000):
            listed.append(number)
            yield ImageItem(f"{number}", picture)

    batches = MeanColour().stream(ImageStream(listing), batch_size=8)
    assert len(listed) == 1
    for _ in range(20):
        assert len(next(batches).items) == 8
    # Those of 20 batches, what is ahead of them, and one block in which ids are looked up.
    assert len(listed) < 8 * 20 + 8 * (3 + 2 * torch.get_num_threads()) + 1024
    batches.close()  # type: ignore[attr-defined]


def test_a_stream_can_be_encoded_twice(tmp_path: Path) -> None:
    for number, picture in enumerate(flat_images(9)):
        picture.save(tmp_path / f"{number}.png")
    stream = image_stream(tmp_path)
    for _ in range(2):
        encoded = MeanColour().encode(stream, batch_size=4)
        np.testing.assert_allclose(encoded.features, directions(9), atol=1e-6)


def test_patches() -> None:
    images = flat_images(5)
    encoded = MeanColour().encode(images, patches=True, batch_size=2)
    assert encoded.patches is not None
    assert encoded.patches.shape == (5, 64, 3)
    np.testing.assert_allclose(encoded.patches, directions(5)[:, None].repeat(64, axis=1), atol=1e-6)
    assert MeanColour().encode(images).patches is None


def test_images_are_decoded_ahead_but_not_all_at_once() -> None:
    read: list[int] = []
    image = flat_images(1)[0]
    items = [ImageItem(f"{i}", lambda i=i: (read.append(i), image)[1]) for i in range(60)]
    batches = MeanColour().stream(items, batch_size=5)
    assert read == [], "nothing is read before the first batch is asked for"
    next(batches)
    # What is being decoded or waits for it, what waits for the tower, and one batch for each core.
    assert 5 <= len(read) <= 5 * (2 + torch.get_num_threads())
    batches.close()  # type: ignore[attr-defined]


def test_closing_early_leaves_no_thread() -> None:
    batches = MeanColour().stream(flat_images(200), batch_size=4)
    next(batches)
    assert decode_threads()
    batches.close()  # type: ignore[attr-defined]
    assert decode_threads() == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_of_the_model_leaves_no_thread(error: type[BaseException]) -> None:
    class Failing(MeanColour):
        def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
            raise error("out of memory")

    # The caught error holds the frames, and they must not hold the threads.
    with pytest.raises(error) as caught:
        Failing().encode(flat_images(100), batch_size=4)
    assert decode_threads() == []
    assert caught.value is not None


def test_interrupt_while_waiting_for_a_worker() -> None:
    def interrupted(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MeanColour().encode(flat_images(100), batch_size=4, progress=interrupted)
    assert decode_threads() == []


def test_a_fault_of_the_program_is_not_blamed_on_the_image() -> None:
    class Broken(Preprocessing):
        def frame(self, image: Image.Image) -> Image.Image:
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        MeanColour(Broken(8, 8)).encode(flat_images(3))


def test_no_memory_for_one_image_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hungry(Preprocessing):
        def frame(self, image: Image.Image) -> Image.Image:
            if image.width > 20:
                raise MemoryError
            return super().frame(image)

    encoded = MeanColour(Hungry(8, 8)).encode([*flat_images(2), Image.new("RGB", (30, 30))])
    assert len(encoded.items) == 2
    assert [skipped.reason for skipped in encoded.unreadable] == ["not enough memory to resize it"]
    monkeypatch.setattr("deltaenergy.models.encoding.used_up_its_memory", lambda: True)
    with pytest.raises(MemoryError):
        MeanColour(Hungry(8, 8)).encode([Image.new("RGB", (30, 30))])


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="batch_size"):
        MeanColour().stream(flat_images(1), batch_size=0)
    with pytest.raises(InputError, match="does not exist"):
        MeanColour().stream("no/such/folder")


def test_extremely_long_picture() -> None:
    """Without a limit, this strip would become 8 × 800,000 pixels before the crop."""
    strip = np.zeros((1, 100_000, 3), np.uint8)
    strip[:, 49_000:51_000] = 200
    for pixels in (strip, strip.transpose(1, 0, 2)):
        framed = Preprocessing(8, 8).frame(Image.fromarray(np.ascontiguousarray(pixels)))
        assert framed.size == (8, 8)
        assert (np.asarray(framed) == 200).all()


@pytest.mark.parametrize(
    ("size", "digest"),
    [((10, 60), "47d79ab6bdd59aee"), ((60, 10), "617f046555de8297"), ((30, 40), "010347febc664e9b")],
)
def test_squashed_images_have_the_same_bytes_with_every_pillow(size: tuple[int, int], digest: str) -> None:
    """The digests are of what `Image.resize` gives with Pillow 10.4, 11.3 and 12.0; 13.0 begins with the height."""
    width, height = size
    image = Image.fromarray((np.arange(width * height * 3).reshape(height, width, 3) * 97 % 256).astype(np.uint8))
    framed = np.asarray(Preprocessing((24, 24), 24).frame(image))
    assert hashlib.sha256(framed.tobytes()).hexdigest()[:16] == digest
