"""Arrays that grow, against joining their parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.core.arrays import GrowingArray


@given(st.lists(st.lists(st.integers(-9, 9), max_size=30), max_size=12), st.integers(0, 40), st.booleans())
def test_it_holds_what_joining_gives(parts, expected, wide):
    shape = (2,) if wide else ()
    arrays = [np.array([[x, -x] if wide else x for x in part], np.float32).reshape(-1, *shape) for part in parts]
    grown = GrowingArray(np.float32, *shape, expected=expected)
    for array in arrays:
        grown.add(array)
    found, whole = grown.finish(), np.concatenate([np.zeros((0, *shape), np.float32), *arrays])
    assert found.dtype == np.float32 and found.shape == whole.shape and (found == whole).all()


def test_it_has_no_room_that_is_not_used():
    grown = GrowingArray(np.int64, expected=1000)
    grown.add([1, 2, 3])
    found = grown.finish()
    assert found.nbytes == 24 and found.base is None  # no view of something larger


def test_rows_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="broadcast"):
        GrowingArray(np.float32, 2).add(np.zeros((3, 4)))
