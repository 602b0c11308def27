"""Rows of arrays: the size of a block, rows as torch takes them, and an array that grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# If the number of rows is a multiple of this, a row gets the same bits at every position: products round the last few
# rows differently, and on AVX-512 torch computes exp for two vectors of 16 at a time, and for the rest one by one.
ROW_BLOCK = 32


def round_to_block(rows: int) -> int:
    """The largest multiple of 16 up to `rows`, at least 16: the size of a block."""
    return max(16, rows // 16 * 16)


def native_array(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers for torch: without negative strides, foreign byte order or long doubles.

    Read-only arrays are copied, because tensors cannot be read-only.
    """
    wide = values.dtype.kind == "f" and values.dtype.itemsize > 8
    values = values.astype(np.float64 if wide else values.dtype.newbyteorder("="), copy=False)
    return values.copy() if not values.flags.writeable or any(stride < 0 for stride in values.strides) else values


class GrowingArray:
    """Rows of numbers, added in place: joining a list would need twice the memory."""

    def __init__(self, dtype: npt.DTypeLike, *shape: int, expected: int = 0) -> None:
        """`shape` is that of a row; up to `expected` rows, none is moved."""
        self._rows = np.empty((expected, *shape), dtype)
        self._used = 0

    def add(self, part: npt.ArrayLike) -> None:
        rows = np.asarray(part)
        end = self._used + len(rows)
        if end > len(self._rows):  # by an eighth, to avoid moving it for every part
            self._resize(max(end, len(self._rows) * 9 // 8))
        self._rows[self._used : end] = rows
        self._used = end

    def finish(self) -> npt.NDArray[Any]:
        """All rows. Nothing can be added any more."""
        self._resize(self._used)
        return self._rows

    def _resize(self, rows: int) -> None:
        # There is no other reference to the array before it is complete.
        self._rows.resize((rows, *self._rows.shape[1:]), refcheck=False)
