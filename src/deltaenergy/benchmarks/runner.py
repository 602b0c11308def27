"""Run a benchmark: every method on every case and seed, each result written as soon as it is done.

    summary = run_benchmark(load_spec("mini"), model, DataRoot(), "results/", methods=["msp", "delta-energy"])

Images are encoded once into a feature store; tuned classifiers are kept. All scores of a classifier share one pass over
the images, except those that need more than features, or encode many words first: these come later. Finished results
are not computed again, so a run can be killed at any moment and resumed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deltaenergy import __version__
from deltaenergy.benchmarks.plan import FitImages, PlannedCase, fit_images, plan
from deltaenergy.benchmarks.protocol import Protocol, Rules, get_protocol, in_train_view
from deltaenergy.benchmarks.results import Cell, Results, Skip
from deltaenergy.benchmarks.rows import BenchmarkRow, chosen_rows
from deltaenergy.benchmarks.sets import DataRoot, template_of
from deltaenergy.benchmarks.spec import OF_DATASET, BenchmarkSpec
from deltaenergy.core.needs import OF_IMAGES, Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, StoredRow, Unreadable
from deltaenergy.errors import DeltaEnergyError, InputError, is_want_of_room
from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.evaluation.run import EvaluationRules, evaluate_sets
from deltaenergy.evaluation.sets import LoadedSet
from deltaenergy.files import check_writable, hash_strings, hash_value
from deltaenergy.models.base import require_towers
from deltaenergy.scores.availability import MOST_PROMPTS
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import Encoded, fit, known_images
from deltaenergy.source import as_source, image_stream
from deltaenergy.stats.metrics import RankedScores
from deltaenergy.store.store import Store
from deltaenergy.store.writer import StoreSettings, fill_store

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.models.base import Model

# Called with the name of a step; returns its progress callback.
ProgressStage = Callable[[str], Progress | None]
ROC_POINTS = 200
QUANTILES = 200


@dataclass
class Summary:
    """What a run did."""

    computed: int = 0
    found: int = 0
    skips: list[Skip] = field(default_factory=list)
    unreadable: dict[str, Unreadable] = field(default_factory=dict)
    # As in RESULTS/runs: what was requested and skipped.
    record: dict[str, Any] = field(default_factory=dict)


def run_benchmark(
    spec: BenchmarkSpec,
    model: Model | Callable[[], Model],
    data: DataRoot,
    out: str | Path,
    *,
    methods: Sequence[str] | None = None,
    protocol: str = "standard",
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    search: bool = False,
    batch_size: int | None = None,
    announce: ProgressStage = lambda _: None,
) -> Summary:
    """Run `spec` and save its results in the folder `out`; arguments are those of the command `bench`.

    `model` may be a function that loads one: it is called after all checks.
    """
    results = Results(out)
    rules = get_protocol(protocol)
    spec = rules.applied_to(spec)
    rows = chosen_rows(spec, methods)
    batch_size = batch_size or spec.batch_size
    check_writable(results.folder, folder=True, argument="out")
    planned, skips = plan(spec, data, rows, seeds or spec.seeds, limit, as_released=rules.as_released)
    loaded = model() if callable(model) else model
    kind: type[Runner] = Runner
    if spec.measures == "cost":
        from deltaenergy.benchmarks.cost import CostRunner

        kind = CostRunner
    features = FeatureCache(results.folder / "features", batch_size, announce)
    run = kind(spec, loaded, results, features, rules, limit, search, batch_size, announce)
    for skip in skips:
        run.note(skip)
    for case in planned:
        run.case(case)
    run.summary.record = _record(run, rows, seeds or spec.seeds, data.partial())
    results.write_run(run.summary.record)
    results.write_tables()
    return run.summary


@dataclass
class Runner:
    """One run over all cases."""

    spec: BenchmarkSpec
    model: Model
    results: Results
    features: FeatureCache
    protocol: Protocol
    limit: int | None
    search: bool
    batch_size: int
    announce: ProgressStage
    summary: Summary = field(default_factory=Summary)

    @property
    def rules(self) -> Rules:
        return self.protocol.rules

    def case(self, planned: PlannedCase) -> None:
        """Compute the missing cells of a case, one tuner after the other."""
        fit = fit_images(planned, self.spec.validation)
        identities = {row: self.identity(planned, row, fit) for row in planned.methods}
        pending = []
        for row, identity in identities.items():
            finished = self.results.get(identity["cell"])
            if finished is None:
                pending.append(row)
            else:
                self.summary.found += 1
                self.remember(finished)
        if any(not make_score(row.score).needs_images for row in pending):
            self.encode(planned)
        groups: defaultdict[tuple[str | None, tuple[str, ...]], list[BenchmarkRow]] = defaultdict(list)
        for row in pending:
            groups[row.tuner, row.templates].append(row)
        for (tuner, _), group in groups.items():
            classifier = None
            with self.skipping(planned.case.name, f"tuner {tuner}" if tuner else "zero-shot"):
                classifier = self.classifier(planned, group[0])
            if classifier is None:
                continue
            for rows in passes(group, fit):
                ready = self.prepare(planned, classifier, rows, fit)
                if not ready:
                    continue
                start = time.perf_counter()
                cells = self.cells({row: identities[row] for row in ready}, planned, classifier, ready, fit)
                seconds = (time.perf_counter() - start) / len(cells)
                for cell in cells:
                    self.results.add(cell, seconds)
                    self.summary.computed += 1
                    self.remember(cell)

    def remember(self, cell: Cell) -> None:
        """Record what a cell could not do."""
        for skip in cell.skipped:
            self.note(skip)
        self.summary.unreadable.update({image.id: image for image in cell.unreadable})

    @contextlib.contextmanager
    def skipping(self, case: str, what: str) -> Iterator[None]:
        """Skip `what` if it fails, unless its results could not be written."""
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
        if self.rules.open_in_train_view:
            self.features.of(closed, self.model)
            self.features.of(opened, in_train_view(self.model))
        else:
            self.features.of([*closed, *opened], self.model)

    def identity(self, planned: PlannedCase, row: BenchmarkRow, fit: FitImages) -> dict[str, Any]:
        """Everything that decides a cell's values, and its hash."""
        import torch

        needs_fit = make_score(row.score).needs_fit
        decides: dict[str, Any] = {
            "benchmark": self.spec.name,
            "spec_hash": self.spec.hash,
            "case": planned.case.name,
            "group": planned.case.group,
            "seed": planned.seed,
            "method": row.label,
            "tuner": row.tuner,
            "score": row.score,
            "protocol": self.protocol.label,
            "limit": self.limit,
            "search": self.searches(row) if row.tuner else None,
            "shots": self.spec.shots if row.tuner or (needs_fit and planned.train) else None,
            "template": "|".join(self.templates(planned, row)),
            "model_fingerprint": self.model.fingerprint,
            "classes_hash": hash_strings(planned.names),
            "n_classes": len(planned.classes),
            "fitted_on": fit.source if needs_fit else None,
            "images_hash": planned.images_hash,
            "deltaenergy": __version__,
            **{key: value for key, value in self.told(planned, row).items() if value},
        }
        return {**decides, "model": self.model.name, "torch": torch.__version__, "cell": hash_value(decides)}

    def templates(self, planned: PlannedCase, row: BenchmarkRow) -> tuple[str, ...]:
        """The prompts of a row's zero-shot classifier."""
        own = planned.case.dataset if self.spec.template == OF_DATASET else None
        return row.templates or (template_of(own) if own else self.spec.template,)

    def classifier(self, planned: PlannedCase, row: BenchmarkRow) -> Classifier:
        """Zero-shot, or tuned on the case's few images (saved in the results folder)."""
        if row.method is None:
            from deltaenergy.classifiers.zero_shot import ZeroShotClassifier

            return ZeroShotClassifier(self.model, planned.names, templates=self.templates(planned, row))
        from deltaenergy.benchmarks.tuned import tuned_classifier

        # Without a search nothing is chosen, and the last epoch is kept, unless the protocol chooses it.
        choose = self.searches(row) or self.rules.best_epoch
        return tuned_classifier(
            self.model,
            planned,
            row,
            {**dict(self.spec.recipe), **row.recipe},
            self.results.folder / "tuned",
            self.announce(f"{planned.case.name}: tuning {row.tuner}, seed {planned.seed}"),
            validation=planned.validation if choose else None,
            search=self.searches(row),
        )

    def told(self, planned: PlannedCase, row: BenchmarkRow) -> dict[str, Any]:
        """Settings of a row that its spelling does not show; empty for most rows."""
        batched = row.method is not None and row.method.batch_dependent
        found = {
            "recipe": row.recipe,
            "grid": row.grids,
            "fixed": row.fixed(len(planned.classes)) if self.searches(row) else None,
        }
        texts = {key: json.dumps(value, sort_keys=True) for key, value in found.items() if value}
        return {**texts, "batch_size": self.batch_size if batched else None}

    def searches(self, row: BenchmarkRow) -> bool:
        """Whether settings are searched: any grid if requested, else those of the protocol's table."""
        return self.search or (self.rules.search and bool(row.grids))

    def prepare(
        self, planned: PlannedCase, classifier: Classifier, rows: Sequence[BenchmarkRow], fit: FitImages
    ) -> dict[BenchmarkRow, Scorer]:
        """Scorers ready for `classifier`; those that fail are skipped."""
        ready: dict[BenchmarkRow, Scorer] = {}
        for row in rows:
            score = make_score(row.score)
            with self.skipping(planned.case.name, f"method {row.label}"):
                progress = None
                if score.prompts:
                    progress = self.announce(f"{planned.case.name}: encoding {score.prompts:,} prompts of {score.spec}")
                scorer = score.bind(classifier, progress)
                ready[row] = scorer if scorer.fitted else self.fit(scorer, fit.items)
        return ready

    def fit(self, scorer: Scorer, items: list[ImageItem]) -> Scorer:
        """The scorer fitted on some ID images."""
        classifier = scorer.classifier
        # Stored features are rows without labels.
        whole = (classifier.needs_to_predict | scorer.score.needs) & (OF_IMAGES | {Need.LABELS})
        images = items if whole else self.features.of(items, classifier.model)
        encoded = Encoded(classifier, [scorer], as_source(images), batch_size=self.batch_size)
        return fit([scorer], known_images([encoded], [scorer]))[0]

    def cells(
        self,
        identities: Mapping[BenchmarkRow, dict[str, Any]],
        planned: PlannedCase,
        classifier: Classifier,
        ready: Mapping[BenchmarkRow, Scorer],
        fit: FitImages,
    ) -> list[Cell]:
        """Evaluate rows of one pass (see `passes`) on all sets of a case."""
        skipped: list[Skip] = []
        score = next(iter(ready.values())).score
        taken = fit.taken if score.needs_fit else frozenset()
        sets = []
        for images in planned.closed:
            told = classifier
            if images.own_classes is not None:
                try:
                    told = classifier.with_classes(images.own_classes)
                except InputError as error:
                    skipped.append(Skip(planned.case.name, f"closed set {images.name}", str(error)))
                    continue
            sets.append(self.seen(images, told, score, told.model, taken))
        view = in_train_view(classifier.model) if self.rules.open_in_train_view else classifier.model
        sets += [self.seen(images, classifier, score, view) for images in planned.open]
        evaluation = evaluate_sets(
            classifier,
            list(ready.values()),
            sets,
            EvaluationRules(
                resamples=0,
                batch_size=self.batch_size,
                by_name=False,
                correct_only=self.rules.correct_only,
                pooled=False,
                allow_empty=True,
            ),
            progress=self.announce(f"{planned.case.name}: {', '.join(row.label for row in ready)}"),
        )
        unreadable = tuple({image.id: image for image in evaluation.unreadable}.values())
        return [
            Cell(identities[row], *cell_rows(evaluation, scorer.spec), tuple(skipped), unreadable)
            for row, scorer in ready.items()
        ]

    def seen(
        self,
        images: LoadedSet,
        classifier: Classifier,
        score: Score,
        model: Model,
        taken: frozenset[str] = frozenset(),
    ) -> LoadedSet:
        """A set for `classifier` and `model`, without the images that are `taken`.

        Stored features are used, unless classifier or score need the images.
        """
        readable = list(images.items)
        if model is not classifier.model:
            classifier = classifier.seen_through(model)
        if not (classifier.needs_to_predict & OF_IMAGES or (images.own_classes is None and score.needs_images)):
            readable = self.features.of(readable, model)
        found = {item.id for item in readable}
        assert images.labels is not None
        label_of = dict(zip((item.id for item in images.items), images.labels))
        tested = [item for item in readable if item.id not in taken]
        return replace(
            images,
            items=tested,
            labels=np.array([label_of[item.id] for item in tested], np.int64),
            classifier=classifier,
            unreadable=tuple(self.features.unreadable[item.id] for item in images.items if item.id not in found),
        )


def passes(rows: Sequence[BenchmarkRow], fit: FitImages) -> list[list[BenchmarkRow]]:
    """Rows of one classifier that can share a pass over the images, those that encode many words first at the end.

    They need the same parts of an image, and the same images: scores may be fitted on test images.
    """
    groups: defaultdict[tuple[bool, tuple[Need, ...], bool], list[BenchmarkRow]] = defaultdict(list)
    for row in rows:
        score = make_score(row.score)
        key = score.prompts > MOST_PROMPTS, tuple(sorted(score.needs & OF_IMAGES)), score.needs_fit and bool(fit.taken)
        groups[key].append(row)
    return [groups[key] for key in sorted(groups)]


class FeatureCache:
    """Features of images, encoded once per model and view into a store under `folder`."""

    def __init__(self, folder: Path, batch_size: int, announce: ProgressStage) -> None:
        self.folder, self.batch_size, self.announce = folder, batch_size, announce
        self.rows: dict[str, dict[str, int]] = {}
        self.stores: dict[str, Store] = {}
        self.unreadable: dict[str, Unreadable] = {}

    def of(self, items: list[ImageItem], model: Model) -> list[ImageItem]:
        """The readable images, as items of the model's store."""
        known = self.rows.get(model.fingerprint, {})
        if any(item.id not in known and item.id not in self.unreadable for item in items):
            self._encode(items, model)
            known = self.rows[model.fingerprint]
        store = self.stores[model.fingerprint]
        return [replace(item, row=StoredRow(store, known[item.id])) for item in items if item.id in known]

    def _encode(self, items: list[ImageItem], model: Model) -> None:
        store = fill_store(
            require_towers(model, "a benchmark"),
            image_stream(items),
            self.folder / model.fingerprint,
            StoreSettings(batch_size=self.batch_size),
            progress=self.announce("Encoding images"),
        )
        self.stores[model.fingerprint] = store
        ids = store.ids
        self.rows[model.fingerprint] = {ids[row]: int(row) for row in store.readable}
        self.unreadable.update({image.id: image for image in store.unreadable})


def cell_rows(evaluation: Evaluation, score: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For one score: accuracy per closed set, detection per pair of sets, and the pairs' curves."""
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for one in evaluation.sets:
        if one.group is Group.OPEN:
            continue
        base = {"closed": one.name, "kind": one.group.name.lower()}
        for found in evaluation.accuracy:
            if (found.set, found.group) == (one.name, one.group):
                accuracy = {"open": None, "metric": "accuracy", "value": found.accuracy.value}
                rows.append({**base, **accuracy, "n_closed": found.images, "n_open": 0})
        for pair in evaluation.detection:
            if (pair.score, pair.closed, pair.closed_group) != (score, one.name, one.group):
                continue
            counts = {"n_closed": pair.closed_images, "n_open": pair.open_images}
            for name, estimate in pair.metrics.items():
                rows.append({**base, "open": pair.open, "metric": name, "value": estimate.value, **counts})
            known, unknown = evaluation.pair(pair)
            sketches = {"closed_scores": sketch(known), "open_scores": sketch(unknown)}
            curves.append({**base, "open": pair.open, **_roc(evaluation.ranked(pair)), **sketches})
    return rows, curves


def _roc(ranked: RankedScores) -> dict[str, Any]:
    curve = ranked.roc_curve()
    chosen = np.unique(np.linspace(0, len(curve.id_kept) - 1, ROC_POINTS).round().astype(int))
    return {"ood_kept": curve.ood_kept[chosen].tolist(), "id_kept": curve.id_kept[chosen].tolist()}


def sketch(values: npt.NDArray[np.float64]) -> list[float]:
    """The distribution in at most `QUANTILES` numbers: all values, or evenly spaced quantiles."""
    if len(values) <= QUANTILES:
        return [float(value) for value in np.sort(values)]
    return [float(value) for value in np.quantile(values, np.linspace(0, 1, QUANTILES))]


def _record(
    run: Runner, rows: Sequence[BenchmarkRow], seeds: Sequence[int], partial: Mapping[str, str]
) -> dict[str, Any]:
    """The run's record: what was requested and what was not done."""
    departures = run.protocol.departures(run.spec, rows)
    return {
        "benchmark": run.spec.name,
        "title": run.spec.title,
        "spec_hash": run.spec.hash,
        "protocol": run.protocol.label,
        # What favours a method; empty for `standard`.
        **({"departures": departures} if departures else {}),
        "limit": run.limit,
        "seeds": list(seeds),
        "methods": [row.label for row in rows],
        "model": run.model.describe(),
        "model_fingerprint": run.model.fingerprint,
        "deltaenergy": __version__,
        # Incomplete datasets: their results are those of a part.
        "partial": dict(sorted(partial.items())),
        # Sorted, because a resumed run meets them in another order.
        "skipped": sorted((asdict(skip) for skip in run.summary.skips), key=lambda skip: sorted(skip.items())),
        "unreadable": [asdict(image) for _, image in sorted(run.summary.unreadable.items())],
    }
