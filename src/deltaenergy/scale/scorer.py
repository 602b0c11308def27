"""`Scorer`: verdicts for batches of columns, for Ray Data and any other engine that maps batches.

    import ray
    scored = ray.data.read_parquet("photos.store").map_batches(
        de.scale.Scorer, fn_constructor_args=["detector", "photos.store"], concurrency=2
    )
    scored.write_parquet("verdicts")

It needs no Ray itself: `Scorer("detector")({"id": ids, "features": features})` is an Arrow table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.core.needs import OF_IMAGES, Need
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.features import check_features
from deltaenergy.scale.batches import ColumnBatch
from deltaenergy.scale.store_rows import StoreRows
from deltaenergy.scale.verdict_columns import error_schema, with_errors
from deltaenergy.scoring import score_encoded, stream_scores

if TYPE_CHECKING:
    import pyarrow as pa

_LINES = ("id", "content", "row", "error")


class Scorer:
    """Scores batches with one detector, loaded once. A batch is one of these, by its columns:

    - `features`: unit features, a list of equal length in each row, with `id` or `path`;
    - `bytes`: encoded pictures, with `id` or `path`, as `ray.data.read_binary_files(…, include_paths=True)` gives them;
    - lines of a feature store's index, as `ray.data.read_parquet(store)` gives them; name the store as well.

    Each row gives one with the columns of `deltaenergy score --out` (`detector.verdicts`) and `error`: why the image
    could not be read, and then the others are empty. Lines of a store that a later
    run replaced give none. Verdicts of features are those of `deltaenergy score`, whatever the batches.

    Args:
        detector: folder that `calibrate`, `tune` or `Detector.save` wrote. Every machine must see it.
        store: folder of the feature store whose lines come.
        device: where the model runs.
        batch_size: pictures per pass of the image tower.
    """

    def __init__(
        self, detector: str | Path, store: str | Path | None = None, *, device: str = "auto", batch_size: int = 32
    ) -> None:
        from deltaenergy.detector.detector import Detector

        self.detector = Detector.load(os.fspath(detector), device=device).prepare()
        if self.detector.calibration is None:
            raise InputError(f"{detector} has no threshold, and so no verdicts: calibrate it first.")
        self._batch_size = batch_size
        self._needs = self.detector.score.needs | self.detector.classifier.needs_to_predict
        model = self.detector.classifier.model
        self._store = None if store is None else StoreRows(store, model, patches=Need.PATCHES in self._needs)

    def __call__(self, batch: Any) -> pa.Table:
        """The verdicts of one batch."""
        columns = ColumnBatch(batch)
        if not len(columns):
            return error_schema().empty_table()
        if "features" in columns:
            return self._score_features(columns)
        if "bytes" in columns:
            return self._score_pictures(columns)
        if all(name in columns for name in _LINES):
            return self._score_lines(columns)
        raise InputError(
            f"A batch with the columns {', '.join(columns.names)} cannot be scored. Give features, or bytes, each with "
            "id or path, or the index of a feature store."
        )

    def _score_features(self, batch: ColumnBatch) -> pa.Table:
        lacking = self._needs & OF_IMAGES
        if lacking:
            raise InputError(f"This detector needs {' and '.join(sorted(lacking))}: give it bytes, not features.")
        ids, known = _ids(batch), _errors(batch)
        present, features = batch.rows("features")
        taken = [position for position, row in enumerate(present) if known[row] is None]
        rows = [present[position] for position in taken]
        checked = check_features(features[taken], self.detector.classifier.model, rows=rows) if rows else None
        errors = {row: known[row] or "it has no features" for row in set(range(len(ids))) - set(rows)}
        return self._table(ids, self._judge(rows, checked, None, errors))

    def _score_pictures(self, batch: ColumnBatch) -> pa.Table:
        ids, known = _ids(batch), _errors(batch)
        errors = {row: error for row, error in enumerate(known) if error is not None}
        pictures = batch.values("bytes")
        items = []
        for row, picture in enumerate(pictures):
            if not isinstance(picture, (bytes, bytearray, memoryview)):
                errors.setdefault(row, "it has no bytes")
            if row not in errors:
                items.append(ImageItem(str(row), bytes(picture)))
        detector, size = self.detector, self._batch_size
        found = stream_scores(detector.classifier, [detector.scorer], items, batch_size=size, progress=_silent)
        return self._table(
            ids, [*(with_errors(detector.judge(one)) for one in found), self._judge([], None, None, errors)]
        )

    def _score_lines(self, batch: ColumnBatch) -> pa.Table:
        store = self._store
        if store is None:
            raise InputError("These are lines of a feature store: name it as well, Scorer(detector, store).")
        ids, shards, rows, known = _ids(batch), _shards(batch), batch.whole_numbers("row"), _errors(batch)
        places: dict[int, tuple[int, int]] = {}
        errors: dict[int, str] = {}
        for line, (image, shard) in enumerate(zip(ids, shards)):
            if store.counts(image, shard):
                place = store.find(image, shard, rows[line]) if known[line] is None else None
                if place is None:
                    errors[line] = known[line] or "its shard is missing from the store"
                else:
                    places[line] = place
        device = self.detector.classifier.model.device
        taken = {
            kind: torch.from_numpy(store.take(kind, list(places.values()))).to(device) if places else None
            for kind in store.kinds
        }
        return self._table(ids, self._judge(list(places), taken["features"], taken.get("patches"), errors))

    def _judge(
        self, rows: list[int], features: torch.Tensor | None, patches: torch.Tensor | None, errors: dict[int, str]
    ) -> pa.Table:
        """Verdicts of features, and rows for errors; each is called by its number in the batch."""
        model = self.detector.classifier.model
        if features is None:
            features = torch.zeros(0, model.feature_dim)
        items = [ImageItem(str(row), b"") for row in rows]
        unreadable = [Unreadable(str(row), error) for row, error in errors.items()]
        encoded = EncodedBatch(items, None, features.to(model.device), patches, unreadable)
        scored, _ = score_encoded(self.detector.classifier, [self.detector.scorer], encoded)
        return with_errors(self.detector.judge(scored))

    def _table(self, ids: list[str], found: pa.Table | list[pa.Table]) -> pa.Table:
        """The rows in the order of the batch, by their own names."""
        import pyarrow as pa

        table = pa.concat_tables(found) if isinstance(found, list) else found
        numbers = np.array([int(number) for number in table["path"].to_pylist()], np.int64)
        order = np.argsort(numbers, kind="stable")
        names = pa.array([ids[number] for number in numbers[order]], pa.string())
        return table.take(order).set_column(0, "path", names)


def _ids(batch: ColumnBatch) -> list[str]:
    for name in ("id", "path"):
        if name in batch:
            found = batch.values(name)
            for row, value in enumerate(found):
                if not isinstance(value, str):
                    raise InputError(f"The column {name!r} has {value!r} in row {row}, which is no text.")
            return found
    raise InputError(f"A batch needs the column id or path. It has {', '.join(batch.names)}.")


def _errors(batch: ColumnBatch) -> list[str | None]:
    return [error or None for error in batch.values("error")] if "error" in batch else [None] * len(batch)


def _shards(batch: ColumnBatch) -> list[int]:
    """The shard of each line."""
    numbers = batch.whole_numbers("shard") if "shard" in batch else [None]
    if None in numbers:
        raise InputError("A line of a store needs a number in its column shard.")
    return [number for number in numbers if number is not None]


def _silent(done: int, total: int | None) -> None:
    """Engines have progress bars of their own."""
