"""What the table of faithfulness measures: pasted objects, curves and the pointing game, worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

TABLES = Path(__file__).resolve().parents[2] / "docs" / "tables"


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(TABLES))
    import faithfulness

    yield faithfulness
    patch.undo()


def test_the_object_stands_in_its_box(tables: ModuleType) -> None:
    thing, ground = Image.new("RGB", (50, 30), "red"), Image.new("RGB", (90, 70), "blue")
    for seed in range(5):
        one = tables.paste(thing, ground, "dog", 40, 0.5, np.random.default_rng(seed))
        pixels = np.asarray(one.image)
        rows, columns = np.nonzero(pixels[..., 0] > 128)
        assert one.image.size == (40, 40) and len(rows) == 400
        assert one.box == pytest.approx(
            (columns.min() / 40, rows.min() / 40, (columns.max() + 1) / 40, (rows.max() + 1) / 40)
        )


def test_pointing_at_the_largest_cell(tables: ModuleType) -> None:
    heatmap = np.zeros((4, 4))
    heatmap[1, 2] = 1  # centre at x = 0.625, y = 0.375
    assert tables.points_at(heatmap, (0.5, 0.25, 0.75, 0.5))
    assert not tables.points_at(heatmap, (0.25, 0.5, 0.5, 0.75)), "rows are not columns"


def test_curves_take_the_largest_cells_first(tables: ModuleType) -> None:
    # y counts the pixels that are left; a weight on the lower half tells the order.
    pixels = torch.ones(3, 28, 28)
    weight = torch.zeros(28, 28)
    weight[14:] = 1
    heatmap = np.repeat(np.linspace(0, 1, 14)[:, None], 14, axis=1)  # largest in the last row

    def y(images: torch.Tensor) -> torch.Tensor:
        return (images[:, 0] * weight).sum((1, 2)) / weight.sum()

    deletion, insertion = tables.curves(y, pixels, heatmap)
    # Seven steps of two rows of cells each: the lower half is gone, or there, after three and a half.
    np.testing.assert_allclose(deletion, [1, 5 / 7, 3 / 7, 1 / 7, 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(insertion, [0, 2 / 7, 4 / 7, 6 / 7, 1, 1, 1, 1], atol=1e-6)
    backwards, _ = tables.curves(y, pixels, -heatmap)
    assert tables.area(deletion) < tables.area(backwards)
    assert tables.area(np.array([1.0, 0.0, 0.0])) == pytest.approx(0.25)


def test_an_interval_holds_the_mean(tables: ModuleType) -> None:
    values = np.random.default_rng(0).normal(2, 1, 400)
    mean, low, high = tables.interval(values)
    assert mean == pytest.approx(values.mean()) and low < mean < high
    # About ± 1.96 / √400.
    assert high - low == pytest.approx(4 * 0.049, rel=0.15)
