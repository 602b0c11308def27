"""The one way through: images -> features -> similarities -> scores, in batches, for any number of scores at once.

Images are encoded once. Scores that look at patches or pixels are computed while their batch is at hand, so that
patch features never pile up; all others come from the features afterwards, in blocks that fit the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.models.base import require_towers
from deltaenergy.models.features import check_features, is_feature_array
from deltaenergy.needs import Need
from deltaenergy.progress import Progress
from deltaenergy.scores.base import Score, ScoreInputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.encoding import EncodedBatch

# Similarities of one block (float32) take 16 MB: small beside the features, large enough that overheads vanish.
BLOCK_ENTRIES = 4_194_304


@dataclass(frozen=True)
class Scored:
    """What was found for N images. Row i of every array belongs to `items[i]`."""

    items: list[ImageItem]
    unreadable: list[Unreadable]
    features: npt.NDArray[np.float32]
    predicted: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]
    values: dict[str, npt.NDArray[np.float64]]


def score_images(
    classifier: Classifier,
    scores: Sequence[Score],
    images: Any,
    *,
    fit: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Scored:
    """Classify and score images (or unit features). Scores must be prepared; with `fit`, they are fitted first.

    Results are keyed by each score's `spec`.
    """
    for score in scores:
        if score.needs_fit and not fit and not score.state:
            raise NotFittedError(f"Score {score.spec!r} must see in-distribution images first: calibrate a detector.")
    streamed = [score for score in scores if score.needs_images]
    if is_feature_array(images):
        if streamed:
            needs = ", ".join(sorted(need.value for need in streamed[0].needs))
            raise InputError(f"Score {streamed[0].spec!r} needs {needs}: give it images, not features.")
        features = check_features(images, classifier.model).to(classifier.model.device)
        items = [ImageItem(f"row {i}", b"") for i in range(len(features))]
        values: dict[str, list[torch.Tensor]] = {}
        unreadable: list[Unreadable] = []
    else:
        items, unreadable, features, values = _stream(classifier, streamed, images, batch_size, progress)
    return _from_features(classifier, scores, items, unreadable, features, values, fit=fit)


def _stream(
    classifier: Classifier, streamed: list[Score], images: Any, batch_size: int, progress: Progress | None
) -> tuple[list[ImageItem], list[Unreadable], torch.Tensor, dict[str, list[torch.Tensor]]]:
    """Encode images, computing on the way the scores that need more than features."""
    with_patches = any(Need.PATCHES in score.needs for score in streamed)
    items: list[ImageItem] = []
    unreadable: list[Unreadable] = []
    features = [torch.zeros(0, classifier.model.feature_dim)]
    values: dict[str, list[torch.Tensor]] = {score.spec: [] for score in streamed}
    model = require_towers(classifier.model, "scoring")
    for batch in model.stream(images, patches=with_patches, batch_size=batch_size, progress=progress):
        items += batch.items
        unreadable += batch.unreadable
        features.append(batch.features.float().cpu())
        if batch.items and streamed:
            _check_pixels(streamed, batch)
            inputs = _inputs_of(classifier, batch)
            for score in streamed:
                values[score.spec].append(score(inputs).detach().double().cpu())
    return items, unreadable, torch.cat(features).to(classifier.model.device), values


def _check_pixels(scores: list[Score], batch: EncodedBatch) -> None:
    for score in scores:
        if Need.PIXELS in score.needs and batch.pixels is None:
            raise InputError(f"Score {score.spec!r} needs pixels: give it the images, not a feature store.")


def _inputs_of(classifier: Classifier, batch: EncodedBatch) -> ScoreInputs:
    with torch.inference_mode():
        similarities = classifier.similarities_of_features(batch.features)
    return ScoreInputs(similarities, batch.features, batch.patches, batch.pixels)


def _from_features(
    classifier: Classifier,
    scores: Sequence[Score],
    items: list[ImageItem],
    unreadable: list[Unreadable],
    features: torch.Tensor,
    values: dict[str, list[torch.Tensor]],
    *,
    fit: bool,
) -> Scored:
    plain = [score for score in scores if not score.needs_images]
    rows = max(1, BLOCK_ENTRIES // len(classifier.classes))
    blocks = [features[start : start + rows] for start in range(0, len(features), rows)]
    predicted, confidence = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0)]
    with torch.inference_mode():
        if fit and any(score.needs_fit for score in plain):
            inputs = ScoreInputs(classifier.similarities_of_features(features), features)
            for score in plain:
                if score.needs_fit:
                    score.fit(inputs)
        for block in blocks:
            inputs = ScoreInputs(classifier.similarities_of_features(block), block)
            top, index = inputs.similarities.max(dim=1)
            predicted.append(index.cpu())
            shifted = (inputs.similarities - top[:, None]) * classifier.model.logit_scale
            confidence.append((1 / shifted.exp_().sum(dim=1)).float().cpu())
            for score in plain:
                values.setdefault(score.spec, []).append(score(inputs).double().cpu())
    empty = torch.zeros(0, dtype=torch.float64)
    return Scored(
        items=items,
        unreadable=unreadable,
        features=features.cpu().numpy(),
        predicted=torch.cat(predicted).numpy(),
        confidence=torch.cat(confidence).numpy(),
        values={score.spec: torch.cat([empty, *values.get(score.spec, [])]).numpy() for score in scores},
    )
