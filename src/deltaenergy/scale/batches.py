"""Batches of columns as engines hand them over: dictionaries of arrays, Arrow tables, pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt


class ColumnBatch:
    """Some rows of a table, column by column."""

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
                f"A batch of type {type(batch).__name__} cannot be scored. Give a dictionary of arrays, an Arrow table "
                "or a pandas data frame."
            )
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch[self.names[0]]) if self.names else 0

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def values(self, name: str) -> list[Any]:
        """A column as Python objects. What is missing, which arrays of numbers write as NaN, is None."""
        import pyarrow as pa

        column = self._batch[name]
        if isinstance(column, (pa.ChunkedArray, pa.Array)):
            found: list[Any] = column.to_pylist()
        else:
            found = np.asarray(column, object).tolist() if not isinstance(column, list) else column
        return [None if value is None or value != value else value for value in found]

    def whole_numbers(self, name: str) -> list[int | None]:
        """A column of whole numbers."""
        try:
            return [None if value is None else int(value) for value in self.values(name)]
        except (TypeError, ValueError) as error:
            raise InputError(f"The column {name!r} must hold whole numbers: {error}.") from None

    def rows(self, name: str) -> tuple[list[int], npt.NDArray[Any]]:
        """A column of equally long lists of numbers: which rows have one, and these as an array (n, D)."""
        import pyarrow as pa

        column = self._batch[name]
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column, pa.ExtensionArray) and not column.null_count:  # tensors of Arrow's or of Ray's
            column = column.to_numpy_ndarray() if hasattr(column, "to_numpy_ndarray") else column.to_numpy(False)
        listed = column.to_pylist() if isinstance(column, pa.Array) else column
        if isinstance(listed, np.ndarray) and listed.ndim == 2:
            return list(range(len(listed))), listed
        present = [row for row, value in enumerate(listed) if isinstance(value, (list, tuple, np.ndarray))]
        try:
            return present, np.array([listed[row] for row in present], np.float32).reshape(len(present), -1)
        except ValueError as error:
            raise InputError(f"The column {name!r} must hold lists of equally many numbers: {error}.") from None
