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
from deltaenergy.benchmarks.plan import FitImages, PlannedCase, plan
from deltaenergy.benchmarks.protocol import Protocol, Rules, get_protocol, in_train_view
from deltaenergy.benchmarks.results import Cell, Results, Skip
from deltaenergy.benchmarks.rows import BenchmarkRow, chosen_rows
from deltaenergy.benchmarks.sets import DataRoot, template_of
from deltaenergy.benchmarks.spec import OF_DATASET, BenchmarkSpec
from deltaenergy.classifiers.saved import RECORD
from deltaenergy.core.needs import OF_IMAGES, Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, StoredRow, Unreadable
from deltaenergy.errors import DeltaEnergyError, InputError, is_want_of_room
from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.evaluation.run import EvaluationRules, evaluate_sets
from deltaenergy.evaluation.sets import LoadedSet
from deltaenergy.files import check_writable, hash_strings, hash_value, lock_folder
from deltaenergy.files.atomic import is_temporary, remove_litter
from deltaenergy.files.lock import NAME as LOCK
from deltaenergy.models.base import require_towers
from deltaenergy.scores.availability import MOST_PROMPTS
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import Encoded, fit, known_images
from deltaenergy.source import as_source, image_stream
from deltaenergy.stats.metrics import RankedScores
from deltaenergy.store.writer import StoreSettings, fill_store

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.classifiers.methods import Method
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
    run = kind(spec, loaded, results, rules, limit, search, batch_size, announce)
    for skip in skips:
        run.note(skip)
    for case in planned:
        run.case(case)
    run.summary.record = run.record(rows, seeds or spec.seeds, data.partial())
    results.write_run(run.summary.record)
    results.write_tables()
    return run.summary


@dataclass
class Runner:
    """One run over all cases.

    Attributes:
        stored: the features of images in a store of the results folder, by the model's fingerprint and the image's id.
        unreadable: the images that could not be stored.
    """

    spec: BenchmarkSpec
    model: Model
    results: Results
    protocol: Protocol
    limit: int | None
    search: bool
    batch_size: int
    announce: ProgressStage
    summary: Summary = field(default_factory=Summary)
    stored: dict[str, dict[str, StoredRow]] = field(default_factory=dict)
    unreadable: dict[str, Unreadable] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        return self.protocol.rules

    def case(self, planned: PlannedCase) -> None:
        """Compute and write the missing cells of a case."""
        pending = {}
        for row in planned.methods:
            identity = self.identity(planned, row)
            finished = self.results.get(identity["cell"])
            if finished is None:
                pending[row] = identity
            else:
                self.summary.found += 1
                self.remember(finished)
        for cells, seconds in self.measure(planned, pending):
            for cell in cells:
                self.results.add(cell, seconds / len(cells))
                self.summary.computed += 1
                self.remember(cell)

    def measure(
        self, planned: PlannedCase, identities: Mapping[BenchmarkRow, dict[str, Any]]
    ) -> Iterator[tuple[list[Cell], float]]:
        """The cells of each pass over the images and its seconds, one tuner after the other."""
        if any(not make_score(row.score).needs_images for row in identities):
            self.encode(planned)
        groups: defaultdict[tuple[str | None, tuple[str, ...]], list[BenchmarkRow]] = defaultdict(list)
        for row in identities:
            groups[row.tuner, row.templates].append(row)
        for (tuner, _), group in groups.items():
            classifier = None
            with self.skipping(planned.case.name, f"tuner {tuner}" if tuner else "zero-shot"):
                classifier = self.classifier(planned, group[0])
            for rows in passes(group, planned.fit) if classifier is not None else ():
                if ready := self.prepare(planned, classifier, rows):
                    start = time.perf_counter()
                    cells = self.cells(planned, classifier, ready, identities)
                    yield cells, time.perf_counter() - start

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
            self.features_of(closed, self.model)
            self.features_of(opened, in_train_view(self.model))
        else:
            self.features_of([*closed, *opened], self.model)

    def features_of(self, items: list[ImageItem], model: Model) -> list[ImageItem]:
        """The readable images as rows of a store, where they are encoded first if they are new."""
        rows = self.stored.setdefault(model.fingerprint, {})
        if any(item.id not in rows and item.id not in self.unreadable for item in items):
            store = fill_store(
                require_towers(model, "a benchmark"),
                image_stream(items),
                self.results.folder / "features" / model.fingerprint,
                StoreSettings(batch_size=self.batch_size),
                progress=self.announce("Encoding images"),
            )
            ids = store.ids
            rows |= {ids[row]: StoredRow(store, int(row)) for row in store.readable}
            self.unreadable |= {image.id: image for image in store.unreadable}
        return [replace(item, row=rows[item.id]) for item in items if item.id in rows]

    def identity(self, planned: PlannedCase, row: BenchmarkRow) -> dict[str, Any]:
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
            "n_classes": len(planned.names),
            "fitted_on": planned.fit.source if needs_fit else None,
            "images_hash": planned.images_hash,
            "deltaenergy": __version__,
            **{key: value for key, value in self.row_settings(planned, row).items() if value},
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
        return self.tuned(planned, row, row.method)

    def tuned(self, planned: PlannedCase, row: BenchmarkRow, method: Method) -> Classifier:
        """The classifier of a tuner, from the results folder or tuned with checkpoints and written there.

        On validation images the best epoch is kept, and with a search the best of the row's grid.
        """
        from deltaenergy.classifiers.base import Classifier
        from deltaenergy.tuning.prepare import DEFAULT_VIEWS, clear_run_folder, prepare_training
        from deltaenergy.tuning.tune import check_fits, tune

        sample, recipe, search = planned.train, {**dict(self.spec.recipe), **row.recipe}, self.searches(row)
        if sample is None:
            raise InputError(f"{row.label} needs training images.")
        # Without a search nothing is chosen, and the last epoch is kept, unless the protocol chooses it.
        validation = planned.validation if search or self.rules.best_epoch else None
        progress = self.announce(f"{planned.case.name}: tuning {row.tuner}, seed {planned.seed}")
        identity: dict[str, Any] = {
            "model": self.model.fingerprint,
            "classes": planned.names,
            "sample": sample.hash,
            "seed": planned.seed,
            "tuner": method.spec,
            "recipe": recipe,
            "validation": None if validation is None else [item.id for item in validation],
            "search": search,
            "deltaenergy": __version__,
        }
        if search:
            searched = {"grid": row.grids, "fixed": row.fixed(len(planned.names))}
            identity |= {key: value for key, value in searched.items() if value}
        folder = self.results.folder / "tuned"
        whole = folder / hash_value(identity)
        checkpoints = folder / f"{whole.name}.training"
        if not (whole / RECORD).is_file():
            check_fits(method, self.model, planned.names, len(sample.items), recipe)
            needs, views = method.needs_to_train, method.views_of(DEFAULT_VIEWS)
            # The views of a sample are encoded once for all tuners with the same needs.
            seen = "-".join(sorted(need.name.lower() for need in needs))
            cache = folder / f"views-{views}-{sample.hash}-{seen}-{self.model.fingerprint[:16]}"
            tuned = tune(
                self.model,
                planned.names,
                prepare_training(
                    self.model, planned.names, sample, views=views, needs=needs, cache=cache, progress=progress
                ),
                method,
                shots=sample.shots,
                seed=sample.seed,
                recipe=recipe,
                val=validation,
                search=search and sum(1 for _ in method.candidates(len(planned.names))) > 1,
                checkpoints=checkpoints,
                progress=progress,
            )
            tuned.save(whole)
        # Now, or after a run that was killed between its last two steps.
        clear_run_folder(checkpoints)
        if any(path.name == LOCK or is_temporary(path.name) for path in whole.iterdir()):
            with lock_folder(whole):
                remove_litter(whole)
        return Classifier.load(whole, self.model)

    def row_settings(self, planned: PlannedCase, row: BenchmarkRow) -> dict[str, Any]:
        """Settings of a row that its spelling does not show; empty for most rows."""
        batched = row.method is not None and row.method.batch_dependent
        found = {
            "recipe": row.recipe,
            "grid": row.grids,
            "fixed": row.fixed(len(planned.names)) if self.searches(row) else None,
        }
        texts = {key: json.dumps(value, sort_keys=True) for key, value in found.items() if value}
        return {**texts, "batch_size": self.batch_size if batched else None}

    def searches(self, row: BenchmarkRow) -> bool:
        """Whether settings are searched: any grid if requested, else those of the protocol's table."""
        return self.search or (self.rules.search and bool(row.grids))

    def prepare(
        self, planned: PlannedCase, classifier: Classifier, rows: Sequence[BenchmarkRow]
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
                ready[row] = scorer if scorer.fitted else self.fit(scorer, planned.fit.items)
        return ready

    def fit(self, scorer: Scorer, items: list[ImageItem]) -> Scorer:
        """The scorer fitted on some ID images."""
        classifier = scorer.classifier
        # Stored features are rows without labels.
        whole = (classifier.needs_to_predict | scorer.score.needs) & (OF_IMAGES | {Need.LABELS})
        images = items if whole else self.features_of(items, classifier.model)
        encoded = Encoded(classifier, [scorer], as_source(images), batch_size=self.batch_size)
        return fit([scorer], known_images([encoded], [scorer]))[0]

    def cells(
        self,
        planned: PlannedCase,
        classifier: Classifier,
        ready: Mapping[BenchmarkRow, Scorer],
        identities: Mapping[BenchmarkRow, dict[str, Any]],
    ) -> list[Cell]:
        """Evaluate rows of one pass (see `passes`) on all sets of a case."""
        skipped: list[Skip] = []
        score = next(iter(ready.values())).score
        taken = planned.fit.taken if score.needs_fit else frozenset()
        sets = []
        for images in planned.closed:
            own = classifier
            if images.own_classes is not None:
                try:
                    own = classifier.with_classes(images.own_classes)
                except InputError as error:
                    skipped.append(Skip(planned.case.name, f"closed set {images.name}", str(error)))
                    continue
            sets.append(self.set_for(images, own, score, own.model, taken))
        view = in_train_view(classifier.model) if self.rules.open_in_train_view else classifier.model
        sets += [self.set_for(images, classifier, score, view) for images in planned.open]
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

    def set_for(
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
            readable = self.features_of(readable, model)
        found = {item.id for item in readable}
        assert images.labels is not None
        label_of = dict(zip((item.id for item in images.items), images.labels))
        tested = [item for item in readable if item.id not in taken]
        return replace(
            images,
            items=tested,
            labels=np.array([label_of[item.id] for item in tested], np.int64),
            classifier=classifier,
            unreadable=tuple(self.unreadable[item.id] for item in images.items if item.id not in found),
        )

    def record(self, rows: Sequence[BenchmarkRow], seeds: Sequence[int], partial: Mapping[str, str]) -> dict[str, Any]:
        """The run's record: what was requested and what was not done."""
        departures = self.protocol.departures(self.spec, rows)
        return {
            "benchmark": self.spec.name,
            "title": self.spec.title,
            "spec_hash": self.spec.hash,
            "protocol": self.protocol.label,
            # What favours a method; empty for `standard`.
            **({"departures": departures} if departures else {}),
            "limit": self.limit,
            "seeds": list(seeds),
            "methods": [row.label for row in rows],
            "model": self.model.describe(),
            "model_fingerprint": self.model.fingerprint,
            "deltaenergy": __version__,
            # Incomplete datasets: their results are those of a part.
            "partial": dict(sorted(partial.items())),
            # Sorted, because a resumed run meets them in another order.
            "skipped": sorted((asdict(skip) for skip in self.summary.skips), key=lambda skip: sorted(skip.items())),
            "unreadable": [asdict(image) for _, image in sorted(self.summary.unreadable.items())],
        }


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
