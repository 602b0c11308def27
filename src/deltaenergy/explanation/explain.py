"""`explain`: heatmaps for any number of images, batch by batch, each with the detector's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, check_classifier
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress, shown, stage
from deltaenergy.core.text import HasRepr
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import By, ClassNames, DetectorSource
from deltaenergy.errors import InputError
from deltaenergy.explanation.explanation import Explanation
from deltaenergy.explanation.methods import (
    AUTO,
    CLASS,
    SCORE,
    ExplainedModel,
    Target,
    check_method,
    class_position,
    class_target,
    get_method,
    make_maps,
    score_target,
)
from deltaenergy.explanation.why import RejectionReasons
from deltaenergy.models.base import require_towers
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.on import On
from deltaenergy.scoring import score_encoded
from deltaenergy.source import list_images, require_images

if TYPE_CHECKING:
    import numpy.typing as npt

# Maximum images shown in a notebook cell.
_SHOWN = 20


class Explanations(HasRepr, Sequence[Explanation]):
    """Explanations in input order, the unreadable images, and the explainer.

    `deltaenergy.write_report` writes a page, `save` one PNG per image.
    """

    def __init__(self, explanations: list[Explanation], unreadable: list[Unreadable], explainer: Explainer) -> None:
        self._explanations, self.unreadable, self.explainer = explanations, unreadable, explainer

    @overload
    def __getitem__(self, index: int) -> Explanation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Explanation]: ...
    def __getitem__(self, index: int | slice) -> Explanation | list[Explanation]:
        return self._explanations[index]

    def __len__(self) -> int:
        return len(self._explanations)

    def save(self, folder: str | Path) -> None:
        """Write one PNG per image to `folder`, named like the image; your own files are never replaced."""
        from deltaenergy.explanation.page import png_names

        for one, name in zip(self, png_names([one.id for one in self], folder)):
            one.save(Path(folder) / name)

    def report_page(self, folder: Path, title: str | None, command: str | None) -> str:
        from deltaenergy.explanation.page import explanations_page

        return explanations_page(self, folder, title, command)

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {"images": len(self)}
        if len(self):
            facts |= {"method": self[0].method, "unreadable": len(self.unreadable)}
        return facts

    def _repr_html_(self) -> str:
        return super()._repr_html_() + "".join(one._repr_html_() for one in self[:_SHOWN])


class Explainer:
    """Explains images: a detector or classifier, a method, and a target.

    All three are checked at creation.

    Args:
        by: a detector or a classifier, zero-shot or tuned.
        method: `value-path`, `rollout`, `grad-cam`, `occlusion`, or `auto` to choose by the image encoder.
        target: `class` for the similarity of the predicted class, `score` for the detector's score, or a class name.
    """

    @classmethod
    def open(cls, source: DetectorSource, method: str, target: str) -> Explainer:
        """Make an explainer, loading what it needs; class names and the target `score` use the default score."""
        named = isinstance(source.by, ClassNames)
        return cls(
            source.detector() if source.is_detector or (named and target == SCORE) else source.classifier(),
            method,
            target,
        )

    def __init__(self, by: Detector | Classifier, method: str = AUTO, target: str = CLASS) -> None:
        self.detector = by if isinstance(by, Detector) else None
        if not isinstance(by, Detector):
            check_classifier(by, "explain")
        self.classifier = by.classifier if isinstance(by, Detector) else by
        self.target = target
        self._scorer = None if self.detector is None else self.detector.scorer
        if self._scorer is None and target == SCORE:
            raise InputError("A classifier has no score: pass a detector, such as Detector(classifier).")
        if self._scorer is not None and (target == SCORE or self._gives_verdicts):
            self._scorer.check_fitted()
        self._position: int | None = None
        if target not in (CLASS, SCORE):
            self._position = class_position(target, self.classifier, scored=self._scorer is not None)
        model = require_towers(self.classifier.model, "explain")
        needed = self.classifier.needs_to_predict
        of_score = frozenset() if self._scorer is None else self._scorer.score.needs
        self._model = ExplainedModel(self.classifier, model, patches=Need.PATCHES in needed | of_score)
        self.method = get_method(method, model, needed | of_score if target == SCORE else needed)

    @property
    def _gives_verdicts(self) -> bool:
        return self.detector is not None and self.detector.calibration is not None

    @cached_property
    def reasons(self) -> RejectionReasons | None:
        """Reasons for rejected images; None without a detector that gives verdicts."""
        return RejectionReasons(self.detector) if self.detector is not None and self._gives_verdicts else None

    def stream(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> ExplanationStream:
        """Explanations as they are made; memory does not grow with the number of images."""
        by, progress = self._model, progress or shown("Explaining images")
        return ExplanationStream(
            self,
            by.model.stream(
                require_images(images, "explain"), patches=by.patches, batch_size=batch_size, progress=progress
            ),
        )

    def explain_batch(self, batch: EncodedBatch) -> list[Explanation]:
        """Explanations of encoded images, with their pixels."""
        if not batch.items:
            return []
        if batch.pixels is None:
            raise InputError("explain needs pixels: pass the images, not a feature store.")
        classes, scoring = self.classifier.classes, self._scorer if self.target == SCORE else None
        scorers = [self._scorer] if self._scorer is not None and self._scorer.fitted else []
        scored, similarities = score_encoded(self.classifier, scorers, batch)
        verdicts = self.detector.judge(scored) if self.detector is not None and self._gives_verdicts else None
        predicted = torch.from_numpy(scored.predicted)
        positions = predicted if self._position is None else torch.full_like(predicted, self._position)

        def target_of(chosen: torch.Tensor) -> Target:
            return class_target(positions[chosen]) if scoring is None else score_target(scoring)

        maps = make_maps(self.method, self._model, batch.pixels, target_of).numpy()
        rows: npt.NDArray[np.float32] = similarities.float().cpu().numpy()
        features, pixels = batch.features.float().cpu().numpy(), batch.pixels.float().cpu().numpy()
        if scoring is None:
            targets, values = [classes[k] for k in positions], rows[np.arange(len(rows)), positions]
        else:
            targets, values = [SCORE] * len(rows), scored.values[scoring.spec]
        return [
            Explanation(
                id=item.id,
                label=classes[int(predicted[i])],
                confidence=float(scored.confidence[i]),
                verdict=None if verdicts is None else verdicts[i],
                method=self.method.name,
                target=targets[i],
                value=float(values[i]),
                heatmap=maps[i],
                image=self._model.model.preprocessing.picture(pixels[i]),
                similarities=rows[i],
                features=features[i],
            )
            for i, item in enumerate(batch.items)
        ]


class ExplanationStream(Iterator[Explanation]):
    """Explanations as they are made, at most one batch ahead; `unreadable` grows meanwhile."""

    def __init__(self, explainer: Explainer, batches: Iterator[EncodedBatch]) -> None:
        self.unreadable: list[Unreadable] = []
        self._found = self._explain(explainer, batches)

    def _explain(self, explainer: Explainer, batches: Iterator[EncodedBatch]) -> Iterator[Explanation]:
        for batch in batches:
            self.unreadable += batch.unreadable
            yield from explainer.explain_batch(batch)

    def __next__(self) -> Explanation:
        return next(self._found)


def explain(by: By, images: Any, method: str = AUTO, target: str = CLASS, *, on: str | On = "auto") -> Explanations:
    """Make heatmaps of what supports each image's class or drives its score.

    For more images than fit into memory: `Explainer(by, method, target).stream(images)`, or `write_explanations`.

    Args:
        by: a detector or its folder, a classifier, or class names.
        images: as everywhere; unreadable images are skipped and listed in `unreadable`.
        method: `value-path`, `rollout`, `grad-cam`, `occlusion`, or `auto` to choose by the image encoder.
        target: `class` for the similarity of the predicted class, `score` for the detector's score, or a class name.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "explain")
    check_method(method)
    listed = list_images(require_images(images, "explain"))
    explainer = Explainer.open(source, method, target)
    with stage("Explaining") as progress:
        stream = explainer.stream(listed, batch_size=source.on.batch_size, progress=progress)
        return Explanations(list(stream), stream.unreadable, explainer)
