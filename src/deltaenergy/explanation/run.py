"""`explain`: maps for any number of images, batch by batch, each with the verdict that a detector gives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, check_classifier
from deltaenergy.core.display import HasRepr
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress, shown
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import InputError
from deltaenergy.explanation.explanation import Explanation
from deltaenergy.explanation.methods import AUTO, Subject, get_method, make_maps
from deltaenergy.explanation.targets import CLASS, SCORE, Target, class_position, class_target, score_target
from deltaenergy.explanation.why import Reasons
from deltaenergy.models.base import require_towers
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.features import is_feature_array
from deltaenergy.scores.base import Scorer
from deltaenergy.scoring import score_encoded

if TYPE_CHECKING:
    import numpy.typing as npt


class Explanations(HasRepr, Sequence[Explanation]):
    """Explanations in input order, and the images that could not be read."""

    def __init__(self, explanations: list[Explanation], unreadable: list[Unreadable]) -> None:
        self._explanations = explanations
        self.unreadable = unreadable

    @overload
    def __getitem__(self, index: int) -> Explanation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Explanation]: ...
    def __getitem__(self, index: int | slice) -> Explanation | list[Explanation]:
        return self._explanations[index]

    def __len__(self) -> int:
        return len(self._explanations)

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {"images": len(self)}
        if len(self):
            facts |= {"method": self[0].method, "unreadable": len(self.unreadable)}
        return facts

    def _repr_html_(self) -> str:
        return super()._repr_html_() + "".join(one._repr_html_() for one in self[:_SHOWN])


# In a notebook, more pictures than this make a cell unwieldy.
_SHOWN = 20


class Explainer:
    """What explains images: a detector or a classifier, a method, and what is to be explained.

    All that can be wrong with these is said when it is made.

    Args:
        judge: a detector or a classifier, zero-shot or tuned.
        method: `value-path`, `rollout`, `grad-cam`, `occlusion`, or `auto` for the usual one of the image tower.
        target: `class` for the similarity of the predicted class, `score` for the detector's score, or a class name.
    """

    def __init__(self, judge: Detector | Classifier, method: str = AUTO, target: str = CLASS) -> None:
        self.detector = judge if isinstance(judge, Detector) else None
        if isinstance(judge, Detector):
            classifier = judge.classifier
        else:
            check_classifier(judge, "explain")
            classifier = judge
        model = require_towers(classifier.model, "explain")
        self.target = target
        self._scorer: Scorer | None = None
        if self.detector is not None:
            self._scorer = self.detector.scorer
            if target == SCORE or self.detector.calibration is not None:
                self._scorer.check_fitted()
        elif target == SCORE:
            raise InputError("A classifier has no score: give explain a detector, such as Detector(classifier).")
        self._position: int | None = None
        if target not in (CLASS, SCORE):
            self._position = class_position(target, classifier, scored=self.detector is not None)
        of_score = self._scorer.score.needs if self._scorer is not None else frozenset()
        self._subject = Subject(classifier, model, patches=Need.PATCHES in classifier.needs_to_predict | of_score)
        looked_at = classifier.needs_to_predict | (of_score if target == SCORE else frozenset())
        self.method = get_method(method, model, looked_at)

    @cached_property
    def reasons(self) -> Reasons | None:
        """What the detector can say of images that it rejects; None without one that gives verdicts."""
        detector = self.detector
        return Reasons(detector) if detector is not None and detector.calibration is not None else None

    @property
    def classifier(self) -> Classifier:
        """Whose similarities are explained."""
        return self._subject.classifier

    def stream(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> ExplanationStream:
        """Explanations as they are found; memory does not grow with the number of images."""
        if is_feature_array(images):
            raise InputError("explain makes maps over images: give it images, not features.")
        model, patches = self._subject.model, self._subject.patches
        if progress is None:
            progress = shown("Explaining images")
        batches = model.stream(images, patches=patches, batch_size=batch_size, progress=progress)
        return ExplanationStream(self, batches)

    def explain_batch(self, batch: EncodedBatch) -> list[Explanation]:
        """Explanations of images that are encoded already, with their pixels."""
        if not batch.items:
            return []
        if batch.pixels is None:
            raise InputError("explain makes maps over pixels: give it the images, not a feature store.")
        scored, similarities = score_encoded(self.classifier, self._scorers, batch)
        judged = self.detector if self.detector is not None and self.detector.calibration is not None else None
        verdicts = judged.judge(scored) if judged is not None else None
        predicted = torch.from_numpy(scored.predicted)
        positions = predicted if self._position is None else torch.full_like(predicted, self._position)

        def target_of(rows: torch.Tensor) -> Target:
            if self.target != SCORE:
                return class_target(positions[rows])
            assert self._scorer is not None
            return score_target(self._scorer)

        maps = make_maps(self.method, self._subject, batch.pixels, target_of).numpy()
        rows: npt.NDArray[np.float32] = similarities.float().cpu().numpy()
        features, pixels = batch.features.float().cpu().numpy(), batch.pixels.float().cpu().numpy()
        found = []
        for i, item in enumerate(batch.items):
            position = int(positions[i])
            scoring = self.target == SCORE and self._scorer is not None
            value = scored.values[self._scorer.spec][i] if scoring and self._scorer is not None else rows[i, position]
            found.append(
                Explanation(
                    id=item.id,
                    label=self.classifier.classes[int(predicted[i])],
                    confidence=float(scored.confidence[i]),
                    verdict=None if verdicts is None else verdicts[i],
                    method=self.method.name,
                    target=SCORE if scoring else self.classifier.classes[position],
                    value=float(value),
                    heatmap=maps[i],
                    image=self._subject.model.preprocessing.picture(pixels[i]),
                    similarities=rows[i],
                    features=features[i],
                )
            )
        return found

    @property
    def _scorers(self) -> list[Scorer]:
        """The score, where it is asked for or gives a verdict."""
        return [self._scorer] if self._scorer is not None and self._scorer.fitted else []


class ExplanationStream(Iterator[Explanation]):
    """Explanations as they are found, one batch ahead at most; `unreadable` grows on the way."""

    def __init__(self, explainer: Explainer, batches: Iterator[EncodedBatch]) -> None:
        self.unreadable: list[Unreadable] = []
        self._found = self._explain(explainer, batches)

    def _explain(self, explainer: Explainer, batches: Iterator[EncodedBatch]) -> Iterator[Explanation]:
        for batch in batches:
            self.unreadable += batch.unreadable
            yield from explainer.explain_batch(batch)

    def __next__(self) -> Explanation:
        return next(self._found)


def explain(
    judge: Detector | Classifier,
    images: Any,
    method: str = AUTO,
    target: str = CLASS,
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Explanations:
    """Where in each image it stands what speaks for its class, or what moves its score.

    For more images than fit into memory: `Explainer(judge, method, target).stream(images)`.

    Args:
        judge: a detector or a classifier, zero-shot or tuned.
        images: as everywhere; those that cannot be read are skipped and listed in the result's `unreadable`.
        method: `value-path`, `rollout`, `grad-cam`, `occlusion`, or `auto` for the usual one of the image tower.
        target: `class` for the similarity of the predicted class, `score` for the detector's score, or a class name.
        batch_size: images per step of the image tower.
        progress: called with (done, total).
    """
    stream = Explainer(judge, method, target).stream(images, batch_size=batch_size, progress=progress)
    return Explanations(list(stream), stream.unreadable)
