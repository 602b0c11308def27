"""One sample of training images for several methods, each with the views that it learns from, encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from deltaenergy.classifiers.methods import Method
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.models.base import Model
from deltaenergy.tuning.prepare import TrainSet, prepare_training

# Told what is being done; gives the progress callback for it.
ProgressStage = Callable[[str], AbstractContextManager[Progress | None]]


class TrainSets:
    """The sample as each method sees it: random views and test view are encoded once, whatever the methods are."""

    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        items: list[ImageItem],
        shots: int,
        seed: int,
        views: int | str,
        methods: Sequence[Method],
        cache: Path,
        announce: ProgressStage,
    ) -> None:
        self.model, self.classes, self.views, self.methods = model, classes, views, methods
        self.items, self.shots, self.seed, self.cache, self.announce = items, shots, seed, cache, announce
        self._sets: dict[int | str, TrainSet] = {}

    def of(self, method: Method) -> TrainSet:
        """With the views that the method learns from."""
        kind = method.views_of(self.views)
        needs = frozenset[Need]().union(
            *(one.needs_to_train for one in self.methods if one.views_of(self.views) == kind)
        )
        return self._prepared(kind, needs, method.name)

    def test_view(self) -> TrainSet:
        """With the view that images are tested with."""
        return self._prepared("test", frozenset(), "tune")

    def _prepared(self, kind: int | str, needs: frozenset[Need], who: str) -> TrainSet:
        if kind in self._sets and self._sets[kind].images.holds(needs):
            return self._sets[kind]
        # A sample once drawn, with its unreadable images replaced, serves every kind of view.
        first = next(iter(self._sets.values()), None)
        with self.announce("Encoding images") as progress:
            prepared = prepare_training(
                self.model,
                self.classes,
                self.items if first is None else first.sample,
                self.shots,
                self.seed,
                kind,
                needs=needs,
                cache=self.cache,
                progress=progress,
                who=who,
            )
        self._sets[kind] = prepared if first is None else replace(prepared, unreadable=first.unreadable)
        return self._sets[kind]
