"""The cache: what is damaged or does not fit is computed again, and a cache that cannot be written costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deltaenergy.files import write_tensors
from deltaenergy.files.cache import load_cached, store_cached

TENSORS = {"features": torch.rand(4, 3), "index": torch.arange(4)}


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    assert load_cached(tmp_path / "a") is None
    store_cached(tmp_path / "a", TENSORS)
    found = load_cached(tmp_path / "a")
    assert found is not None and all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    assert found.keys() == TENSORS.keys()
    store_cached(tmp_path / "empty", {"features": torch.zeros(0, 3)})
    assert load_cached(tmp_path / "empty") is not None


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    store_cached(tmp_path / "a", TENSORS)
    data = (tmp_path / "a").read_bytes()
    for position in range(0, len(data), 3):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        (tmp_path / "a").write_bytes(changed)
        found = load_cached(tmp_path / "a")
        # A flip in the blanks of the header changes nothing.
        assert found is None or all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
        assert found is None or position < 500


def test_an_entry_of_an_older_version_is_computed_again(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS)
    assert load_cached(tmp_path / "a") is None


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="DELTAENERGY_CACHE"):
        store_cached(tmp_path / "file" / "below", TENSORS)
    (tmp_path / "folder").mkdir()
    with pytest.warns(UserWarning, match="DELTAENERGY_CACHE"):
        store_cached(tmp_path / "folder", TENSORS)
