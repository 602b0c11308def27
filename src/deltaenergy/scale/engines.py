"""Classes for engines that map batches of columns, such as Ray Data: `BatchScorer` gives verdicts, `Encoder` features.

    scored = de.scale.read_store("photos.store").map_batches(
        de.scale.BatchScorer, fn_constructor_args=["detector"], concurrency=2
    )

A batch is a dictionary of arrays, an Arrow table or a pandas data frame; the answer is an Arrow table. Only
`read_store` needs Ray: `BatchScorer("detector")({"id": ids, "features": features})` does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.items import ImageItem, StoredRow
from deltaenergy.detector.verdict import verdict_schema
from deltaenergy.errors import InputError
from deltaenergy.scoring import stream_scores
from deltaenergy.source import Features, as_source
from deltaenergy.store.folder import open_folder
from deltaenergy.store.plan import present
from deltaenergy.store.shard import ShardRecord, read_arrays, with_arrays

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.models.base import Model

# A task of Ray takes some milliseconds to start: beyond this many, each has several shards.
MOST_TASKS = 10_000


class BatchScorer:
    """Scores batches with one detector, which is loaded once. A batch has the column `id` or `path`, and one of these:

    - `features`: unit features, a list of equal length in each row, as `read_store` gives them;
    - `bytes`: encoded images, as `ray.data.read_binary_files(…, include_paths=True)` gives them.

    Each row gives one with the columns of `deltaenergy score --out` and `error`: why the image could not be read, and
    then the others are empty. Verdicts of features are those of `deltaenergy score`, whatever the batches.

    Args:
        detector: folder that `calibrate`, `tune` or `Detector.save` wrote. Every machine must see it.
        device: where the model runs.
        batch_size: images per pass of the image encoder.
    """

    def __init__(self, detector: str | Path, *, device: str = "auto", batch_size: int = 32) -> None:
        from deltaenergy.detector.detector import Detector

        self.detector = Detector.load(os.fspath(detector), device=device).prepare()
        if self.detector.calibration is None:
            raise InputError(f"{detector} has no threshold, and so no verdicts: calibrate it first.")
        self._batch_size = batch_size

    def __call__(self, batch: Any) -> pa.Table:
        """The verdicts of one batch."""
        import pyarrow as pa

        table, detector = _as_table(batch), self.detector
        schema = verdict_schema().append(pa.field("error", pa.string()))
        if not len(table):
            return schema.empty_table()
        ids, items = _ids(table), as_source(_items(table, detector.classifier.model))
        scored = stream_scores(
            detector.classifier, [detector.scorer], items, batch_size=self._batch_size, progress=_silent
        )
        judged = pa.concat_tables(with_errors(detector.judge(some)) for some in scored)
        # Its rows are called by their numbers in the batch.
        numbers = np.array([int(number) for number in judged["path"].to_pylist()], np.int64)
        order = np.argsort(numbers, kind="stable")
        return judged.take(order).set_column(0, "path", pa.array([ids[row] for row in numbers[order]], pa.string()))


class Encoder:
    """Encodes batches of images with one model, which is loaded once.

    A batch has the columns `bytes`, and `id` or `path`, as `ray.data.read_binary_files(…, include_paths=True)` gives
    them. It comes back without `bytes`, with `features` (null where an image could not be read) and `error`.

    Args:
        model: name or folder, as `load_model` takes it.
        device: where the model runs.
        batch_size: images per pass of the image encoder.
    """

    def __init__(self, model: str | Path, *, device: str = "auto", batch_size: int = 32) -> None:
        from deltaenergy.models.loading.load import load_model

        self.model = load_model(os.fspath(model), device=device)
        self._batch_size = batch_size

    def __call__(self, batch: Any) -> pa.Table:
        """The batch with features."""
        import pyarrow as pa

        table = _as_table(batch)
        encoded = self.model.encode(_images(table), batch_size=self._batch_size, progress=_silent)
        errors = {int(image.id): image.reason for image in encoded.unreadable}
        features = np.zeros((len(table), self.model.feature_dim), np.float32)
        features[[int(item.id) for item in encoded.items]] = encoded.features
        reasons = pa.array([errors.get(row) for row in range(len(table))], pa.string())
        kept = table.drop_columns([name for name in ("bytes", "error", "features") if name in table.column_names])
        return with_arrays(kept.append_column("error", reasons), {"features": features})


def read_store(path: str | Path, *, patches: bool = False) -> Any:
    """A feature store as a Ray dataset: id, label, domain, content, stamp, error and features, a row per image.

    Shards are read as they are needed. An image that could not be read has an error, and null for features.
    """
    import ray

    folder = open_folder(path)
    records = [{"record": json.dumps(asdict(record))} for record in present(folder)[0].shards]
    shards = ray.data.from_items(records, override_num_blocks=min(len(records), MOST_TASKS) or 1)
    # It takes no CPU, or it would wait forever for one if actors hold them all.
    return shards.map_batches(_read_shard, fn_args=[folder.address, patches], batch_size=1, num_cpus=0)


def _read_shard(batch: Mapping[str, Any], address: str, patches: bool) -> pa.Table:
    (record,) = batch["record"]
    index, arrays = read_arrays(open_folder(address), ShardRecord(**json.loads(record)))
    kinds = ("features", "patches") if patches else ("features",)
    return with_arrays(index, {kind: arrays[kind].astype(np.float32) for kind in kinds})


def with_errors(verdicts: Verdicts) -> pa.Table:
    """A row for each image that was read, then one for each that was not: with its path and error, and nothing else."""
    import pyarrow as pa

    table = verdicts.to_table()
    judged = table.append_column("error", pa.nulls(len(table), pa.string()))
    failed = [{"path": image.id, "error": image.reason} for image in verdicts.unreadable]
    return pa.concat_tables([judged, pa.Table.from_pylist(failed, judged.schema)])


def _as_table(batch: Any) -> pa.Table:
    import pyarrow as pa

    try:
        if isinstance(batch, Mapping):
            columns = {
                name: list(column) if getattr(column, "ndim", 1) > 1 else pa.array(column, from_pandas=True)
                for name, column in batch.items()
            }
            return pa.table(columns)
        if hasattr(batch, "to_dict"):  # a pandas data frame
            return pa.Table.from_pandas(batch, preserve_index=False)
        return pa.table(batch)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"A batch of type {type(batch).__name__} cannot be used: {error}. Give a dictionary of arrays, an Arrow "
            "table or a pandas data frame."
        ) from None


def _ids(table: pa.Table) -> list[str]:
    name = next((name for name in ("id", "path") if name in table.column_names), None)
    if name is None:
        raise InputError(f"A batch needs the column id or path. It has {', '.join(table.column_names)}.")
    ids: list[str] = table[name].to_pylist()
    for row, value in enumerate(ids):
        if not isinstance(value, str):
            raise InputError(f"The column {name!r} has {value!r} in row {row}, which is not a text.")
    return ids


def _items(table: pa.Table, model: Model) -> list[ImageItem]:
    """The rows that have features, or else the images in `bytes`."""
    if "features" not in table.column_names:
        return _images(table)
    rows, numbers = _numbers(table["features"])
    features = np.zeros((len(table), numbers.shape[1] if rows else model.feature_dim), np.float32)
    features[rows] = numbers
    array, errors = Features(features), _errors(table)
    for row in set(range(len(table))).difference(rows):
        errors[row] = errors[row] or "it has no features"
    return [ImageItem(str(row), None, problem=error, row=StoredRow(array, row)) for row, error in enumerate(errors)]


def _images(table: pa.Table) -> list[ImageItem]:
    """The images in `bytes`, each called by its row."""
    if "bytes" not in table.column_names:
        raise InputError(f"A batch needs the column features or bytes. It has {', '.join(table.column_names)}.")
    rows = enumerate(zip(table["bytes"].to_pylist(), _errors(table)))
    return [
        ImageItem(str(row), image, problem=error or (None if isinstance(image, bytes) else "it has no bytes"))
        for row, (image, error) in rows
    ]


def _errors(table: pa.Table) -> list[str | None]:
    """Why each image could not be read, as far as an earlier step found out."""
    return list(table["error"].to_pylist()) if "error" in table.column_names else [None] * len(table)


def _numbers(column: pa.ChunkedArray) -> tuple[list[int], npt.NDArray[Any]]:
    """A column of equally long lists of numbers: which rows have one, and these as an array (n, D)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks()
    if isinstance(array, pa.ExtensionArray):  # tensors of Arrow's or of Ray's
        array = array.storage
    rows, lists = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist(), array.drop_null()
    try:
        if len(pc.list_value_length(lists).unique()) > 1:
            raise ValueError("they differ")
        return rows, lists.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), -1 if rows else 0)
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"The column features must have lists of equally many numbers: {error}.") from None


def _silent(done: int, total: int | None) -> None:
    """Engines have their own progress bars."""
