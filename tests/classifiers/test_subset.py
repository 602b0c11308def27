"""Some of a classifier's classes: the same answers with columns removed, whatever the method looks at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.errors import InputError
from tests.labelled_pictures import CLASSES


@pytest.mark.parametrize("method", ["coop", "cocoop", "locoop", "gallop", "lsn", "dplclip(serve=batch)"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_columns_of_the_whole(method: str, tiny_clip: Model, coloured: Path, tmp_path: Path) -> None:
    whole = de.tune(tiny_clip, CLASSES, coloured, method, shots=2, views=1, recipe={"epochs": 1})
    some = ClassSubset(whole, [2, 0])
    assert some.classes == (CLASSES[2], CLASSES[0])
    assert some.needs_to_predict == whole.needs_to_predict and some.batch_dependent == whole.batch_dependent
    np.testing.assert_allclose(some.similarities(coloured), whole.similarities(coloured)[:, [2, 0]], atol=1e-6)
    with pytest.raises(InputError, match=r"subset.*cannot be saved"):
        some.save(tmp_path / "subset")
