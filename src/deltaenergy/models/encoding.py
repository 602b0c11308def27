"""From a source to batches of features: read rows of arrays and stores, or encode images.

Threads decode and preprocess ahead while the image tower computes.

On the CPU, batches run in parallel, one per core. Two batches on one core each finish sooner than one after the other
on two cores, because threads of one matrix product wait for each other. And features do not depend on the number of
cores: sharing a product among threads changes how its sums are rounded, so the same images would have other bytes on
another machine.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.core.ahead import Result, Task, map_ahead
from deltaenergy.core.arrays import native_array
from deltaenergy.core.progress import Progress, shown
from deltaenergy.core.text import counted
from deltaenergy.data.decode import UnreadableImage, reading_threads
from deltaenergy.data.items import ImageItem, Unreadable, decoded
from deltaenergy.data.pixel_budget import PIXELS
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError, used_up_its_memory
from deltaenergy.source import Features, Rows, Source, stores_of
from deltaenergy.store.store import Shard, Store

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.base import Model, TowerModel

    # An image with its pixels, or with the reason why it is unreadable.
    Decoded = tuple[ImageItem, npt.NDArray[np.float32] | str]

# Pillow releases the interpreter lock while it decodes and resizes, so threads are enough. More cores have more.
DECODE_THREADS = 4
# Stored features need no computation: larger batches save overhead.
STORED_BATCH = 1024


@dataclass(frozen=True)
class EncodedBatch:
    """Some images with pixels and features, and the unreadable images between them.

    Images from a feature store come without pixels.
    """

    items: list[ImageItem]
    pixels: torch.Tensor | None
    features: torch.Tensor
    patches: torch.Tensor | None
    unreadable: list[Unreadable]


@dataclass(frozen=True)
class EncodedImages:
    """Image features with their images. Row i of `features` is `items[i]`."""

    features: npt.NDArray[np.float32]
    items: list[ImageItem]
    unreadable: list[Unreadable] = field(default_factory=list)
    patches: npt.NDArray[np.float32] | None = None


def stream_batches(
    model: Model,
    source: Source,
    *,
    patches: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
    reproducible: bool = False,
    who: str = "encode",
) -> Iterator[EncodedBatch]:
    """Unit features in input order, encoded now or read from a store of `model`.

    Wrong arguments raise at once; images are listed and read as batches are requested. The last batch also has trailing
    unreadable images. With `reproducible`, even a few images get the same bytes on any number of cores. Errors name
    `who`.
    """
    from deltaenergy.models.base import require_towers

    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size!r}.")
    size = batch_size if patches else max(batch_size, STORED_BATCH)
    for store in stores_of(source):
        store.check_model(model)
    match source:
        case Features():
            batches = _feature_batches(model, source)
        case Store():
            batches = _shard_batches(model, source, source.shards(patches=patches, keep_mapped=False), size)
        case Rows():
            batches = _row_batches(model, source.items, patches, size)
        case _:
            towers = require_towers(model, who)
            _ = PIXELS.limit  # raises at once if it is invalid
            progress = progress or shown("Encoding images")
            if progress is not None and source.count is None:
                source.survey()  # a progress bar needs the total
            batches = _decoded_batches(towers, source, patches, batch_size, reproducible)
    return batches if progress is None else _with_progress(batches, source, progress)


def _with_progress(
    batches: Generator[EncodedBatch, None, None], source: Source, progress: Progress
) -> Iterator[EncodedBatch]:
    """The batches; after each, `progress` is told how many images are done."""
    done = 0
    with contextlib.closing(batches):
        for batch in batches:
            yield batch
            done += len(batch.items) + len(batch.unreadable)
            progress(done, source.count if isinstance(source, ImageStream) else len(source))


def _decoded_batches(
    model: TowerModel, stream: ImageStream, patches: bool, batch_size: int, reproducible: bool
) -> Generator[EncodedBatch, None, None]:
    """Batches of images that are decoded now.

    Images are taken `batch_size` at a time in input order; an unreadable image makes its batch smaller. So a batch has
    the same images wherever the run started, and a long list can be split between any two batches.
    """
    items = iter(stream)
    first = list(islice(items, torch.get_num_threads() * batch_size))
    workers = _workers(model, len(first), batch_size, reproducible)
    # With several batches at a time, whole batches also wait for the tower.
    ahead = 2 * batch_size if workers is None else max(batch_size, DECODE_THREADS)
    encode = functools.partial(encode_batch, model, patches)
    # closing: if the caller stops early or the model fails, the threads end at once.
    with contextlib.closing(decode_ahead(model, chain(first, items), ahead, workers or 1)) as decoded:
        gathered = iter(lambda: list(islice(decoded, batch_size)), [])
        if workers is None:
            yield from map(encode, gathered)
        else:
            with contextlib.closing(side_by_side(encode, gathered, workers)) as batches:
                yield from batches


def _workers(model: TowerModel, images: int, batch_size: int, reproducible: bool) -> int | None:
    """How many batches run at a time, on one core each; None for one after the other, on all cores.

    `images` is their number, if it is less than a batch for every core.

    With fewer batches than cores, some cores would be idle. Then a batch gets all cores, unless reproducible bytes
    matter more than time.
    """
    cores = torch.get_num_threads()
    if not model.runs_side_by_side or (images < cores * batch_size and not reproducible):
        return None
    return min(cores, -(-images // batch_size)) or None


def collect(batches: Iterable[EncodedBatch], feature_dim: int) -> EncodedImages:
    """All batches as one `EncodedImages` on the CPU."""
    features, patches = [np.zeros((0, feature_dim), np.float32)], []
    items: list[ImageItem] = []
    unreadable: list[Unreadable] = []
    for batch in batches:
        features.append(batch.features.float().cpu().numpy())
        if batch.patches is not None:
            patches.append(batch.patches.float().cpu().numpy())
        items += batch.items
        unreadable += batch.unreadable
    return EncodedImages(np.concatenate(features), items, unreadable, np.concatenate(patches) if patches else None)


def _feature_batches(model: Model, features: Features) -> Generator[EncodedBatch, None, None]:
    for start in range(0, len(features), STORED_BATCH):
        rows = range(start, min(start + STORED_BATCH, len(features)))
        block = check_features(features.features[start : rows.stop], model, rows=rows)
        yield EncodedBatch(list(features.each(rows)), None, block.to(model.device), None, [])


def check_features(
    features: Any, model: Model, what: str = "features", rows: Sequence[int] | None = None
) -> torch.Tensor:
    """Features as float32, or an error that says what is wrong with them.

    Errors call them `what`; `rows` are the user's row numbers if only some are passed.
    """
    if isinstance(features, np.ndarray):
        features = native_array(features)
    tensor = torch.as_tensor(features).detach().float()
    if tensor.shape[1] != model.feature_dim:
        raise InputError(
            f"{what} have {tensor.shape[1]} columns, but model {model.name!r} gives {model.feature_dim}. "
            "Were they computed with another model?"
        )
    bad = ~torch.isfinite(tensor).all(dim=1)
    if bad.any():
        found = torch.nonzero(bad).flatten().tolist()
        first = found[0] if rows is None else rows[found[0]]
        raise InputError(f"{what} have NaN or infinity in {counted(len(found), 'row')}, first in row {first}.")
    norms = tensor.norm(dim=1)
    if len(norms) and (norms - 1).abs().max() > 1e-2:
        worst = int((norms - 1).abs().argmax())
        row = worst if rows is None else rows[worst]
        raise InputError(
            f"{what} must have unit length, but row {row} has length {norms[worst]:.3g}. Divide each row by its norm."
        )
    return tensor


def _shard_batches(
    model: Model, store: Store, shards: Iterator[Shard], size: int
) -> Generator[EncodedBatch, None, None]:
    """A store in order, one shard in memory at a time."""
    for shard in shards:
        items = store.items_at(shard.rows, shard.index)
        for start in range(0, max(len(items), 1), size):
            rows = slice(start, start + size)
            features = torch.from_numpy(shard.features[rows].copy()).to(model.device)
            found = None if shard.patches is None else torch.from_numpy(shard.patches[rows].copy()).to(model.device)
            yield EncodedBatch(items[rows], None, features, found, [] if start else shard.unreadable)


def _row_batches(model: Model, items: list[ImageItem], patches: bool, size: int) -> Generator[EncodedBatch, None, None]:
    """Some rows in the order given, as many at a time as follow each other in one store or array."""
    for _, run in groupby(items, key=lambda item: id(item.row and item.row.of)):
        of_one = list(run)
        for start in range(0, len(of_one), size):
            yield _row_batch(model, of_one[start : start + size], patches)


def _row_batch(model: Model, items: list[ImageItem], patches: bool) -> EncodedBatch:
    unreadable = [Unreadable(item.id, item.problem) for item in items if item.problem is not None]
    present = [(item, item.row) for item in items if item.row is not None and item.problem is None]
    rows = [row.number for _, row in present]
    found = None
    match [row.of for _, row in present][:1]:
        case [Store() as store]:
            # Memory maps are read-only, which tensors do not support: on the CPU, they are copied.
            features = torch.tensor(store.features(rows), device=model.device)
            found = torch.tensor(store.patches(rows), device=model.device) if patches else None
        case [Features() as array]:
            features = check_features(array.features[rows], model, rows=rows).to(model.device)
        case _:
            features = torch.zeros(0, model.feature_dim, device=model.device)
    return EncodedBatch([item for item, _ in present], None, features, found, unreadable)


def decode_ahead(
    model: TowerModel, items: Iterable[ImageItem], ahead: int, cores: int = 1
) -> Generator[Decoded, None, None]:
    """Each item with its pixels, or with the reason why it is unreadable; at most `ahead` images wait in memory.

    They wait at the model's size. The pixel budget limits how many are decoded at a time, at their own size.
    """

    def read(item: ImageItem) -> Decoded:
        try:
            with decoded(item) as image:
                return item, model.preprocessing(image)
        except UnreadableImage as error:
            return item, str(error)
        except MemoryError:
            if used_up_its_memory():
                raise
            return item, "not enough memory to resize it"

    coming = iter(items)
    soon = list(islice(coming, ahead))
    threads = reading_threads((item.source for item in soon), max(DECODE_THREADS, cores))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    yield from map_ahead(pool, read, chain(soon, coming), max(ahead, threads) - 1)


def side_by_side(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Generator[Result, None, None]:
    """`work(task)` for each task in order, at most `workers` at a time, each on one core.

    At most one task waits in addition to those that run and those whose results were not taken yet, `workers + 1` in
    all. If it is closed, a task fails, or on an interrupt, no task starts any more, and running tasks are awaited.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="tower")
    _use_one_core_each(pool, workers)
    yield from map_ahead(pool, work, tasks, workers)


def _use_one_core_each(pool: ThreadPoolExecutor, workers: int) -> None:
    """Start all threads of the pool, and have torch work in them on one core."""
    threads = torch.get_num_threads()
    all_there = threading.Barrier(workers)

    def begin() -> None:
        torch.get_num_threads()  # a thread's first use of torch sets its number; only then does ours last
        torch.set_num_threads(1)
        all_there.wait()

    for started in [pool.submit(begin) for _ in range(workers)]:
        started.result()
    # The number applies to this thread and to every thread that starts later: for those it is restored.
    torch.set_num_threads(threads)


def encode_batch(model: TowerModel, patches: bool, decoded: Sequence[Decoded]) -> EncodedBatch:
    """One pass of the image tower for decoded images, in this thread."""
    pending = [(item, pixels) for item, pixels in decoded if not isinstance(pixels, str)]
    unreadable = [Unreadable(item.id, problem) for item, problem in decoded if isinstance(problem, str)]
    items = [item for item, _ in pending]
    side = model.preprocessing.crop
    array = np.stack([pixels for _, pixels in pending]) if pending else np.zeros((0, 3, side, side), np.float32)
    pixels = torch.from_numpy(array).to(model.device)
    if not pending:
        empty = torch.zeros(0, model.feature_dim, device=model.device)
        return EncodedBatch(items, pixels, empty, None, unreadable)
    with torch.inference_mode():
        if patches:
            features, patch_features = model.image_and_patch_features(pixels)
            return EncodedBatch(items, pixels, features, patch_features, unreadable)
        return EncodedBatch(items, pixels, model.image_features(pixels), None, unreadable)
