"""The cache: what is damaged or does not fit is computed again, and a cache that cannot be written costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deltaenergy.files import write_tensors
from deltaenergy.files.cache import load_cached, store_cached
from deltaenergy.files.schema import TensorSpec

TENSORS = {"features": torch.rand(4, 3), "index": torch.arange(4)}
SPECS = {"features": TensorSpec((4, 3)), "index": TensorSpec((4,), ("int64",), low=0, high=3)}


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    assert load_cached(tmp_path / "a", SPECS) is None
    store_cached(tmp_path / "a", TENSORS)
    found = load_cached(tmp_path / "a", SPECS)
    assert found is not None and all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    assert found.keys() == TENSORS.keys()
    store_cached(tmp_path / "empty", {"features": torch.zeros(0, 3)})
    assert load_cached(tmp_path / "empty", {"features": TensorSpec((None, 3))}) is not None


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    store_cached(tmp_path / "a", TENSORS)
    data = (tmp_path / "a").read_bytes()
    for position in range(0, len(data), 3):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        (tmp_path / "a").write_bytes(changed)
        found = load_cached(tmp_path / "a", SPECS)
        # A flip in the blanks of the header changes nothing.
        assert found is None or all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
        assert found is None or position < 500


@pytest.mark.parametrize(
    "tensors",
    [
        {"features": TENSORS["features"]},
        {**TENSORS, "more": torch.zeros(1)},
        {**TENSORS, "features": torch.rand(4, 2)},
        {**TENSORS, "features": torch.full((4, 3), torch.nan)},
        {**TENSORS, "index": torch.tensor([0, 1, 2, 4])},
        {**TENSORS, "index": torch.tensor([0, 1, 2, -1])},
    ],
)
def test_what_does_not_fit_is_computed_again(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    store_cached(tmp_path / "a", tensors)
    assert load_cached(tmp_path / "a", SPECS) is None


def test_an_entry_of_an_older_version_is_computed_again(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS)
    assert load_cached(tmp_path / "a", SPECS) is None


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="DELTAENERGY_CACHE"):
        store_cached(tmp_path / "file" / "below", TENSORS)
    (tmp_path / "folder").mkdir()
    with pytest.warns(UserWarning, match="DELTAENERGY_CACHE"):
        store_cached(tmp_path / "folder", TENSORS)
