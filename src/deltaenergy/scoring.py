"""Images -> features -> similarities -> scores, batch by batch, for any number of scores at once.

    scorers = bind(classifier, scores)
    encoded = Encoded(classifier, scorers, source, hold=True)      # encoded once; features are held for further passes
    fitted = cross_fit(scorers, known_images([encoded], scorers))  # those that must learn from known images
    scored = score_all(encoded, fitted, known=True)

Scores that do not learn need one pass: `stream_scores` holds one batch at a time, and `score_images` joins its batches.

A score that learned from an image scores it too high: the nearest neighbour of an image is the image itself. So scores
that learn from known images are cross-fitted if these images are also scored (`CrossFitted`): the images are split into
folds, and each is scored by a scorer that learned from the other folds.

A row's score must not depend on the other rows. With an odd number of rows, processors compute the last few of a
product differently and round differently, so blocks of features are filled up (`Classifier.compare`). Towers, and
scores that use patches or pixels, get the batch as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from deltaenergy.classifiers.base import BLOCK_ENTRIES, Classifier, closest_classes
from deltaenergy.core.arrays import ROW_BLOCK, GrowingArray, round_to_block
from deltaenergy.core.classes import class_indices
from deltaenergy.core.needs import OF_IMAGES, Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError
from deltaenergy.models.encoding import EncodedBatch, stream_batches
from deltaenergy.scores.availability import Given, check_runnable
from deltaenergy.scores.base import FoldScorer, Score, ScoreInputs, Scorer
from deltaenergy.source import Source, has_pixels

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

FOLDS = 5


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """A score that learned from known images and can be measured on the same images.

    Each known image is scored by the scorer of its fold, which has not seen it. A new image is scored by only one
    scorer, row i by scorer i mod F. So if known and new images are alike, their scores are too (expected AUROC: 50%).
    The mean of all scorers would vary less than the single scores of known images.

    Attributes:
        folds: for each known image, the position of the scorer that has not seen it.
        scorers: one for each fold, fitted on images of the other folds.
    """

    folds: Ints
    scorers: tuple[Scorer, ...]

    @property
    def score(self) -> Score:
        """The score of all scorers."""
        return self.scorers[0].score

    @property
    def spec(self) -> str:
        return self.score.spec

    @property
    def classifier(self) -> Classifier:
        """The classifier of all scorers."""
        return self.scorers[0].classifier

    def folds_of(self, rows: range, *, known: bool) -> Ints:
        """Positions of the scorers for some rows of known or new images."""
        return self.folds[rows.start : rows.stop] if known else np.arange(rows.start, rows.stop) % len(self.scorers)


AnyScorer = Scorer | CrossFitted
Bound = TypeVar("Bound", bound=AnyScorer)


@dataclass(frozen=True)
class Scored:
    """Results for N images. Row i of every array belongs to `items[i]`.

    Attributes:
        items: the images that were read; empty if not stored.
        unreadable: the unreadable images, and why.
        top: positions of the closest classes (N, k), best first; k is 1 without `top_k`.
        top_confidence: their softmax probabilities (N, k) at the model's own temperature.
        values: by the `spec` of each score.
        features: unit features (N, D), if stored.
        similarity: of the closest class.
        by_fold: by spec of a `FoldScorer`, the score of each fold (N, F); its value is their mean.
    """

    items: Sequence[ImageItem]
    unreadable: list[Unreadable]
    top: Ints
    top_confidence: npt.NDArray[np.float32]
    values: Mapping[str, Floats]
    features: npt.NDArray[np.float32] | None = None
    similarity: npt.NDArray[np.float32] | None = None
    by_fold: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def predicted(self) -> Ints:
        """Position of the closest class."""
        return self.top[:, 0]

    @property
    def confidence(self) -> npt.NDArray[np.float32]:
        """Its probability."""
        return self.top_confidence[:, 0]

    def take(self, rows: Ints) -> Scored:
        """Some of the images that were read; `unreadable` stays complete."""
        arrays = {key: array[rows] for key, array in self._arrays().items()}
        return self._with_arrays(arrays, [self.items[row] for row in rows], self.unreadable)

    @staticmethod
    def join(parts: Iterable[Scored], *, keep_items: bool = True, expected: int = 0) -> Scored:
        """Join parts. If the number of images is `expected`, arrays need not be moved."""
        items: list[ImageItem] = []
        unreadable: list[Unreadable] = []
        grown: dict[tuple[str, str], GrowingArray] = {}
        for part in parts:
            items += part.items if keep_items else []
            unreadable += part.unreadable
            for key, array in part._arrays().items():
                if key not in grown:
                    grown[key] = GrowingArray(array.dtype, *array.shape[1:], expected=expected)
                grown[key].add(array)
        return part._with_arrays({key: array.finish() for key, array in grown.items()}, items, unreadable)

    def _arrays(self) -> dict[tuple[str, str], npt.NDArray[Any]]:
        """All arrays, by the name of their field, and the score if there are several."""
        found: dict[tuple[str, str], npt.NDArray[Any]] = {}
        for name in ("top", "top_confidence", "features", "similarity"):
            if (array := getattr(self, name)) is not None:
                found[name, ""] = array
        return found | {
            (name, spec): array for name in ("values", "by_fold") for spec, array in getattr(self, name).items()
        }

    def _with_arrays(
        self, arrays: Mapping[tuple[str, str], npt.NDArray[Any]], items: Sequence[ImageItem], unread: list[Unreadable]
    ) -> Scored:
        whole: dict[str, Any] = {name: array for (name, spec), array in arrays.items() if not spec}
        for name in ("values", "by_fold"):
            whole[name] = {spec: array for (kind, spec), array in arrays.items() if kind == name}
        return replace(self, items=items, unreadable=unread, **whole)


NOTHING_SCORED = Scored([], [], np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32), {})


def stream_scores(
    classifier: Classifier,
    scores: Sequence[Score | AnyScorer],
    source: Source,
    *,
    top_k: int = 1,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """Classify and score images (or unit features), batch by batch, in bounded memory.

    For scores that learn from known images, pass fitted scorers; for cross-fitted scorers these are new images. With
    `top_k` above 1, each image has that many of the closest classes, or all if there are fewer.
    """
    encoded = Encoded(classifier, scores, source, batch_size=batch_size, progress=progress)
    return score(encoded, bind(classifier, scores), top_k=top_k)


def score_images(
    classifier: Classifier,
    scores: Sequence[Score | AnyScorer],
    source: Source,
    *,
    keep_features: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Scored:
    """The results of `stream_scores` in one."""
    encoded = Encoded(classifier, scores, source, batch_size=batch_size, progress=progress)
    return score_all(encoded, bind(classifier, scores), keep_features=keep_features)


def bind(classifier: Classifier, scores: Iterable[Score | Bound]) -> list[Scorer | Bound]:
    """Scores bound to `classifier`; scorers must already be."""
    scorers = [score.bind(classifier) if isinstance(score, Score) else score for score in scores]
    for scorer in scorers:
        if scorer.classifier is not classifier:
            raise InputError(f"The scorer {scorer.spec!r} is bound to another classifier: bind its score to this one.")
    return scorers


def needs_of_images(classifier: Classifier, scores: Iterable[Score]) -> frozenset[Need]:
    """What the classifier and these scores need beyond unit features."""
    return classifier.needs_to_predict.union(*(score.needs for score in scores)) & OF_IMAGES


class Encoded:
    """Images as batches of features, which can be read several times, checked to suit a classifier and scores.

    They are read in the first pass. With `hold`, it keeps the features of images, which is cheaper than encoding them
    again. Arrays and feature stores are read again, and images are encoded again if patches or pixels are needed.
    """

    def __init__(
        self,
        classifier: Classifier,
        scores: Iterable[Score | AnyScorer],
        source: Source,
        *,
        hold: bool = False,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> None:
        plain = [score.score if isinstance(score, CrossFitted) else score for score in scores]
        check_runnable(plain, Given.of([source], classifier))
        classifier.check_takes(source)
        self.classifier, self._source, self._batch_size = classifier, source, batch_size
        self._progress = progress  # called in the first pass
        # Whether images are encoded, rather than their features read.
        self.encodes = has_pixels(source)
        self._hold = hold and self.encodes
        self._held: list[EncodedBatch] | None = None

    def batches(self, scorers: Sequence[AnyScorer]) -> Iterator[EncodedBatch]:
        """Batches of features, with patches and pixels if the classifier or a score needs them."""
        needs = needs_of_images(self.classifier, [scorer.score for scorer in scorers])
        if self._held is not None and not needs:
            return iter(self._held)
        progress, self._progress = self._progress, None
        batches = stream_batches(
            self.classifier.model,
            self._source,
            patches=Need.PATCHES in needs,
            batch_size=self._batch_size,
            progress=progress,
            who="scoring",
        )
        return self._holding(batches) if self._hold and self._held is None else batches

    def _holding(self, batches: Iterable[EncodedBatch]) -> Iterator[EncodedBatch]:
        held: list[EncodedBatch] = []
        for batch in batches:
            held.append(replace(batch, pixels=None, patches=None))
            yield batch
        self._held = held


def score(
    encoded: Encoded,
    scorers: Sequence[AnyScorer],
    *,
    known: bool = False,
    top_k: int = 1,
) -> Iterator[Scored]:
    """Results of each batch; `known`: these are all images that scorers were cross-fitted on, in the same order."""
    for scorer in scorers:
        if isinstance(scorer, Scorer):
            scorer.check_fitted()
    batches = encoded.batches(scorers)  # wrong arguments raise now, not with the first batch

    def scored_batches() -> Iterator[Scored]:
        row = 0
        for batch in batches:
            scored, _ = score_encoded(encoded.classifier, scorers, batch, row, known=known, top_k=top_k)
            yield scored
            row += len(batch.items)

    return scored_batches()


def score_all(
    encoded: Encoded,
    scorers: Sequence[AnyScorer],
    *,
    known: bool = False,
    keep_features: bool = False,
    keep_items: bool = True,
    expected: int = 0,
) -> Scored:
    """The results of `score` in one. If the number of images is `expected`, arrays need not be moved."""
    model = encoded.classifier.model
    none = EncodedBatch([], None, torch.zeros(0, model.feature_dim, device=model.device), None, [])
    empty, _ = score_encoded(encoded.classifier, scorers, none, 0, known=known)
    parts: Iterable[Scored] = chain([empty], score(encoded, scorers, known=known))
    if not keep_features:
        parts = (replace(part, features=None) for part in parts)
    return Scored.join(parts, keep_items=keep_items, expected=expected)


def score_inputs(scorers: Sequence[AnyScorer], inputs: ScoreInputs, *, known: bool = False) -> dict[str, Floats]:
    """Scores by spec from given similarities and features, a block of rows at a time.

    `known`: these are all images that the scorers were cross-fitted on, in the same order.
    """
    size = round_to_block(BLOCK_ENTRIES // inputs.similarities.shape[1])
    starts = range(0, len(inputs.features), size)
    blocks = [inputs.take(slice(start, start + size)) for start in starts]
    with torch.inference_mode():
        return {
            scorer.spec: _array(
                [_apply(scorer, block, None, start, known=known) for start, block in zip(starts, blocks)], np.float64
            )
            for scorer in scorers
        }


@dataclass(frozen=True)
class KnownImages:
    """Known images that scores learn from.

    Attributes:
        inputs: the inputs of scores.
        labels: of each image, to split folds by; None if it has none.
        images: number of known images.
        rows: positions of these among the known images, in order; all by default.
    """

    inputs: ScoreInputs
    labels: Sequence[str | int | None]
    images: int | None = None
    rows: Ints | None = None


def known_images(
    encoded: Sequence[Encoded],
    scorers: Sequence[Scorer],
    *,
    every: Sequence[int] | None = None,
) -> KnownImages:
    """The inputs that unfitted scorers learn from, of several sets one after the other; held in memory.

    Of each set it is all images, or one image in `every[set]`.
    """
    unfitted = [scorer for scorer in scorers if not scorer.fitted]
    who = ", ".join(scorer.spec for scorer in unfitted)
    needs = frozenset[Need]().union(*(scorer.score.needs for scorer in unfitted))
    parts: list[ScoreInputs] = []
    rows: list[Ints] = []
    items: list[ImageItem] = []
    names: list[str | None] = []
    unreadable: list[Unreadable] = []
    images = 0
    for number, one in enumerate(encoded):
        step, done = every[number] if every else 1, 0
        for batch in one.batches(unfitted):
            count, start = len(batch.items), -done % step
            chosen = batch.items[start::step]
            names += [item.label if item.label is None else sys.intern(item.label) for item in chosen]
            items += chosen if Need.LABELS in needs else []  # unused outputs would pile up
            rows.append(np.arange(images + start, images + count, step))
            parts += _taught(one.classifier, batch, needs, start, step)
            unreadable += batch.unreadable
            images, done = images + count, done + count
    if not parts:
        first = f"; the first is {unreadable[0].id}: {unreadable[0].reason}" if unreadable else ""
        raise InputError(f"{who} needs at least one readable known image to learn from{first}.")
    inputs = ScoreInputs.join(parts)
    if Need.LABELS in needs:
        who = ", ".join(scorer.spec for scorer in unfitted if Need.LABELS in scorer.score.needs)
        classes = class_indices(items, encoded[0].classifier.classes, f"{who} learns from classes")
        inputs = replace(inputs, labels=torch.tensor(classes))
    return KnownImages(inputs, names, images, np.concatenate(rows))


def _taught(
    classifier: Classifier, batch: EncodedBatch, needs: frozenset[Need], start: int, step: int
) -> Iterator[ScoreInputs]:
    """The part of a batch to learn from: from row `start` on, every n-th image."""
    done = 0
    with torch.inference_mode():
        for _, inputs in _blocks(classifier, batch):
            count = len(inputs.features)
            patches = inputs.patches if Need.PATCHES in needs else None
            pixels = inputs.pixels if Need.PIXELS in needs else None
            # Outputs may have texts of each image.
            kept = replace(inputs, outputs=None, patches=patches, pixels=pixels)
            yield kept if step == 1 else kept.take(list(range((start - done) % step, count, step)))
            done += count


def fit(scorers: Sequence[Scorer], known: KnownImages) -> list[Scorer]:
    """Scorers for other images: those that learn have learned from all of these."""
    with torch.inference_mode():
        return [scorer if scorer.fitted else scorer.fit(known.inputs) for scorer in scorers]


def cross_fit(scorers: Sequence[Scorer], known: KnownImages, *, measured: bool = True) -> list[AnyScorer]:
    """Scorers that can be measured on these images: those that learn are fitted once per fold, on the other folds.

    Folds are stratified by label. Images that are not learned from take turns as new images do. A single image is an
    error, unless nothing is `measured` on it.
    """
    dealt = deal_folds(known.labels, measured=measured)
    count = 1 + int(dealt.max())
    folds = dealt
    if known.rows is not None and known.images is not None:
        folds = np.arange(known.images) % count
        folds[known.rows] = dealt
    others = [np.flatnonzero((dealt != fold) | (len(dealt) < 2)).tolist() for fold in range(count)]
    with torch.inference_mode():
        return [
            scorer
            if scorer.fitted
            else CrossFitted(folds, tuple(scorer.fit(known.inputs.take(rows)) for rows in others))
            for scorer in scorers
        ]


def deal_folds(labels: Sequence[str | int | None], *, measured: bool = True) -> Ints:
    """The fold of each of N images, 0 … min(5, N) − 1: at random with a fixed seed, class by class.

    The folds of a class differ in size by at most one image, and so do the folds as a whole. Images without a label
    count as one more class. A single image is an error, unless nothing is `measured` on it.
    """
    count = len(labels)
    if count < 2 and measured:
        raise InputError(
            f"A score that learns from known images needs at least 2, got {count}: pass more images, or use a score "
            "that does not learn."
        )
    code_of = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([code_of[label] for label in labels])
    shuffled = np.random.default_rng(0).permutation(count)
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    folds = np.empty(count, dtype=np.int64)
    folds[by_class] = np.arange(count) % min(FOLDS, count)
    return folds


def score_encoded(
    classifier: Classifier,
    scorers: Sequence[AnyScorer],
    batch: EncodedBatch,
    first_row: int = 0,
    *,
    known: bool = False,
    top_k: int = 1,
) -> tuple[Scored, torch.Tensor]:
    """Results of encoded images, whose first is row `first_row` of all images, and their similarities (N, K)."""
    row, few = first_row, min(top_k, len(classifier.classes))
    tops: list[torch.Tensor] = []
    shares: list[torch.Tensor] = []
    nearest: list[torch.Tensor] = []
    similarities: list[torch.Tensor] = []
    values: dict[str, list[torch.Tensor]] = {scorer.spec: [] for scorer in scorers}
    folded = {scorer.spec: len(scorer.scorers) for scorer in scorers if isinstance(scorer, FoldScorer)}
    by_fold: dict[str, list[torch.Tensor]] = {spec: [] for spec in folded}
    with torch.inference_mode():
        for filled, inputs in _blocks(classifier, batch):
            rows = len(inputs.features)
            top, probabilities = closest_classes(filled.similarities, classifier.model.logit_scale, few)
            tops.append(top[:rows])
            shares.append(probabilities[:rows])
            nearest.append(filled.similarities.gather(1, top[:, :1])[:rows, 0])
            similarities.append(inputs.similarities)
            for scorer in scorers:
                if isinstance(scorer, FoldScorer):
                    each = scorer.each(inputs if scorer.score.needs_images else filled)[:rows].detach().double()
                    by_fold[scorer.spec].append(each)
                    values[scorer.spec].append(each.mean(dim=1))
                else:
                    values[scorer.spec].append(_apply(scorer, inputs, filled, row, known=known))
            row += rows
    scored = Scored(
        items=batch.items,
        unreadable=batch.unreadable,
        top=_array(tops, np.int64).reshape(-1, few),
        top_confidence=_array(shares, np.float32).reshape(-1, few),
        values={spec: _array(parts, np.float64) for spec, parts in values.items()},
        features=batch.features.float().cpu().numpy(),
        similarity=_array(nearest, np.float32),
        by_fold={spec: _array(parts, np.float64).reshape(-1, folded[spec]) for spec, parts in by_fold.items()},
    )
    return scored, torch.cat(similarities) if similarities else torch.zeros(0, len(classifier.classes))


def _apply(
    scorer: AnyScorer, inputs: ScoreInputs, filled: ScoreInputs | None, first_row: int, *, known: bool
) -> torch.Tensor:
    """The scores of a block of images, each by its scorer; `filled` is the block filled up."""
    count = len(inputs.features)
    whole = inputs if filled is None or scorer.score.needs_images else filled
    if isinstance(scorer, Scorer):
        return scorer(whole)[:count].detach().double()
    folds = scorer.folds_of(range(first_row, first_row + count), known=known)
    values = torch.empty(count, dtype=torch.float64, device=inputs.features.device)
    for fold in np.unique(folds):
        mine = np.flatnonzero(folds == fold)
        lacking = 0 if whole is inputs else -len(mine) % ROW_BLOCK
        part = whole.take([*mine.tolist(), *[int(mine[-1])] * lacking])
        values[torch.from_numpy(mine).to(values.device)] = scorer.scorers[fold](part)[: len(mine)].detach().double()
    return values


def _blocks(classifier: Classifier, batch: EncodedBatch) -> Iterator[tuple[ScoreInputs, ScoreInputs]]:
    """Parts of a batch, each as it is and filled up (`Classifier.compare`)."""
    for rows, features, outputs in classifier.compare(batch):
        filled = ScoreInputs(outputs.similarities, features, outputs=outputs, compared=outputs.features)
        count = rows.stop - rows.start
        patches, pixels = (None if part is None else part[rows] for part in (batch.patches, batch.pixels))
        whole = len(features) == count
        inputs = replace(filled if whole else filled.take(slice(count)), patches=patches, pixels=pixels)
        yield inputs if whole else filled, inputs


def _array(parts: Sequence[torch.Tensor], dtype: Any) -> npt.NDArray[Any]:
    """The parts as one array on the CPU; empty if there are none."""
    return torch.cat(list(parts)).cpu().numpy().astype(dtype, copy=False) if parts else np.zeros(0, dtype)
