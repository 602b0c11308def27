"""Image features of a benchmark: encoded once per model and view, into a feature store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.store.store import StoredImage

if TYPE_CHECKING:
    from deltaenergy.models.base import Model
    from deltaenergy.store.store import FeatureStore

# Called with what is being done; gives the progress callback for it.
Announce = Callable[[str], Progress | None]


class Features:
    """Features of images, encoded once per model and view into a store under `folder`."""

    def __init__(self, folder: Path, batch_size: int, announce: Announce) -> None:
        self.folder, self.batch_size, self.announce = folder, batch_size, announce
        self.rows: dict[str, dict[str, int]] = {}
        self.stores: dict[str, FeatureStore] = {}
        self.unreadable: dict[str, Unreadable] = {}

    def of(self, items: list[ImageItem], model: Model) -> list[ImageItem]:
        """The images that can be read, as items of the model's store: it is checked wherever they are used."""
        known = self.rows.get(model.fingerprint, {})
        if any(item.id not in known and item.id not in self.unreadable for item in items):
            self._encode(items, model)
            known = self.rows[model.fingerprint]
        store = self.stores[model.fingerprint]
        return [replace(item, source=StoredImage(store, known[item.id])) for item in items if item.id in known]

    def _encode(self, items: list[ImageItem], model: Model) -> None:
        from deltaenergy.source import build_store

        store = build_store(
            model,
            items,
            self.folder / model.fingerprint,
            batch_size=self.batch_size,
            progress=self.announce("Encoding images"),
        )
        self.stores[model.fingerprint] = store
        self.rows[model.fingerprint] = {name: row for row, name in enumerate(store.ids)}
        self.unreadable.update({image.id: image for image in store.unreadable})
