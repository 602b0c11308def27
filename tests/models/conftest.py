"""Fixtures of the tests of models."""

from __future__ import annotations

import pytest

from tests.models.towers.compared import Towers


@pytest.fixture(scope="session")
def tower_of(tmp_path_factory: pytest.TempPathFactory) -> Towers:
    """Text towers in the precision asked for."""
    return Towers(tmp_path_factory.mktemp("towers"))
