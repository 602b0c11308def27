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
import torch

from deltaenergy.core.needs import OF_IMAGES
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.verdict import verdict_schema
from deltaenergy.errors import InputError
from deltaenergy.models.encoding import EncodedBatch, check_features
from deltaenergy.scoring import score_encoded, stream_scores
from deltaenergy.source import as_source
from deltaenergy.store.folder import open_folder
from deltaenergy.store.plan import present
from deltaenergy.store.shard import ShardRecord, read_arrays, with_arrays

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from deltaenergy.detector.verdicts import Verdicts

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
        ids = _ids(table)
        if "features" in table.column_names:
            errors: dict[int, str] = {}
            found = iter([score_encoded(detector.classifier, [detector.scorer], self._encoded(table))[0]])
        else:
            items, errors = _images(table)
            found = stream_scores(
                detector.classifier, [detector.scorer], as_source(items), batch_size=self._batch_size, progress=_silent
            )
        failed = [{"path": str(row), "error": error} for row, error in errors.items()]
        tables = [with_errors(detector.judge(scored)) for scored in found]
        judged = pa.concat_tables([*tables, pa.Table.from_pylist(failed, schema)])
        # Its rows are called by their numbers in the batch.
        numbers = np.array([int(number) for number in judged["path"].to_pylist()], np.int64)
        order = np.argsort(numbers, kind="stable")
        return judged.take(order).set_column(0, "path", pa.array([ids[row] for row in numbers[order]], pa.string()))

    def _encoded(self, table: pa.Table) -> EncodedBatch:
        detector, model = self.detector, self.detector.classifier.model
        if lacking := (detector.score.needs | detector.classifier.needs_to_predict) & OF_IMAGES:
            raise InputError(f"This detector needs {' and '.join(sorted(lacking))}: give it bytes, not features.")
        errors = _errors(table)
        present_rows, features = _numbers(table["features"])
        taken = [place for place, row in enumerate(present_rows) if row not in errors]
        rows = [present_rows[place] for place in taken]
        checked = check_features(features[taken], model, rows=rows) if rows else torch.zeros(0, model.feature_dim)
        missing = set(range(len(table))).difference(rows)
        unreadable = [Unreadable(str(row), errors.get(row, "it has no features")) for row in sorted(missing)]
        return EncodedBatch(
            [ImageItem(str(row), None) for row in rows], None, checked.to(model.device), None, unreadable
        )


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
        items, errors = _images(table)
        encoded = self.model.encode(items, batch_size=self._batch_size, progress=_silent)
        errors |= {int(image.id): image.reason for image in encoded.unreadable}
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

    if isinstance(batch, pa.RecordBatch):
        return pa.table(batch)
    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, Mapping):
        try:
            columns = {
                name: list(column) if getattr(column, "ndim", 1) > 1 else pa.array(column, from_pandas=True)
                for name, column in batch.items()
            }
            return pa.table(columns)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(f"A batch cannot be read: {error}.") from None
    if hasattr(batch, "to_dict"):  # a pandas data frame
        return pa.Table.from_pandas(batch, preserve_index=False)
    raise InputError(
        f"A batch of type {type(batch).__name__} cannot be used. Give a dictionary of arrays, an Arrow table or a "
        "pandas data frame."
    )


def _ids(table: pa.Table) -> list[str]:
    name = next((name for name in ("id", "path") if name in table.column_names), None)
    if name is None:
        raise InputError(f"A batch needs the column id or path. It has {', '.join(table.column_names)}.")
    ids: list[str] = table[name].to_pylist()
    for row, value in enumerate(ids):
        if not isinstance(value, str):
            raise InputError(f"The column {name!r} has {value!r} in row {row}, which is not a text.")
    return ids


def _errors(table: pa.Table) -> dict[int, str]:
    """Why images could not be read, as far as an earlier step found out, by row."""
    found = table["error"].to_pylist() if "error" in table.column_names else []
    return {row: error for row, error in enumerate(found) if error}


def _images(table: pa.Table) -> tuple[list[ImageItem], dict[int, str]]:
    """The images in `bytes`, and why others have none; each is called by its row."""
    if "bytes" not in table.column_names:
        raise InputError(f"A batch needs the column features or bytes. It has {', '.join(table.column_names)}.")
    errors, items = _errors(table), []
    for row, image in enumerate(table["bytes"].to_pylist()):
        if not isinstance(image, bytes):
            errors.setdefault(row, "it has no bytes")
        elif row not in errors:
            items.append(ImageItem(str(row), image))
    return items, errors


def _numbers(column: pa.ChunkedArray) -> tuple[list[int], npt.NDArray[Any]]:
    """A column of equally long lists of numbers: which rows have one, and these as an array (n, D)."""
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ExtensionArray) and not array.null_count:  # tensors of Arrow's or of Ray's
        listed = array.to_numpy_ndarray() if hasattr(array, "to_numpy_ndarray") else array.to_numpy(False)
        return list(range(len(listed))), np.asarray(listed)
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist()
    if isinstance(array, pa.FixedSizeListArray):
        return rows, array.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), -1)
    try:
        return rows, np.array(array.drop_null().to_pylist(), np.float32).reshape(len(rows), -1)
    except ValueError as error:
        raise InputError(f"The column features must have lists of equally many numbers: {error}.") from None


def _silent(done: int, total: int | None) -> None:
    """Engines have their own progress bars."""
