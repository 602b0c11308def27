"""The one way through: images -> features -> similarities -> scores, batch by batch, for any number of scores at once.

`stream_scores` holds one batch at a time, whatever the number of images; `score_images` collects its batches, and
cross-fits scores. Images are encoded once for all scores.

A score that learned from an image finds it more in-distribution than any new one: the nearest neighbour of an image
is the image itself. So scores that learn from known images are cross-fitted where these images are also scored
(`CrossFitted`): the images are dealt into folds, and each is scored by a scorer that learned from the other folds.

A row's score must not depend on how many others came with it. Where the number of rows is odd, processors compute the
last few of a product in another way, and round otherwise; so every block of features is filled up to a multiple of
`EVEN` rows. Towers, and scores that look at patches or pixels, see the batch as it is: filling it up would cost as much
as so many more images.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.core.growing import GrowingArray
from deltaenergy.core.labels import class_indices
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError
from deltaenergy.models.base import require_towers
from deltaenergy.models.encoding import STORED_BATCH, EncodedBatch
from deltaenergy.models.features import check_features, is_feature_array
from deltaenergy.scores.arrays import EVEN, even
from deltaenergy.scores.availability import check_runnable, given_by
from deltaenergy.scores.base import FoldScorer, Score, ScoreInputs, Scorer
from deltaenergy.store.items import StorePass, names_a_store, pass_over

if TYPE_CHECKING:
    import numpy.typing as npt

# Similarities of one block (float32) take 16 MB: large enough that overheads vanish.
BLOCK_ENTRIES = 4_194_304
OF_IMAGES = frozenset({Need.PATCHES, Need.STATES, Need.PIXELS})
FOLDS = 5


def deal_folds(labels: Sequence[str | int | None], *, measured: bool = True) -> npt.NDArray[np.int64]:
    """The fold of each of N images, 0 … min(5, N) − 1: at random with a fixed seed, and apart for each class.

    The folds of a class differ in size by at most one image, and so do the folds as a whole. Images without a label
    count as one more class. A single image has no other to learn from: an error, unless nothing is `measured` on it.
    """
    count = len(labels)
    if count < 2 and measured:
        raise InputError(
            f"A score that learns from known images needs at least 2, to be measured on others, got {count}: give more "
            "images, or use a score that does not learn."
        )
    code_of = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([code_of[label] for label in labels])
    shuffled = np.random.default_rng(0).permutation(count)
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    folds = np.empty(count, dtype=np.int64)
    folds[by_class] = np.arange(count) % min(FOLDS, count)
    return folds


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """A score that learned from known images, in such a way that it can be measured on the same images.

    Each known image is scored by the scorer of its fold, which has not seen it. A new image has been seen by none of
    them, and is scored by one alone: new images take turns, the image in row i with scorer i mod F. So where known and
    new images are alike, their scores are as well (an AUROC of 50 % is expected). The mean of all scorers would not do:
    it varies less than the score of one scorer, which known images have.

    Attributes:
        folds: for each known image the position of the scorer that has not seen it.
        scorers: one for each fold, fitted on images of the other folds.
    """

    folds: npt.NDArray[np.int64]
    scorers: tuple[Scorer, ...]

    @property
    def score(self) -> Score:
        """What all of them compute."""
        return self.scorers[0].score

    @property
    def spec(self) -> str:
        """That of the score: what results are called."""
        return self.score.spec

    @property
    def classifier(self) -> Classifier:
        """What all of them are bound to."""
        return self.scorers[0].classifier

    def folds_of(self, rows: range, *, known: bool) -> npt.NDArray[np.int64]:
        """Positions of the scorers for some rows of the known images, or of new ones."""
        return self.folds[rows.start : rows.stop] if known else np.arange(rows.start, rows.stop) % len(self.scorers)


AnyScorer = Scorer | CrossFitted


def cross_fit(
    scorer: Scorer, known: ScoreInputs, folds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64] | None = None
) -> CrossFitted:
    """The scorer, fitted once for each fold, on the images of all other folds.

    `known` holds the images in order, or only the `rows` of them that the score is to learn from.
    """
    of_known = folds if rows is None else folds[rows]
    with torch.inference_mode():
        fitted = (
            scorer.fit(known.take(np.flatnonzero((of_known != fold) | (len(of_known) < 2)).tolist()))
            for fold in range(1 + int(folds.max()))
        )
        return CrossFitted(folds, tuple(fitted))


@dataclass(frozen=True)
class Scored:
    """What was found for N images. Row i of every array belongs to `items[i]`.

    Attributes:
        items: the images that were read; empty where they were not to be kept.
        unreadable: those that were not, and why.
        predicted: position of the most similar class.
        confidence: softmax probability of that class at the model's own temperature.
        values: by the `spec` of each score.
        features: unit features (N, D), where they were asked for.
        similarity: that of the most similar class, of a batch or with the features.
        top, top_confidence: positions and probabilities of the most similar classes (N, k), best first, where several
            were asked for.
        scorers: by spec, with what they were fitted to; cross-fitted, if it was these images.
        by_fold: by spec of a `FoldScorer`, what each of its folds says (N, F); its value is their mean.
    """

    items: Sequence[ImageItem]
    unreadable: list[Unreadable]
    predicted: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]
    values: dict[str, npt.NDArray[np.float64]]
    features: npt.NDArray[np.float32] | None = None
    scorers: Mapping[str, AnyScorer] = field(default_factory=dict)
    top: npt.NDArray[np.int64] | None = None
    top_confidence: npt.NDArray[np.float32] | None = None
    similarity: npt.NDArray[np.float32] | None = None
    by_fold: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def take(self, rows: npt.NDArray[np.int64]) -> Scored:
        """Some of the images that were read; `unreadable` stays whole."""
        return replace(
            self,
            items=[self.items[row] for row in rows],
            predicted=self.predicted[rows],
            confidence=self.confidence[rows],
            values={spec: values[rows] for spec, values in self.values.items()},
            features=None if self.features is None else self.features[rows],
            similarity=None if self.similarity is None else self.similarity[rows],
            top=None if self.top is None else self.top[rows],
            top_confidence=None if self.top_confidence is None else self.top_confidence[rows],
            scorers={
                spec: replace(one, folds=one.folds[rows]) if isinstance(one, CrossFitted) else one
                for spec, one in self.scorers.items()
            },
            by_fold={spec: values[rows] for spec, values in self.by_fold.items()},
        )


NOTHING_SCORED = Scored([], [], np.zeros(0, np.int64), np.zeros(0, np.float32), {})


def stream_scores(
    classifier: Classifier,
    scores: Sequence[Score | AnyScorer],
    images: Any,
    *,
    keep_features: bool = False,
    top_k: int = 1,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """Classify and score images (or unit features), batch by batch; memory does not grow with their number.

    Scores that are fitted on ID data must be: give their scorers; for cross-fitted ones these are new images. Others
    may be given as they are. With `top_k` above 1, that many of the most similar classes are told of each image, or all
    if there are fewer.
    """
    scorers = _ready(classifier, scores, images)
    for scorer in scorers:
        if isinstance(scorer, Scorer):
            scorer.check_fitted()
    batches = _encoded(classifier, scorers, images, batch_size, progress)
    return _score_batches(classifier, scorers, batches, keep_features=keep_features, top_k=top_k)


def _score_batches(
    classifier: Classifier,
    scorers: Sequence[AnyScorer],
    batches: Iterable[EncodedBatch],
    *,
    keep_features: bool = False,
    top_k: int = 1,
    known: bool = False,
) -> Iterator[Scored]:
    """What is found for each batch; `known` are all images that scorers were cross-fitted on, in the same order."""
    row = 0
    for batch in batches:
        scored, _ = _score_batch(
            classifier, scorers, batch, keep_features=keep_features, top_k=top_k, first_row=row, known=known
        )
        yield scored
        row += len(batch.items)


def score_images(
    classifier: Classifier,
    scores: Sequence[Score | AnyScorer],
    images: Any,
    *,
    fit: bool = False,
    measured: bool = True,
    labels: Sequence[str | None] | None = None,
    learn_every: int = 1,
    keep_features: bool = False,
    keep_items: bool = True,
    expected: int = 0,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Scored:
    """All that `stream_scores` finds, in one. Where about so many images are `expected`, arrays need not be moved.

    With `fit`, scores that must learn from ID data, and have not yet, are cross-fitted on these images, or on every so
    many of them (`learn_every`): the values are those by scorers that have not seen the image, and `scorers` has what
    was fitted. A single image is an error then, unless its value is not to be `measured`. Folds are dealt by the
    images' `labels`, which rows of features may be given. What scores learn from is held in memory.
    """
    scorers = _ready(classifier, scores, images)
    late = [scorer for scorer in scorers if fit and isinstance(scorer, Scorer) and not scorer.fitted]
    if late:
        return _fit_and_score(
            classifier,
            scorers,
            late,
            images,
            measured,
            labels,
            learn_every,
            keep_features,
            keep_items,
            expected,
            batch_size,
            progress,
        )
    batches = stream_scores(
        classifier, scorers, images, keep_features=keep_features, batch_size=batch_size, progress=progress
    )
    return _join(classifier, scorers, batches, keep_features=keep_features, keep_items=keep_items, expected=expected)


def fit_scorers(
    classifier: Classifier, scores: Sequence[Score | Scorer], images: Any, *, batch_size: int = 32
) -> list[Scorer]:
    """Scorers that are ready for other images: those that must learn from ID data have learned from all of these."""
    check_runnable(scores, given_by([images], classifier))
    scorers = bind_all(classifier, scores)
    lesson = _Lesson(classifier, [scorer for scorer in scorers if not scorer.fitted])
    for batch in _encoded(classifier, scorers, images, batch_size, None):
        lesson.add(batch.items, _score_batch(classifier, [], batch, keep_features=False)[1])
    if not lesson.rows:
        raise InputError(f"No image could be read for {lesson.who} to learn from.")
    known = lesson.whole()
    with torch.inference_mode():
        return [scorer if scorer.fitted else scorer.fit(known) for scorer in scorers]


@overload
def bind_all(classifier: Classifier, scores: Iterable[Score | Scorer]) -> list[Scorer]: ...
@overload
def bind_all(classifier: Classifier, scores: Iterable[Score | AnyScorer]) -> list[AnyScorer]: ...
def bind_all(classifier: Classifier, scores: Iterable[Score | AnyScorer]) -> Sequence[AnyScorer]:
    """Scores bound to `classifier`; scorers must be so already."""
    scorers = [score.bind(classifier) if isinstance(score, Score) else score for score in scores]
    for scorer in scorers:
        if scorer.classifier is not classifier:
            raise InputError(f"The scorer {scorer.spec!r} is bound to another classifier: bind its score to this one.")
    return scorers


def _ready(classifier: Classifier, scores: Sequence[Score | AnyScorer], images: Any) -> list[AnyScorer]:
    """The scores bound to `classifier`, if all of them can run on these images."""
    plain = [score.scorers[0] if isinstance(score, CrossFitted) else score for score in scores]
    check_runnable(plain, given_by([images], classifier))
    return bind_all(classifier, scores)


class _Lesson:
    """What `scorers` learn from, collected batch by batch: of every so many images one, in order."""

    def __init__(self, classifier: Classifier, scorers: Sequence[Scorer], every: int = 1) -> None:
        self.needs = frozenset[Need]().union(*(scorer.score.needs for scorer in scorers))
        self.who = ", ".join(scorer.spec for scorer in scorers)
        self.rows = 0
        self._labels: list[str | None] = []
        self._items: list[ImageItem] = []
        self._classifier, self._scorers, self._every = classifier, scorers, every
        self._parts: list[ScoreInputs] = []

    def add(self, items: Sequence[ImageItem], inputs: Iterable[ScoreInputs]) -> None:
        """The images of one batch."""
        teaching = items[-self.rows % self._every :: self._every]
        self._labels += [item.label if item.label is None else sys.intern(item.label) for item in teaching]
        # What they do not ask for would pile up.
        self._items += teaching if Need.LABELS in self.needs else []
        patches, pixels = Need.PATCHES in self.needs, Need.PIXELS in self.needs
        for one in inputs:
            count = len(one.features)
            chosen = one if self._every == 1 else one.take(list(range(-self.rows % self._every, count, self._every)))
            self.rows += count
            chosen = replace(chosen, patches=chosen.patches if patches else None, outputs=None)
            self._parts.append(replace(chosen, pixels=chosen.pixels if pixels else None))

    def whole(self) -> ScoreInputs:
        """All of it, with the classes of the images where a score learns from these; the parts are let go."""
        known = ScoreInputs.join(self._parts)
        self._parts.clear()
        if Need.LABELS not in self.needs:
            return known
        who = ", ".join(scorer.spec for scorer in self._scorers if Need.LABELS in scorer.score.needs)
        labels = class_indices(self._items, self._classifier.classes, f"{who} learns from classes")
        return replace(known, labels=torch.tensor(labels))

    def folds(
        self, labels: Sequence[str | None] | None, measured: bool
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The fold of each image, and the rows that scores learn from.

        These are dealt by class. All others were seen by no scorer, and take turns as new images do.
        """
        rows = np.arange(0, self.rows, self._every)
        dealt = deal_folds(self._labels if labels is None else labels[:: self._every], measured=measured)
        folds = np.arange(self.rows) % (1 + int(dealt.max()))
        folds[rows] = dealt
        return folds, rows


def _fit_and_score(
    classifier: Classifier,
    scorers: list[AnyScorer],
    late: list[Scorer],
    images: Any,
    measured: bool,
    labels: Sequence[str | None] | None,
    learn_every: int,
    keep_features: bool,
    keep_items: bool,
    expected: int,
    batch_size: int,
    progress: Progress | None,
) -> Scored:
    """One pass over the images for all scores but the `late` ones, which then learn from what it found."""
    lesson = _Lesson(classifier, late, learn_every)
    now = [scorer for scorer in scorers if scorer not in late]
    # A store is read again; of images, features are held, for that is cheaper than to encode them again.
    hold = keep_features or not names_a_store(images)

    def batches() -> Iterator[Scored]:
        for batch in _encoded(classifier, scorers, images, batch_size, progress):
            scored, inputs = _score_batch(classifier, now, batch, keep_features=hold, first_row=lesson.rows)
            lesson.add(batch.items, inputs)
            yield scored

    first = _join(classifier, now, batches(), keep_features=hold, keep_items=keep_items, expected=expected)
    if not lesson.rows:  # no image could be read
        return replace(first, values={scorer.spec: np.zeros(0) for scorer in scorers})
    folds, rows = lesson.folds(labels, measured)
    known = lesson.whole()
    fitted = [cross_fit(scorer, known, folds, rows) for scorer in late]
    del known
    # Where features are at hand, only patches and pixels must be looked at again.
    if not hold or (lesson.needs | classifier.needs_to_predict) & OF_IMAGES:
        again = _encoded(classifier, fitted, images, batch_size, None)
    else:
        again = _rows_of_features(classifier, first.features, None)
    scored_again = _score_batches(classifier, fitted, again, known=True)
    second = _join(classifier, fitted, scored_again, keep_features=False, keep_items=False, expected=expected)
    values, used = {**first.values, **second.values}, {**first.scorers, **second.scorers}
    return replace(
        first,
        values={scorer.spec: values[scorer.spec] for scorer in scorers},
        features=first.features if keep_features else None,
        scorers={scorer.spec: used[scorer.spec] for scorer in scorers},
    )


def score_inputs(
    scorers: Sequence[AnyScorer], inputs: ScoreInputs, *, known: bool = False
) -> dict[str, npt.NDArray[np.float64]]:
    """Scores by spec from similarities and features that are at hand, a block of rows at a time.

    `known` are all images that the scorers were cross-fitted on, in the same order.
    """
    size = rows_of_block(inputs.similarities.shape[1])
    starts = range(0, len(inputs.features), size)
    blocks = [inputs.take(slice(start, start + size)) for start in starts]
    values = {}
    with torch.inference_mode():
        for scorer in scorers:
            found = [_apply(scorer, block, None, start, known=known) for start, block in zip(starts, blocks)]
            values[scorer.spec] = _array(found, np.float64)
    return values


def score_encoded(
    classifier: Classifier, scorers: Sequence[Scorer], batch: EncodedBatch
) -> tuple[Scored, torch.Tensor]:
    """What is found for images that are encoded already, and their similarities (N, K)."""
    scored, inputs = _score_batch(classifier, scorers, batch, keep_features=False)
    similarities = [one.similarities[: len(one.features)] for one in inputs]
    return scored, torch.cat(similarities) if similarities else torch.zeros(0, len(classifier.classes))


def _encoded(
    classifier: Classifier, scorers: Sequence[AnyScorer], images: Any, batch_size: int, progress: Progress | None
) -> Iterator[EncodedBatch]:
    """Batches of features, with patches and pixels where the classifier or a score looks at them."""
    wanted = {f"Score {scorer.spec!r}": scorer.score.needs & OF_IMAGES for scorer in scorers}
    wanted[f"A classifier by {classifier.method.name}"] = classifier.needs_to_predict & OF_IMAGES
    if is_feature_array(images):
        for who, needs in wanted.items():
            if needs:
                raise InputError(f"{who} needs {' and '.join(sorted(needs))}: give it images, not features.")
        classifier.check_takes_features()
        return _rows_of_features(classifier, images, progress)
    needed = frozenset().union(*wanted.values())
    if isinstance(images, StorePass):
        return _with_pixels(_stored(classifier, images, progress), wanted)
    if names_a_store(images):
        size = batch_size if Need.PATCHES in needed else max(batch_size, STORED_BATCH)
        stored = pass_over(images, classifier.model, patches=Need.PATCHES in needed, size=size)
        return _with_pixels(_stored(classifier, stored, progress), wanted)
    model = require_towers(classifier.model, "scoring")
    batches = model.stream(images, patches=Need.PATCHES in needed, batch_size=batch_size, progress=progress)
    return _with_pixels(batches, wanted)


def _stored(classifier: Classifier, stored: StorePass, progress: Progress | None) -> Iterator[EncodedBatch]:
    """Batches of a feature store, read as they are asked for."""
    done, device = 0, classifier.model.device
    for part in stored:
        features = torch.from_numpy(part.features).to(device)
        patches = None if part.patches is None else torch.from_numpy(part.patches).to(device)
        yield EncodedBatch(part.items, None, features, patches, part.unreadable)
        done += len(part.items) + len(part.unreadable)
        if progress is not None:
            progress(done, stored.images)


def _rows_of_features(classifier: Classifier, features: Any, progress: Progress | None) -> Iterator[EncodedBatch]:
    """Batches of a feature array, checked as they come."""
    for start in range(0, len(features), STORED_BATCH):
        rows = features[start : start + STORED_BATCH]
        block = check_features(rows, classifier.model, rows=range(start, start + len(rows)))
        items = [ImageItem(f"row {start + i}", b"") for i in range(len(block))]
        yield EncodedBatch(items, None, block.to(classifier.model.device), None, [])
        if progress is not None:
            progress(start + len(block), len(features))


def _with_pixels(batches: Iterable[EncodedBatch], wanted: Mapping[str, frozenset[Need]]) -> Iterator[EncodedBatch]:
    """The batches; they must hold pixels if someone looks at these, which those of a feature store do not."""
    who = next((who for who, needs in wanted.items() if Need.PIXELS in needs), None)
    for batch in batches:
        if who is not None and batch.items and batch.pixels is None:
            raise InputError(f"{who} needs pixels: give it the images, not a feature store.")
        yield batch


def _score_batch(
    classifier: Classifier,
    scorers: Sequence[AnyScorer],
    batch: EncodedBatch,
    *,
    keep_features: bool,
    top_k: int = 1,
    first_row: int = 0,
    known: bool = False,
) -> tuple[Scored, list[ScoreInputs]]:
    """What is found for one batch, whose first image is in `first_row` of all images, and what it was found from."""
    row = first_row
    tops: list[torch.Tensor] = []
    confidences: list[torch.Tensor] = []
    nearest: list[torch.Tensor] = []
    several: list[tuple[torch.Tensor, torch.Tensor]] = []
    values: dict[str, list[torch.Tensor]] = {scorer.spec: [] for scorer in scorers}
    by_fold: dict[str, list[torch.Tensor]] = {}
    seen: list[ScoreInputs] = []
    with torch.inference_mode():
        for filled, inputs in _blocks(classifier, batch):
            rows = len(inputs.features)
            top, confidence = _most_similar(filled.similarities, classifier.model.logit_scale)
            tops.append(top[:rows])
            confidences.append(confidence[:rows])
            nearest.append(filled.similarities.gather(1, top[:, None])[:rows, 0])
            if top_k > 1:
                several.append(_most_similar_few(inputs.similarities, top[:rows], confidence[:rows], classifier, top_k))
            for scorer in scorers:
                if isinstance(scorer, FoldScorer):
                    each = scorer.each(inputs if scorer.score.needs_images else filled)[:rows].detach().double()
                    by_fold.setdefault(scorer.spec, []).append(each)
                    values[scorer.spec].append(each.mean(dim=1))
                else:
                    values[scorer.spec].append(_apply(scorer, inputs, filled, row, known=known))
            row += rows
            # Outputs may hold texts of each image.
            compared = None if inputs.outputs is None else inputs.outputs.features
            if compared is not None and _same_tensor(compared, inputs.features):
                compared = inputs.features
            seen.append(replace(inputs, outputs=None, compared=compared))
    features = batch.features.float().cpu().numpy() if keep_features else None
    return Scored(
        items=batch.items,
        unreadable=batch.unreadable,
        predicted=_array(tops, np.int64),
        confidence=_array(confidences, np.float32),
        values={spec: _array(parts, np.float64) for spec, parts in values.items()},
        features=features,
        scorers={scorer.spec: scorer for scorer in scorers},
        top=_array([positions for positions, _ in several], np.int64) if several else None,
        top_confidence=_array([shares for _, shares in several], np.float32) if several else None,
        similarity=_array(nearest, np.float32),
        by_fold={
            one.spec: _array(by_fold.get(one.spec, []), np.float64).reshape(-1, len(one.scorers))
            for one in scorers
            if isinstance(one, FoldScorer)
        },
    ), seen


def _apply(
    scorer: AnyScorer, inputs: ScoreInputs, filled: ScoreInputs | None, first_row: int, *, known: bool
) -> torch.Tensor:
    """The scores of a block of images, each by the scorer that is to score it; `filled` is the block filled up."""
    count = len(inputs.features)
    whole = inputs if filled is None or scorer.score.needs_images else filled
    if isinstance(scorer, Scorer):
        return scorer(whole)[:count].detach().double()
    folds = scorer.folds_of(range(first_row, first_row + count), known=known)
    values = torch.empty(count, dtype=torch.float64, device=inputs.features.device)
    for fold in np.unique(folds):
        mine = np.flatnonzero(folds == fold)
        lacking = 0 if whole is inputs else -len(mine) % EVEN
        part = whole.take([*mine.tolist(), *[int(mine[-1])] * lacking])
        values[torch.from_numpy(mine).to(values.device)] = scorer.scorers[fold](part)[: len(mine)].detach().double()
    return values


def _blocks(classifier: Classifier, batch: EncodedBatch) -> Iterator[tuple[ScoreInputs, ScoreInputs]]:
    """Parts of a batch, each filled up to a multiple of `EVEN` rows, and as it is.

    A classifier that looks at patches, pixels or the whole batch gets it as it is.
    """
    features = batch.features.float()
    as_it_is = bool(classifier.needs_to_predict & OF_IMAGES) or classifier.batch_dependent
    size = max(1, len(features)) if as_it_is else rows_of_block(len(classifier.classes))
    for start in range(0, len(features), size):
        rows = slice(start, start + size)
        patches, pixels = (None if part is None else part[rows] for part in (batch.patches, batch.pixels))
        block = features[rows]
        lacking = 0 if as_it_is else -len(block) % EVEN
        full = torch.cat([block, block[-1:].expand(lacking, -1)]) if lacking else block
        outputs = classifier(Inputs(full, patches, pixels=pixels) if as_it_is else Inputs(full))
        filled = ScoreInputs(outputs.similarities, full, outputs=outputs)
        inputs = replace(filled.take(slice(len(block))) if lacking else filled, patches=patches, pixels=pixels)
        yield inputs if as_it_is else filled, inputs


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same numbers in the same place, though not the same object."""
    same = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
    return same and one.data_ptr() == other.data_ptr()


def rows_of_block(classes: int) -> int:
    """How many rows of similarities are computed at once."""
    return even(BLOCK_ENTRIES // classes)


def _most_similar(similarities: torch.Tensor, logit_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The position of the most similar class, and its softmax probability at the model's own temperature."""
    top, index = similarities.max(dim=1)
    shifted = (similarities - top[:, None]) * logit_scale
    return index, 1 / shifted.exp_().sum(dim=1)


def _most_similar_few(
    similarities: torch.Tensor, top: torch.Tensor, confidence: torch.Tensor, classifier: Classifier, few: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions and probabilities of the `few` most similar classes; the first is `top`, whatever ties there are."""
    best = similarities.gather(1, top[:, None])
    others = similarities.scatter(1, top[:, None], -torch.inf)
    values, positions = others.topk(min(few, similarities.shape[1]) - 1, dim=1)
    shares = ((values - best) * classifier.model.logit_scale).exp() * confidence[:, None]
    return torch.cat([top[:, None], positions], dim=1), torch.cat([confidence[:, None], shares], dim=1)


def _array(parts: Sequence[torch.Tensor], dtype: Any) -> npt.NDArray[Any]:
    """The parts as one array on the host; an empty one if there are none."""
    return torch.cat(list(parts)).cpu().numpy().astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _join(
    classifier: Classifier,
    scorers: Sequence[AnyScorer],
    batches: Iterable[Scored],
    *,
    keep_features: bool,
    keep_items: bool,
    expected: int,
) -> Scored:
    """All batches as one."""
    items: list[ImageItem] = []
    unreadable: list[Unreadable] = []
    predicted, confidence = GrowingArray(np.int64, expected=expected), GrowingArray(np.float32, expected=expected)
    values = {scorer.spec: GrowingArray(np.float64, expected=expected) for scorer in scorers}
    by_fold = {one.spec: GrowingArray(np.float64, len(one.scorers)) for one in scorers if isinstance(one, FoldScorer)}
    similarity, features = GrowingArray(np.float32), GrowingArray(np.float32, classifier.model.feature_dim)
    for batch in batches:
        items += batch.items if keep_items else []
        unreadable += batch.unreadable
        predicted.add(batch.predicted)
        confidence.add(batch.confidence)
        if keep_features and batch.similarity is not None:
            similarity.add(batch.similarity)
        for spec, found in values.items():
            found.add(batch.values[spec])
        for spec, found in by_fold.items():
            found.add(batch.by_fold[spec])
        if batch.features is not None:
            features.add(batch.features)
    return Scored(
        items=items,
        unreadable=unreadable,
        predicted=predicted.finish(),
        confidence=confidence.finish(),
        values={spec: found.finish() for spec, found in values.items()},
        features=features.finish() if keep_features else None,
        similarity=similarity.finish() if keep_features else None,
        scorers={scorer.spec: scorer for scorer in scorers},
        by_fold={spec: found.finish() for spec, found in by_fold.items()},
    )
