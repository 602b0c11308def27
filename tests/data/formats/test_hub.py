"""Hub data sets: known by their shape, read row by row, labelled with their class names."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import load_rgb
from deltaenergy.errors import InputError
from deltaenergy.source import load_images


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), (value, value, value)).save(stream, "PNG")
    return stream.getvalue()


def colours(items: list[Any]) -> list[int]:
    return [int(np.asarray(load_rgb(item))[0, 0, 0]) for item in items]


# A stand-in with the same surface, so that these tests run where the datasets library is not installed.
class FakeImageFeature:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


FakeImageFeature.__name__ = "Image"


class ClassLabel:
    names = ("cat", "dog")


class FakeDataset:
    def __init__(self, features: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.features, self.rows, self.read = features, rows, []

    @property
    def column_names(self) -> list[str]:
        return list(self.features)

    def cast_column(self, name: str, feature: FakeImageFeature) -> FakeDataset:
        assert not feature.decode
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            assert key not in ("image", "img"), "the image column must not be read as a whole"
            return [row[key] for row in self.rows]
        self.read.append(key)
        return self.rows[key]


def test_rows_are_read_when_needed() -> None:
    rows = [{"img": {"bytes": png(value), "path": None}, "label": value % 2} for value in range(5)]
    rows[3]["label"] = -1
    data = FakeDataset({"img": FakeImageFeature(), "label": ClassLabel()}, rows)
    items = load_images(data)
    assert data.read == []
    assert [item.id for item in items] == [f"image {i}" for i in range(5)]
    assert [item.label for item in items] == ["cat", "dog", "cat", None, "cat"]
    assert colours(items) == [0, 1, 2, 3, 4]


def test_missing_and_broken_images_are_unreadable() -> None:
    rows = [
        {"image": None},
        {"image": {"bytes": b"broken", "path": None}},
        {"image": {"bytes": None, "path": "gone.png"}},
    ]
    items = load_images(FakeDataset({"image": FakeImageFeature()}, rows))
    for item in items:
        with pytest.raises(UnreadableImage):
            load_rgb(item)


def test_wrong_data_sets() -> None:
    def message(call: Callable[[], object]) -> str:
        with pytest.raises(InputError) as caught:
            call()
        return str(caught.value)

    empty = FakeDataset({"image": FakeImageFeature()}, [])
    assert "no rows" in message(lambda: load_images(empty))
    assert "data['train']" in message(lambda: load_images({"train": empty, "test": empty}))
    assert "'text'" in message(lambda: load_images(FakeDataset({"text": None}, [{"text": "a"}])))

    class Streamed:
        features, column_names = empty.features, empty.column_names

    assert "streaming=True" in message(lambda: load_images(Streamed()))


def test_the_datasets_library() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": png(i), "path": None} for i in range(4)], "label": [0, 1, 1, 0]}
    rows["image"][2] = {"bytes": b"broken", "path": None}
    data = datasets.Dataset.from_dict(rows, features=features)
    items = load_images(data)
    assert [item.label for item in items] == ["cat", "dog", "dog", "cat"]
    assert colours([items[0], items[1], items[3]]) == [0, 1, 3]
    with pytest.raises(UnreadableImage):
        load_rgb(items[2])
    assert colours(load_images(data.select([3, 0]))) == [3, 0]
    with pytest.raises(InputError, match="choose one"):
        load_images(datasets.DatasetDict({"train": data}))
    with pytest.raises(InputError, match="streaming"):
        load_images(data.to_iterable_dataset())
    paths = datasets.Dataset.from_dict({"path": ["a.png", "b.png"], "label": ["cat", None]})
    assert [(item.id, item.label) for item in load_images(paths)] == [("a.png", "cat"), ("b.png", None)]
