"""Batches side by side: the same bytes on any number of cores, in order, bounded, and ended at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deltaenergy as de
from deltaenergy.models import encoding
from deltaenergy.models.base import TowerModel
from deltaenergy.models.encoding import side_by_side
from deltaenergy.scale.build import build_store
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import score_images
from deltaenergy.source import as_source
from tests.checkpoints import write_clip
from tests.models.test_encoding import MeanColour, directions, flat_images

BATCH = 4


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """So many threads for torch in this thread, and in those that begin meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("tower", "decode"))]
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before, "threads that begin later have all cores, too"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> TowerModel:
    """Wide enough that products are shared among threads."""
    folder = write_clip(tmp_path_factory.mktemp("clip") / "model", width=192, image_size=64, projection=64)
    return de.load_model(folder)


@pytest.fixture(scope="module")
def noise() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)) for _ in range(6 * BATCH + 1)]


class Recording(MeanColour):
    """Notes for each batch the thread, and how many cores torch has in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append((threading.current_thread().name, torch.get_num_threads()))
        return super().image_features(pixels)


@pytest.mark.parametrize("patches", [False, True])
def test_features_are_the_same_bytes_on_any_number_of_cores(
    clip: TowerModel, noise: list[Image.Image], patches: bool
) -> None:
    pixels = torch.from_numpy(np.stack([clip.preprocessing(image) for image in noise]))
    run = clip.image_and_patch_features if patches else lambda part: (clip.image_features(part),)
    with cores(1), torch.inference_mode():
        alone = [torch.cat(parts).numpy() for parts in zip(*map(run, pixels.split(BATCH)))]
    for count in (1, 2, 3):
        with cores(count):
            found = clip.encode(noise, batch_size=BATCH, patches=patches)
            # The last rows by themselves, too, as in the last shard of a store: fewer batches than cores.
            few = clip.encode(noise[-2 * BATCH + 3 :], batch_size=BATCH, patches=patches)
        np.testing.assert_array_equal(found.features, alone[0])
        if patches:
            np.testing.assert_array_equal(found.patches, alone[1])
        if count == 1:
            first = few
        np.testing.assert_array_equal(few.features, first.features)


def test_a_feature_store_is_the_same_bytes_on_any_number_of_cores(
    clip: TowerModel, noise: list[Image.Image], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number, image in enumerate(noise):
        image.save(tmp_path / "in" / f"{number:02}.png")
    for count in (1, 2, 3):
        with cores(count):
            build_store(clip, tmp_path / "in", tmp_path / f"{count}", batch_size=BATCH, shard_size=3 * BATCH)
    stores = [sorted(path for path in (tmp_path / f"{count}").rglob("*.arrow")) for count in (1, 2, 3)]
    assert len(stores[0]) == 3
    for files in zip(*stores):
        assert len({path.read_bytes() for path in files}) == 1, files[0].name


@pytest.mark.parametrize(("count", "images"), [(1, 9), (2, 3), (3, 3), (2, 40), (3, 40)])
def test_encode_gives_each_batch_one_core(count: int, images: int) -> None:
    model = Recording()
    with cores(count):
        encoded = model.encode(flat_images(images), batch_size=BATCH)
    np.testing.assert_allclose(encoded.features, directions(images), atol=1e-6)
    assert {number for _, number in model.seen} == {1}
    assert all(name.startswith("tower") for name, _ in model.seen)
    assert len(model.seen) == -(-images // BATCH)


@pytest.mark.parametrize(("images", "alone"), [(1, True), (3 * BATCH - 1, True), (3 * BATCH, False)])
def test_a_few_images_get_all_cores_one_batch_after_the_other(images: int, alone: bool) -> None:
    here = threading.current_thread().name
    for run in (MeanColour.encode_images, lambda model, *given, **options: list(model.stream(*given, **options))):
        model = Recording()
        with cores(3):
            run(model, flat_images(images), batch_size=BATCH)
        assert {number for _, number in model.seen} == {3 if alone else 1}
        assert ({name for name, _ in model.seen} == {here}) is alone


def test_other_backends_and_devices_take_one_batch_after_the_other() -> None:
    model = Recording()
    model.backend = "onnx"
    with cores(2):
        model.encode(flat_images(20), batch_size=BATCH)
    assert set(model.seen) == {(threading.current_thread().name, 2)}
    elsewhere = MeanColour()
    elsewhere.device = torch.device("cuda")
    assert not elsewhere.runs_side_by_side


def test_batches_do_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=60)

    class Meeting(MeanColour):
        def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
            meeting.wait()  # breaks if fewer than three come
            return super().image_features(pixels)

    with cores(3):
        found = Meeting().encode(flat_images(6 * BATCH), batch_size=BATCH).features
    np.testing.assert_allclose(found, directions(6 * BATCH), atol=1e-6)


def test_results_come_in_order_whichever_is_done_first() -> None:
    second = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second.wait(60)
        elif number == 1:
            second.set()
        return number

    assert list(side_by_side(work, range(20), 2)) == list(range(20))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_tasks_wait(workers: int) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with contextlib.closing(side_by_side(lambda number: number, tasks(), workers)) as results:
        for done, _ in enumerate(results, start=1):
            assert len(taken) - done <= workers
            if done == 50:
                break
    assert len(taken) <= 50 + workers


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_starts_after_the_end(monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None) -> None:
    """Tasks 1 and 2 run until the pool is shut down, because the caller stopped or task 0 failed; 3 waits, or not."""
    ended = threading.Event()
    started: list[int] = []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            ended.set()
            super().shutdown(wait=wait)

    def work(number: int) -> int:
        started.append(number)
        if number > 0:
            assert ended.wait(60)
        elif error is not None:
            raise error("task 0")
        return number

    monkeypatch.setattr(encoding, "ThreadPoolExecutor", Pool)
    results = side_by_side(work, range(20), 2)
    if error is None:
        assert next(results) == 0
        results.close()
    else:
        with pytest.raises(error, match="task 0"):
            next(results)
    assert set(started) <= {0, 1, 2}
    assert not any(thread.name.startswith("tower") for thread in threading.enumerate())


def test_an_interrupt_of_the_caller_ends_the_threads() -> None:
    def interrupted(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    model = MeanColour()
    with cores(2), pytest.raises(KeyboardInterrupt):
        model.encode(flat_images(40), batch_size=BATCH, progress=interrupted)
    assert len(model.batch_sizes) <= 3
    assert not any(thread.name.startswith("tower") for thread in threading.enumerate())


def test_scores_that_follow_gradients_to_pixels_find_the_same(clip: TowerModel, noise: list[Image.Image]) -> None:
    """ODIN takes the pixels of each batch through the tower again, while the next ones are under way."""
    classifier, odin = de.ZeroShotClassifier(clip, ["cat", "dog", "house"]), make_score("odin")
    # Batch by batch, with room for one image more, so that each is alone.
    parts = [noise[start : start + BATCH] for start in range(0, len(noise), BATCH)]
    one_by_one = [
        score_images(classifier, [odin], as_source(part), batch_size=BATCH + 1).values[odin.spec] for part in parts
    ]
    with cores(2):
        together = score_images(classifier, [odin], as_source(noise), batch_size=BATCH).values[odin.spec]
    np.testing.assert_allclose(together, np.concatenate(one_by_one), rtol=1e-4)
