"""Classes for engines that map batches of columns, such as Ray Data: `Scorer` gives verdicts, `Encoder` features.

    import ray
    scored = de.scale.read_store("photos.store").map_batches(
        de.scale.Scorer, fn_constructor_args=["detector"], concurrency=2
    )
    scored.write_parquet("verdicts")

Only `read_store` needs Ray: `Scorer("detector")({"id": ids, "features": features})` is an Arrow table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.verdict import verdict_schema
from deltaenergy.errors import InputError
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.features import check_features
from deltaenergy.scoring import OF_IMAGES, score_encoded, stream_scores
from deltaenergy.store.folder import open_folder
from deltaenergy.store.plan import present
from deltaenergy.store.shard import ShardRecord, read_arrays, with_arrays

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from deltaenergy.detector.verdicts import Verdicts

# A task of Ray takes some milliseconds to start: beyond this many, each has several shards.
MOST_TASKS = 10_000


class Scorer:
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
        self._needs = self.detector.score.needs | self.detector.classifier.needs_to_predict

    def __call__(self, batch: Any) -> pa.Table:
        """The verdicts of one batch."""
        columns = ColumnBatch(batch)
        if not len(columns):
            return _error_schema().empty_table()
        if "features" in columns:
            return self._score_features(columns)
        if "bytes" in columns:
            return self._score_images(columns)
        raise InputError(
            f"A batch with the columns {', '.join(columns.names)} cannot be scored: it needs features or bytes."
        )

    def _score_features(self, batch: ColumnBatch) -> pa.Table:
        if lacking := self._needs & OF_IMAGES:
            raise InputError(f"This detector needs {' and '.join(sorted(lacking))}: give it bytes, not features.")
        ids, known = batch.ids, batch.errors
        present_rows, features = batch.rows("features")
        taken = [position for position, row in enumerate(present_rows) if known[row] is None]
        rows = [present_rows[position] for position in taken]
        model = self.detector.classifier.model
        checked = check_features(features[taken], model, rows=rows) if rows else torch.zeros(0, model.feature_dim)
        errors = {row: known[row] or "it has no features" for row in set(range(len(ids))) - set(rows)}
        items = [ImageItem(str(row), b"") for row in rows]
        encoded = EncodedBatch(items, None, checked.to(model.device), None, _unreadable(errors))
        scored, _ = score_encoded(self.detector.classifier, [self.detector.scorer], encoded)
        return _in_order(ids, with_errors(self.detector.judge(scored)))

    def _score_images(self, batch: ColumnBatch) -> pa.Table:
        import pyarrow as pa

        items, errors = batch.images()
        detector = self.detector
        found = stream_scores(
            detector.classifier, [detector.scorer], items, batch_size=self._batch_size, progress=_silent
        )
        tables = [with_errors(detector.judge(scored)) for scored in found]
        failed = [{"path": image.id, "error": image.reason} for image in _unreadable(errors)]
        return _in_order(batch.ids, pa.concat_tables([*tables, pa.Table.from_pylist(failed, _error_schema())]))


class Encoder:
    """Encodes batches of images with one model, which is loaded once.

    A batch has the columns `bytes`, and `id` or `path`, as `ray.data.read_binary_files(…, include_paths=True)` gives
    them. It comes back as an Arrow table without `bytes`, with `features` (null where an image could not be read) and
    `error`.

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

        columns = ColumnBatch(batch)
        if "bytes" not in columns:
            raise InputError(f"A batch with the columns {', '.join(columns.names)} cannot be encoded: it needs bytes.")
        items, errors = columns.images()
        encoded = self.model.encode(items, batch_size=self._batch_size, progress=_silent)
        errors |= {int(image.id): image.reason for image in encoded.unreadable}
        features = np.zeros((len(columns), self.model.feature_dim), np.float32)
        features[[int(item.id) for item in encoded.items]] = encoded.features
        table = columns.table.drop_columns([name for name in ("bytes", "error", "features") if name in columns])
        reasons = pa.array([errors.get(row) for row in range(len(columns))], pa.string())
        return with_arrays(table.append_column("error", reasons), {"features": features})


def read_store(path: str | Path, *, patches: bool = False) -> Any:
    """A feature store as a Ray dataset: id, label, domain, content, stamp, error and features, a row per image.

    Shards are read as they are needed. An image that could not be read has an error, and null for features.
    """
    import ray

    folder = open_folder(path)
    manifest, _ = present(folder)
    records = [{"record": json.dumps(asdict(record))} for record in manifest.shards]
    shards = ray.data.from_items(records, override_num_blocks=min(len(records), MOST_TASKS) or 1)
    # It takes no CPU, or it would wait forever for one if actors hold them all.
    return shards.map_batches(_read_shard, fn_args=[folder.address, patches], batch_size=1, num_cpus=0)


def _read_shard(batch: Mapping[str, Any], address: str, patches: bool) -> pa.Table:
    (record,) = batch["record"]
    index, arrays = read_arrays(open_folder(address), ShardRecord(**json.loads(record)))
    kinds = ("features", "patches") if patches else ("features",)
    return with_arrays(index, {kind: arrays[kind].astype(np.float32) for kind in kinds})


class ColumnBatch:
    """A batch as engines hand it over: a dictionary of arrays, an Arrow table or a pandas data frame."""

    def __init__(self, batch: Any) -> None:
        import pyarrow as pa

        if isinstance(batch, pa.RecordBatch):
            batch = pa.table(batch)
        if isinstance(batch, pa.Table):
            self.names = list(batch.column_names)
        elif isinstance(batch, Mapping) or hasattr(batch, "to_dict"):  # a pandas data frame
            self.names = [str(name) for name in batch]
        else:
            raise InputError(
                f"A batch of type {type(batch).__name__} cannot be used. Give a dictionary of arrays, an Arrow table "
                "or a pandas data frame."
            )
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch[self.names[0]]) if self.names else 0

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def table(self) -> pa.Table:
        """As an Arrow table."""
        import pyarrow as pa

        if isinstance(self._batch, pa.Table):
            return self._batch
        if isinstance(self._batch, Mapping):
            return pa.table({name: pa.array(column) for name, column in self._batch.items()})
        return pa.Table.from_pandas(self._batch, preserve_index=False)

    @property
    def ids(self) -> list[str]:
        """What each row is called."""
        for name in ("id", "path"):
            if name in self:
                found = self.values(name)
                for row, value in enumerate(found):
                    if not isinstance(value, str):
                        raise InputError(f"The column {name!r} has {value!r} in row {row}, which is not a text.")
                return found
        raise InputError(f"A batch needs the column id or path. It has {', '.join(self.names)}.")

    @property
    def errors(self) -> list[str | None]:
        """Why an image could not be read, as far as an earlier step found out."""
        return [error or None for error in self.values("error")] if "error" in self else [None] * len(self)

    def images(self) -> tuple[list[ImageItem], dict[int, str]]:
        """The images in `bytes`, and why others have none; each is called by its row."""
        errors = {row: error for row, error in enumerate(self.errors) if error is not None}
        items = []
        for row, image in enumerate(self.values("bytes")):
            if not isinstance(image, (bytes, bytearray, memoryview)):
                errors.setdefault(row, "it has no bytes")
            elif row not in errors:
                items.append(ImageItem(str(row), bytes(image)))
        return items, errors

    def values(self, name: str) -> list[Any]:
        """A column as Python objects. What is missing, which arrays write as NaN and pandas as NA, is None."""
        import pyarrow as pa

        column = self._batch[name]
        if isinstance(column, (pa.ChunkedArray, pa.Array)):
            found: list[Any] = column.to_pylist()
        else:
            found = np.asarray(column, object).tolist() if not isinstance(column, list) else column
        return [None if _is_missing(value) else value for value in found]

    def rows(self, name: str) -> tuple[list[int], npt.NDArray[Any]]:
        """A column of equally long lists of numbers: which rows have one, and these as an array (n, D)."""
        import pyarrow as pa

        column = self._batch[name]
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column, pa.FixedSizeListArray):
            kept = column.is_valid().to_numpy(zero_copy_only=False)
            numbers = column.flatten().to_numpy(zero_copy_only=False)  # those of missing lists are left out
            return np.flatnonzero(kept).tolist(), numbers.reshape(-1, column.type.list_size)
        if isinstance(column, pa.ExtensionArray) and not column.null_count:  # tensors of Arrow's or of Ray's
            column = column.to_numpy_ndarray() if hasattr(column, "to_numpy_ndarray") else column.to_numpy(False)
        listed = column.to_pylist() if isinstance(column, pa.Array) else column
        if isinstance(listed, np.ndarray) and listed.ndim == 2:
            return list(range(len(listed))), listed
        present_rows = [row for row, value in enumerate(listed) if isinstance(value, (list, tuple, np.ndarray))]
        try:
            values = np.array([listed[row] for row in present_rows], np.float32)
            return present_rows, values.reshape(len(present_rows), -1)
        except ValueError as error:
            raise InputError(f"The column {name!r} must have lists of equally many numbers: {error}.") from None


def with_errors(verdicts: Verdicts) -> pa.Table:
    """A row for each image that was read, then one for each that was not: with its path and error, and nothing else."""
    import pyarrow as pa

    table = verdicts.to_table()
    judged = table.append_column("error", pa.nulls(len(table), pa.string()))
    failed = [{"path": image.id, "error": image.reason} for image in verdicts.unreadable]
    return pa.concat_tables([judged, pa.Table.from_pylist(failed, judged.schema)])


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA, which is neither equal to itself nor not
        return True


def _error_schema() -> pa.Schema:
    import pyarrow as pa

    return verdict_schema().append(pa.field("error", pa.string()))


def _in_order(ids: list[str], table: pa.Table) -> pa.Table:
    """The rows of a table, whose paths are their numbers in the batch, in that order and by their own names."""
    import pyarrow as pa

    numbers = np.array([int(number) for number in table["path"].to_pylist()], np.int64)
    order = np.argsort(numbers, kind="stable")
    names = pa.array([ids[number] for number in numbers[order]], pa.string())
    return table.take(order).set_column(0, "path", names)


def _unreadable(errors: Mapping[int, str]) -> list[Unreadable]:
    return [Unreadable(str(row), error) for row, error in errors.items()]


def _silent(done: int, total: int | None) -> None:
    """Engines have progress bars of their own."""
