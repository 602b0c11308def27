"""Run a benchmark: every method on every case and seed, each result written as soon as it is there.

    summary = run_benchmark(load_spec("mini"), model, DataRoot(), "results/", methods=["msp", "delta-energy"])

Images are encoded once into a feature store; tuned classifiers are kept. Whatever is in the results folder is not
computed again, so that a run can be killed at any moment and gone on with.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deltaenergy import __version__
from deltaenergy.benchmarks.evaluate import ScoredSet, measure
from deltaenergy.benchmarks.methods import Method, parse_methods
from deltaenergy.benchmarks.plan import FitImages, PlannedCase, Skip, fit_images, plan, validation_images
from deltaenergy.benchmarks.protocol import Protocol, get_protocol, in_train_view
from deltaenergy.benchmarks.results import Cell, Results, hash_value
from deltaenergy.benchmarks.sets import DataRoot, ResolvedSet
from deltaenergy.benchmarks.spec import BenchmarkSpec
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import DeltaEnergyError
from deltaenergy.files import hash_strings
from deltaenergy.progress import Progress
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import score_images

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.store import FeatureStore
    from deltaenergy.models.base import Model

# Called with what is being done; gives the progress callback for it.
Announce = Callable[[str], Progress | None]


@dataclass
class Summary:
    """What a run did."""

    computed: int = 0
    found: int = 0
    skips: list[Skip] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


def run_benchmark(
    spec: BenchmarkSpec,
    model: Model,
    data: DataRoot,
    out: str | Path,
    *,
    methods: Sequence[str] | None = None,
    protocol: str = "standard",
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    search: bool = False,
    store: str | Path | None = None,
    batch_size: int = 32,
    announce: Announce = lambda _: None,
) -> Summary:
    """Run `spec` and leave its results in the folder `out`; the command `bench` says what the arguments mean."""
    results = Results(out)
    chosen = parse_methods(methods or spec.methods)
    planned, skips = plan(spec, data, chosen, seeds or spec.seeds, limit)
    kind: type[Run] = Run
    if spec.measures == "cost":
        from deltaenergy.benchmarks.cost import CostRun

        kind = CostRun
    run = kind(spec, model, results, get_protocol(protocol), limit, batch_size, announce)
    run.search = search
    run.features = Features(model, Path(store) if store else results.folder / "features", batch_size, announce)
    run.summary.skips += skips
    for case in planned:
        run.case(case)
    run.summary.unreadable = list(run.features.unreadable.values())
    results.write_run(_record(run, chosen, seeds or spec.seeds))
    results.write_tables()
    return run.summary


class Run:
    """The state of one run."""

    features: Features
    search = False

    def __init__(
        self,
        spec: BenchmarkSpec,
        model: Model,
        results: Results,
        protocol: Protocol,
        limit: int | None,
        batch_size: int,
        announce: Announce,
    ) -> None:
        self.spec, self.model, self.results, self.protocol = spec, model, results, protocol
        self.limit, self.batch_size, self.announce = limit, batch_size, announce
        self.summary = Summary()

    def case(self, planned: PlannedCase) -> None:
        """Compute the cells of a case that are not there yet, one tuner after the other."""
        fit = fit_images(planned, self.protocol)
        cells = {method: self.identity(planned, method, fit) for method in planned.methods}
        pending = [method for method in planned.methods if not self.results.has(cells[method]["cell"])]
        self.summary.found += len(cells) - len(pending)
        if any(not make_score(method.score).needs_images for method in pending):
            self.encode(planned)
        for tuner in dict.fromkeys(method.tuner for method in pending):
            mine = [method for method in pending if method.tuner == tuner]
            try:
                classifier = self.classifier(planned, tuner)
            except DeltaEnergyError as error:
                self.skip(planned, f"tuner {tuner}" if tuner else "zero-shot", error)
                continue
            prepared = self.prepare(planned, classifier, mine, fit)
            for method, score in prepared.items():
                start = time.perf_counter()
                rows, curves = self.measure(planned, classifier, score, fit)
                self.results.add(Cell(cells[method], rows, curves), time.perf_counter() - start)
                self.summary.computed += 1

    def encode(self, planned: PlannedCase) -> None:
        """Encode all images of a case that are not in the store yet, in one go."""
        closed = [item for images in planned.closed for item in images.items]
        opened = [item for images in planned.open for item in images.items]
        if self.protocol.open_in_train_view:
            self.features.of(closed, self.model)
            self.features.of(opened, in_train_view(self.model))
        else:
            self.features.of([*closed, *opened], self.model)

    def identity(self, planned: PlannedCase, method: Method, fit: FitImages) -> dict[str, Any]:
        """Everything that decides a cell's values, and its hash."""
        import torch

        needs_fit = make_score(method.score).needs_fit
        decides: dict[str, Any] = {
            "benchmark": self.spec.name,
            "spec_hash": self.spec.hash,
            "case": planned.case.name,
            "group": planned.case.group,
            "seed": planned.seed,
            "method": method.label,
            "tuner": method.tuner,
            "score": method.score,
            "protocol": self.protocol.name,
            "limit": self.limit,
            "search": self.search if method.tuner else None,
            "shots": self.spec.shots if method.tuner or (needs_fit and planned.train) else None,
            "template": self.spec.template,
            "model_fingerprint": self.model.fingerprint,
            "classes_hash": hash_strings(planned.names),
            "n_classes": len(planned.classes),
            "fitted_on": fit.source if needs_fit else None,
            "images_hash": planned.images_hash,
            "deltaenergy": __version__,
        }
        return {**decides, "model": self.model.name, "torch": torch.__version__, "cell": hash_value(decides)}

    def classifier(self, planned: PlannedCase, tuner: str | None) -> Classifier:
        """Zero-shot, or tuned on the case's few images (kept in the results folder)."""
        if tuner is None:
            return self.zero_shot(planned.names)
        from deltaenergy.benchmarks.tuned import tuned_classifier

        progress = self.announce(f"{planned.case.name}: tuning {tuner}, seed {planned.seed}")
        # Without a search nothing is chosen, and the last epoch is kept; croft always chooses the epoch.
        choose = self.search or self.protocol.validation_from_test
        return tuned_classifier(
            self.model,
            planned,
            tuner,
            dict(self.spec.recipe),
            self.results.folder / "tuned",
            progress,
            validation=validation_images(planned, self.protocol) if choose else None,
            search=self.search,
        )

    def zero_shot(self, names: Sequence[str]) -> Classifier:
        """The zero-shot classifier of some class names."""
        from deltaenergy.classifiers.zero_shot import ZeroShotClassifier

        return ZeroShotClassifier(self.model, names, self.spec.template)

    def prepare(
        self, planned: PlannedCase, classifier: Classifier, methods: Sequence[Method], fit: FitImages
    ) -> dict[Method, Score]:
        """Scores that are ready for `classifier`; one that cannot be made ready is skipped."""
        ready: dict[Method, Score] = {}
        for method in methods:
            score = make_score(method.score)
            try:
                score.prepare(classifier, self.announce(f"{planned.case.name}: preparing {score.spec}"))
                if score.needs_fit:
                    self.score(classifier, score, fit.items, self.model, fit=True)
            except DeltaEnergyError as error:
                self.skip(planned, f"method {method.label}", error)
            else:
                ready[method] = score
        return ready

    def measure(
        self, planned: PlannedCase, classifier: Classifier, score: Score, fit: FitImages
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rows and curves of one cell."""
        taken = fit.taken if score.needs_fit else frozenset()
        closed = [
            scored
            for images in planned.closed
            if (scored := self.scored(planned, classifier, score, images, self.model, taken)) is not None
        ]
        view = in_train_view(self.model) if self.protocol.open_in_train_view else self.model
        opened = [self.scored(planned, classifier, score, images, view, frozenset()) for images in planned.open]
        return measure(closed, [images for images in opened if images is not None], self.protocol)

    def scored(
        self,
        planned: PlannedCase,
        classifier: Classifier,
        score: Score,
        images: ResolvedSet,
        model: Model,
        taken: frozenset[str],
    ) -> ScoredSet | None:
        """A set's scores and predictions, without the images that cannot be read."""
        if images.spec.own_classes:
            other = self.retold(planned, classifier, images)
            if other is None:
                return None
            classifier, score = other, make_score("max-logit")
        items, predicted, values = self.score(classifier, score, images.items, model)
        target_of = {item.id: target for item, target in zip(images.items, images.targets)}
        return ScoredSet(
            images.spec,
            values,
            predicted,
            np.array([target_of[item.id] for item in items], np.int64),
            np.array([item.id not in taken for item in items], bool),
        )

    def retold(self, planned: PlannedCase, classifier: Classifier, images: ResolvedSet) -> Classifier | None:
        """The same classifier with the class names of another data set, where it can be told others."""
        from deltaenergy.classifiers.zero_shot import ZeroShotClassifier

        names = images.classes
        if isinstance(classifier, ZeroShotClassifier):
            return self.zero_shot(names)
        with_classes = getattr(classifier, "with_classes", None)
        if with_classes is None:
            self.skip(planned, f"closed set {images.spec.name}", f"{classifier.kind} cannot be told other class names.")
            return None
        retold: Classifier = with_classes(names)
        return retold

    def score(
        self, classifier: Classifier, score: Score, items: list[ImageItem], model: Model, *, fit: bool = False
    ) -> tuple[list[ImageItem], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Readable images, predicted classes and scores: from stored features, or from the images if it must be."""
        if score.needs_images:
            seen_by = copy.copy(classifier)
            seen_by.model = model
            scored = score_images(seen_by, [score], items, fit=fit, batch_size=self.batch_size)
            return scored.items, scored.predicted, scored.values[score.spec]
        readable, features = self.features.of(items, model)
        scored = score_images(classifier, [score], features, fit=fit)
        return readable, scored.predicted, scored.values[score.spec]

    def skip(self, planned: PlannedCase, what: str, reason: object) -> None:
        """Record something that is not done."""
        skip = Skip(planned.case.name, what, str(reason))
        if skip not in self.summary.skips:
            self.summary.skips.append(skip)


class Features:
    """Features of images, encoded once per model and view into a store under `folder`."""

    def __init__(self, model: Model, folder: Path, batch_size: int, announce: Announce) -> None:
        self.folder, self.batch_size, self.announce = folder, batch_size, announce
        self.rows: dict[str, dict[str, int]] = {}
        self.stores: dict[str, FeatureStore] = {}
        self.unreadable: dict[str, Unreadable] = {}

    def of(self, items: list[ImageItem], model: Model) -> tuple[list[ImageItem], npt.NDArray[np.float32]]:
        """The images that can be read, and their features (N, D)."""
        known = self.rows.get(model.fingerprint, {})
        if any(item.id not in known and item.id not in self.unreadable for item in items):
            self._encode(items, model)
            known = self.rows[model.fingerprint]
        readable = [item for item in items if item.id in known]
        # A copy: what the store gives may be a read-only view of its file.
        return readable, np.array(self.stores[model.fingerprint].take([known[item.id] for item in readable]))

    def _encode(self, items: list[ImageItem], model: Model) -> None:
        from deltaenergy.data.store_writer import build_store

        store = build_store(
            model,
            items,
            self.folder / model.fingerprint[:40],
            batch_size=self.batch_size,
            progress=self.announce("Encoding images"),
        )
        self.stores[model.fingerprint] = store
        self.rows[model.fingerprint] = {name: row for row, name in enumerate(store.ids)}
        self.unreadable.update({image.id: image for image in store.unreadable})


def _record(run: Run, methods: Sequence[Method], seeds: Sequence[int]) -> dict[str, Any]:
    """The run's own record: what was asked for and what was not done."""
    return {
        "benchmark": run.spec.name,
        "title": run.spec.title,
        "spec_hash": run.spec.hash,
        "protocol": run.protocol.name,
        "limit": run.limit,
        "seeds": list(seeds),
        "methods": [method.label for method in methods],
        "model": run.model.describe(),
        "model_fingerprint": run.model.fingerprint,
        "deltaenergy": __version__,
        "skipped": [asdict(skip) for skip in run.summary.skips],
        "unreadable": [asdict(image) for image in run.summary.unreadable],
    }
