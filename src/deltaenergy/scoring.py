"""The one way through: images -> features -> similarities -> scores, batch by batch, for any number of scores at once.

`stream_scores` holds one batch at a time, whatever the number of images; `score_images` collects its batches, and
fits scores. Images are encoded once for all scores.

A row's score must not depend on how many others came with it. Where the number of rows is odd, processors compute the
last few of a product in another way, and round otherwise; so every block of features is filled up to a multiple of
`EVEN` rows. Towers, and scores that look at patches or pixels, see the batch as it is: filling it up would cost as much
as so many more images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.data.store_pass import StorePass, names_a_store, pass_over
from deltaenergy.errors import InputError
from deltaenergy.growing import Growing
from deltaenergy.labels import class_indices
from deltaenergy.models.base import require_towers
from deltaenergy.models.encoding import STORED_BATCH, EncodedBatch
from deltaenergy.models.features import check_features, is_feature_array
from deltaenergy.needs import Need
from deltaenergy.progress import Progress
from deltaenergy.scores.arrays import EVEN, even
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.runnable import check_runnable, given_by

if TYPE_CHECKING:
    import numpy.typing as npt

# Similarities of one block (float32) take 16 MB: large enough that overheads vanish.
BLOCK_ENTRIES = 4_194_304
OF_IMAGES = frozenset({Need.PATCHES, Need.STATES, Need.PIXELS})
# Of so many images that were read, the rows that scores learn from; None for all of them.
FitOn = Callable[[int], "npt.NDArray[np.int64] | None"]


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
        scorers: by spec, with what they were fitted to.
        fit_rows: the rows that scorers learned from just now; None if it was all of them, or none.
    """

    items: Sequence[ImageItem]
    unreadable: list[Unreadable]
    predicted: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]
    values: dict[str, npt.NDArray[np.float64]]
    features: npt.NDArray[np.float32] | None = None
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    top: npt.NDArray[np.int64] | None = None
    top_confidence: npt.NDArray[np.float32] | None = None
    fit_rows: npt.NDArray[np.int64] | None = None
    similarity: npt.NDArray[np.float32] | None = None

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
            fit_rows=None,
        )


def stream_scores(
    classifier: Classifier,
    scores: Sequence[Score | Scorer],
    images: Any,
    *,
    keep_features: bool = False,
    top_k: int = 1,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """Classify and score images (or unit features), batch by batch; memory does not grow with their number.

    Scores that are fitted on ID data must be: give their scorers. Others may be given as they are. With `top_k` above
    1, that many of the most similar classes are told of each image, or all if there are fewer.
    """
    check_runnable(scores, given_by([images], classifier))
    scorers = bind_all(classifier, scores)
    for scorer in scorers:
        scorer.check_fitted()
    batches = _encoded(classifier, scorers, images, batch_size, progress)
    return (_score_batch(classifier, scorers, batch, keep_features=keep_features, top_k=top_k)[0] for batch in batches)


def score_images(
    classifier: Classifier,
    scores: Sequence[Score | Scorer],
    images: Any,
    *,
    fit: bool = False,
    fit_on: FitOn = lambda _: None,
    learn_every: int = 1,
    keep_features: bool = False,
    keep_items: bool = True,
    expected: int = 0,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Scored:
    """All that `stream_scores` finds, in one. Where about so many images are `expected`, arrays need not be moved.

    With `fit`, scorers that must learn from ID data, and have not yet, learn from these images, or from the rows of
    them that `fit_on` says, of every so many images (`learn_every`). What they learn from is held in memory.
    """
    check_runnable(scores, given_by([images], classifier))
    scorers = bind_all(classifier, scores)
    late = [scorer for scorer in scorers if fit and not scorer.fitted]
    if late:
        return _fit_and_score(
            classifier,
            scorers,
            late,
            images,
            fit_on,
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


def bind_all(classifier: Classifier, scores: Iterable[Score | Scorer]) -> list[Scorer]:
    """Scores bound to `classifier`; scorers must be so already."""
    scorers = [score if isinstance(score, Scorer) else score.bind(classifier) for score in scores]
    for scorer in scorers:
        if scorer.classifier is not classifier:
            raise InputError(f"The scorer {scorer.spec!r} is bound to another classifier: bind its score to this one.")
    return scorers


def _fit_and_score(
    classifier: Classifier,
    scorers: list[Scorer],
    late: list[Scorer],
    images: Any,
    fit_on: FitOn,
    learn_every: int,
    keep_features: bool,
    keep_items: bool,
    expected: int,
    batch_size: int,
    progress: Progress | None,
) -> Scored:
    """One pass over the images for all scores but the `late` ones, which then learn from what it found."""
    needs = frozenset().union(*(scorer.score.needs for scorer in late))
    now = [scorer for scorer in scorers if scorer not in late]
    # A store is read again; of images, features are held, for that is cheaper than to encode them again.
    hold = keep_features or not names_a_store(images)
    known: list[ScoreInputs] = []
    teachers: list[ImageItem] = []
    seen = 0

    def batches() -> Iterator[Scored]:
        nonlocal seen
        for batch in _encoded(classifier, scorers, images, batch_size, progress):
            scored, inputs = _score_batch(classifier, now, batch, keep_features=hold)
            if Need.LABELS in needs:
                teachers.extend(batch.items[-seen % learn_every :: learn_every])
            # What the late scores do not ask for would pile up.
            patches, pixels = Need.PATCHES in needs, Need.PIXELS in needs
            for one in inputs:
                chosen = one
                if learn_every > 1:
                    chosen = one.take(list(range(-seen % learn_every, len(one.features), learn_every)))
                seen += len(one.features)
                chosen = replace(chosen, patches=chosen.patches if patches else None, outputs=None)
                known.append(replace(chosen, pixels=chosen.pixels if pixels else None))
            yield scored

    first = _join(classifier, now, batches(), keep_features=hold, keep_items=keep_items, expected=expected)
    if not known:  # no image could be read
        return replace(first, values={scorer.spec: np.zeros(0) for scorer in scorers})
    learned_from = ScoreInputs.join(known)
    known.clear()
    if Need.LABELS in needs:
        who = ", ".join(scorer.spec for scorer in late if Need.LABELS in scorer.score.needs)
        labels = class_indices(teachers, classifier.classes, f"{who} learns from classes")
        learned_from = replace(learned_from, labels=torch.tensor(labels))
    rows = fit_on(len(learned_from.features))
    if rows is not None:
        learned_from = learned_from.take(rows.tolist())
    with torch.inference_mode():
        fitted = [scorer.fit(learned_from) for scorer in late]
    # Where features are at hand, only patches and pixels must be looked at again.
    if not hold or (needs | classifier.needs) & OF_IMAGES:
        again = _encoded(classifier, fitted, images, batch_size, None)
    else:
        again = _rows_of_features(classifier, first.features, None)
    scored_again = (_score_batch(classifier, fitted, batch, keep_features=False)[0] for batch in again)
    second = _join(classifier, fitted, scored_again, keep_features=False, keep_items=False, expected=expected)
    values, used = {**first.values, **second.values}, {**first.scorers, **second.scorers}
    return replace(
        first,
        values={scorer.spec: values[scorer.spec] for scorer in scorers},
        features=first.features if keep_features else None,
        scorers={scorer.spec: used[scorer.spec] for scorer in scorers},
        fit_rows=rows,
    )


def score_inputs(scorers: Sequence[Scorer], inputs: ScoreInputs) -> dict[str, npt.NDArray[np.float64]]:
    """Scores by spec from similarities and features that are known already, a block of rows at a time."""
    size = rows_of_block(inputs.similarities.shape[1])
    blocks = [inputs.take(slice(start, start + size)) for start in range(0, len(inputs.features), size)]
    with torch.inference_mode():
        return {scorer.spec: _array([scorer(block).double() for block in blocks], np.float64) for scorer in scorers}


def score_encoded(
    classifier: Classifier, scorers: Sequence[Scorer], batch: EncodedBatch
) -> tuple[Scored, torch.Tensor]:
    """What is found for images that are encoded already, and their similarities (N, K)."""
    scored, inputs = _score_batch(classifier, scorers, batch, keep_features=False)
    similarities = [one.similarities[: len(one.features)] for one in inputs]
    return scored, torch.cat(similarities) if similarities else torch.zeros(0, len(classifier.classes))


def _encoded(
    classifier: Classifier, scorers: Sequence[Scorer], images: Any, batch_size: int, progress: Progress | None
) -> Iterator[EncodedBatch]:
    """Batches of features, with patches and pixels where the classifier or a score looks at them."""
    wanted = {f"Score {scorer.spec!r}": scorer.score.needs & OF_IMAGES for scorer in scorers}
    wanted[f"A classifier by {classifier.method.name}"] = classifier.needs & OF_IMAGES
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
        if stored is not None:
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
    classifier: Classifier, scorers: Sequence[Scorer], batch: EncodedBatch, *, keep_features: bool, top_k: int = 1
) -> tuple[Scored, list[ScoreInputs]]:
    """What is found for one batch, and what it was found from."""
    tops: list[torch.Tensor] = []
    confidences: list[torch.Tensor] = []
    nearest: list[torch.Tensor] = []
    several: list[tuple[torch.Tensor, torch.Tensor]] = []
    values: dict[str, list[torch.Tensor]] = {scorer.spec: [] for scorer in scorers}
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
                scored = scorer(inputs) if scorer.score.needs_images else scorer(filled)[:rows]
                values[scorer.spec].append(scored.detach().double())
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
    ), seen


def _blocks(classifier: Classifier, batch: EncodedBatch) -> Iterator[tuple[ScoreInputs, ScoreInputs]]:
    """Parts of a batch, each filled up to a multiple of `EVEN` rows, and as it is.

    A classifier that looks at patches, pixels or the whole batch gets it as it is.
    """
    features = batch.features.float()
    as_it_is = bool(classifier.needs & OF_IMAGES) or classifier.batch_dependent
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
    scorers: Sequence[Scorer],
    batches: Iterable[Scored],
    *,
    keep_features: bool,
    keep_items: bool,
    expected: int,
) -> Scored:
    """All batches as one."""
    items: list[ImageItem] = []
    unreadable: list[Unreadable] = []
    predicted, confidence = Growing(np.int64, expected=expected), Growing(np.float32, expected=expected)
    values = {scorer.spec: Growing(np.float64, expected=expected) for scorer in scorers}
    similarity, features = Growing(np.float32), Growing(np.float32, classifier.model.feature_dim)
    for batch in batches:
        items += batch.items if keep_items else []
        unreadable += batch.unreadable
        predicted.add(batch.predicted)
        confidence.add(batch.confidence)
        if keep_features and batch.similarity is not None:
            similarity.add(batch.similarity)
        for spec, found in values.items():
            found.add(batch.values[spec])
        if batch.features is not None:
            features.add(batch.features)
    return Scored(
        items=items,
        unreadable=unreadable,
        predicted=predicted.whole(),
        confidence=confidence.whole(),
        values={spec: found.whole() for spec, found in values.items()},
        features=features.whole() if keep_features else None,
        similarity=similarity.whole() if keep_features else None,
        scorers={scorer.spec: scorer for scorer in scorers},
    )
