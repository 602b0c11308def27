"""Run a benchmark: every method on every case and seed, each result written as soon as it is there.

    summary = run_benchmark(load_spec("mini"), model, DataRoot(), "results/", methods=["msp", "delta-energy"])

Images are encoded once into a feature store; tuned classifiers are kept. Whatever is in the results folder is not
computed again, so that a run can be killed at any moment and gone on with.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy import __version__
from deltaenergy.benchmarks.cells import cell_rows
from deltaenergy.benchmarks.features import Announce, Features
from deltaenergy.benchmarks.methods import Method
from deltaenergy.benchmarks.plan import FitImages, PlannedCase, fit_images, plan, validation_images
from deltaenergy.benchmarks.protocol import Protocol, get_protocol, in_train_view
from deltaenergy.benchmarks.results import Cell, Results, Skip
from deltaenergy.benchmarks.rows import chosen_methods
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.benchmarks.spec import BenchmarkSpec
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import DeltaEnergyError, InputError, is_want_of_room
from deltaenergy.evaluation.run import evaluate_sets
from deltaenergy.evaluation.sets import LoadedSet
from deltaenergy.files import hash_strings, hash_value
from deltaenergy.scores.base import Scorer
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import OF_IMAGES, fit_scorers

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.models.base import Model


@dataclass
class Summary:
    """What a run did."""

    computed: int = 0
    found: int = 0
    skips: list[Skip] = field(default_factory=list)
    unreadable: dict[str, Unreadable] = field(default_factory=dict)
    # As in RESULTS/runs: what was asked for and what was skipped.
    record: dict[str, Any] = field(default_factory=dict)


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
    chosen = chosen_methods(spec, methods)
    planned, skips = plan(spec, data, chosen, seeds or spec.seeds, limit)
    kind: type[Run] = Run
    if spec.measures == "cost":
        from deltaenergy.benchmarks.cost import CostRun

        kind = CostRun
    features = Features(Path(store) if store else results.folder / "features", batch_size, announce)
    settings = Settings(get_protocol(protocol), limit, search, batch_size, announce)
    run = kind(spec, model, results, features, settings)
    for skip in skips:
        run.note(skip)
    for case in planned:
        run.case(case)
    run.summary.record = _record(run, chosen, seeds or spec.seeds, data.partial())
    results.write_run(run.summary.record)
    results.write_tables()
    return run.summary


@dataclass(frozen=True)
class Settings:
    """How a run was asked to go."""

    protocol: Protocol
    limit: int | None
    search: bool
    batch_size: int
    announce: Announce


class Run:
    """One run: it goes through the cases and fills the results."""

    def __init__(
        self, spec: BenchmarkSpec, model: Model, results: Results, features: Features, settings: Settings
    ) -> None:
        self.spec, self.model, self.results, self.features = spec, model, results, features
        self.protocol, self.limit, self.search = settings.protocol, settings.limit, settings.search
        self.batch_size, self.announce = settings.batch_size, settings.announce
        self.summary = Summary()

    def case(self, planned: PlannedCase) -> None:
        """Compute the cells of a case that are not there yet, one tuner after the other."""
        fit = fit_images(planned, self.protocol)
        cells = {method: self.identity(planned, method, fit) for method in planned.methods}
        pending = []
        for method, identity in cells.items():
            finished = self.results.get(identity["cell"])
            if finished is None:
                pending.append(method)
            else:
                self.summary.found += 1
                self.remember(finished)
        if any(not make_score(method.score).needs_images for method in pending):
            self.encode(planned)
        for tuner in dict.fromkeys(method.tuner for method in pending):
            mine = [method for method in pending if method.tuner == tuner]
            classifier = None
            with self.skipping(planned.case.name, f"tuner {tuner}" if tuner else "zero-shot"):
                classifier = self.classifier(planned, tuner)
            if classifier is None:
                continue
            prepared = self.prepare(planned, classifier, mine, fit)
            for method, scorer in prepared.items():
                start = time.perf_counter()
                cell = self.cell(cells[method], planned, classifier, scorer, fit)
                self.results.add(cell, time.perf_counter() - start)
                self.summary.computed += 1
                self.remember(cell)

    def remember(self, cell: Cell) -> None:
        """Take over what a cell, found or computed, could not do."""
        for skip in cell.skipped:
            self.note(skip)
        self.summary.unreadable.update({image.id: image for image in cell.unreadable})

    @contextlib.contextmanager
    def skipping(self, case: str, what: str) -> Iterator[None]:
        """Go on without `what` if it cannot be done. That its results cannot be written is no such reason."""
        try:
            yield
        except DeltaEnergyError as error:
            if is_want_of_room(error):
                raise
            self.note(Skip(case, what, str(error)))

    def note(self, skip: Skip) -> None:
        """Record something that is not done, once."""
        if skip not in self.summary.skips:
            self.summary.skips.append(skip)

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
    ) -> dict[Method, Scorer]:
        """Scorers that are ready for `classifier`; one that cannot be made ready is skipped."""
        ready: dict[Method, Scorer] = {}
        for method in methods:
            score = make_score(method.score)
            with self.skipping(planned.case.name, f"method {method.label}"):
                scorer = score.bind(classifier, self.announce(f"{planned.case.name}: preparing {score.spec}"))
                ready[method] = scorer if scorer.fitted else self.fit(scorer, fit.items)
        return ready

    def fit(self, scorer: Scorer, items: list[ImageItem]) -> Scorer:
        """The scorer fitted on some ID images."""
        classifier = scorer.classifier
        # Stored features are rows without labels.
        whole = needs_images(scorer) or Need.LABELS in scorer.score.needs
        images: Any = items if whole else self.features.of(items, classifier.model)
        return fit_scorers(classifier, [scorer], images, batch_size=self.batch_size)[0]

    def cell(
        self, identity: dict[str, Any], planned: PlannedCase, classifier: Classifier, scorer: Scorer, fit: FitImages
    ) -> Cell:
        """Evaluate one method on all sets of a case."""
        skipped: list[Skip] = []
        taken = fit.taken if scorer.score.needs_fit else frozenset()
        sets = []
        for images in planned.closed:
            told = classifier
            if images.own_classes is not None:
                try:
                    told = classifier.with_classes(images.own_classes)
                except InputError as error:
                    skipped.append(Skip(planned.case.name, f"closed set {images.name}", str(error)))
                    continue
            sets.append(self.seen(images, told, scorer, told.model, taken))
        view = in_train_view(classifier.model) if self.protocol.open_in_train_view else classifier.model
        sets += [self.seen(images, classifier, scorer, view) for images in planned.open]
        evaluation = evaluate_sets(
            classifier,
            [scorer],
            sets,
            by_name=False,
            correct_only=self.protocol.correct_only,
            pooled=False,
            resamples=0,
            batch_size=self.batch_size,
            allow_empty=True,
        )
        rows, curves = cell_rows(evaluation)
        unreadable = {image.id: image for image in evaluation.unreadable}
        return Cell(identity, rows, curves, tuple(skipped), tuple(unreadable.values()))

    def seen(
        self,
        images: LoadedSet,
        classifier: Classifier,
        scorer: Scorer,
        model: Model,
        taken: frozenset[str] = frozenset(),
    ) -> LoadedSet:
        """A set as `classifier` sees it through `model`, without the images that are `taken`.

        Stored features are used, unless classifier or score look at the images themselves.
        """
        readable = list(images.items)
        if model is not classifier.model:
            classifier = classifier.seen_through(model)
        if not (classifier.needs_to_predict & OF_IMAGES or (images.own_classes is None and scorer.score.needs_images)):
            readable = self.features.of(readable, model)
        found = {item.id for item in readable}
        assert images.labels is not None
        label_of = dict(zip((item.id for item in images.items), images.labels))
        rows = [i for i, item in enumerate(readable) if item.id not in taken]
        return replace(
            images,
            items=[readable[i] for i in rows],
            labels=np.array([label_of[readable[i].id] for i in rows], np.int64),
            classifier=classifier,
            unreadable=tuple(self.features.unreadable[item.id] for item in images.items if item.id not in found),
        )


def needs_images(scorer: Scorer) -> bool:
    """Whether stored features are not enough for a scorer and its classifier."""
    return bool((scorer.classifier.needs_to_predict | scorer.score.needs) & OF_IMAGES)


def _record(run: Run, methods: Sequence[Method], seeds: Sequence[int], partial: Mapping[str, str]) -> dict[str, Any]:
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
        # Data sets of which only a part is there: their figures are those of a part.
        "partial": dict(sorted(partial.items())),
        # Sorted, because a run that is gone on with meets them in another order.
        "skipped": sorted((asdict(skip) for skip in run.summary.skips), key=lambda skip: sorted(skip.items())),
        "unreadable": [asdict(image) for _, image in sorted(run.summary.unreadable.items())],
    }
