"""`explain`: heatmaps for any number of images, batch by batch, each with the detector's verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
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
from deltaenergy.scores.base import Scorer
from deltaenergy.scoring import score_encoded
from deltaenergy.source import list_images, require_images

# Maximum images shown in a notebook cell.
_SHOWN = 20


class Explanations(HasRepr, list[Explanation]):
    """Explanations in input order, with the unreadable images and the explainer.

    `deltaenergy.write_report` writes a page, `save` one PNG per image.
    """

    def __init__(self, explanations: Iterable[Explanation], unreadable: list[Unreadable], explainer: Explainer) -> None:
        super().__init__(explanations)
        self.unreadable, self.explainer = unreadable, explainer

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
        self.target = target
        # The detector if it gives verdicts, and the scorer of any detector.
        self.judge: Detector | None = None
        self.scorer: Scorer | None = None
        if isinstance(by, Detector):
            self.classifier, self.scorer = by.classifier, by.scorer
            self.judge = by if by.calibration is not None else None
            if target == SCORE or self.judge is not None:
                self.scorer.check_fitted()
        else:
            check_classifier(by, "explain")
            self.classifier = by
            if target == SCORE:
                raise InputError("A classifier has no score: pass a detector, such as Detector(classifier).")
        self._position: int | None = None
        if target not in (CLASS, SCORE):
            self._position = class_position(target, self.classifier, scored=self.scorer is not None)
        model = require_towers(self.classifier.model, "explain")
        needed = self.classifier.needs_to_predict
        of_score = frozenset() if self.scorer is None else self.scorer.score.needs
        self._model = ExplainedModel(self.classifier, model, patches=Need.PATCHES in needed | of_score)
        self.method = get_method(method, model, needed | of_score if target == SCORE else needed)

    @cached_property
    def reasons(self) -> RejectionReasons | None:
        """Reasons for rejected images; None without a detector that gives verdicts."""
        return None if self.judge is None else RejectionReasons(self.judge)

    def stream(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Iterator[Explanation]:
        """Explanations as they are made; memory does not grow with the number of images."""
        return (one for part in self.batches(images, batch_size=batch_size, progress=progress) for one in part)

    def batches(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Iterator[Explanations]:
        """The explanations of each batch, and its unreadable images."""
        by, progress = self._model, progress or shown("Explaining images")
        given = require_images(images, "explain")
        encoded = by.model.stream(given, patches=by.patches, batch_size=batch_size, progress=progress)
        return map(self.explain_batch, encoded)

    def explain_batch(self, batch: EncodedBatch) -> Explanations:
        """Explanations of encoded images, with their pixels."""
        if not batch.items:
            return Explanations([], batch.unreadable, self)
        if batch.pixels is None:
            raise InputError("explain needs pixels: pass the images, not a feature store.")
        classes, scoring = self.classifier.classes, self.scorer if self.target == SCORE else None
        scorers = [self.scorer] if self.scorer is not None and self.scorer.fitted else []
        scored, similarities = score_encoded(self.classifier, scorers, batch)
        verdicts = None if self.judge is None else self.judge.judge(scored)
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
        explained = [
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
        return Explanations(explained, batch.unreadable, self)


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
        parts = list(explainer.batches(listed, batch_size=source.on.batch_size, progress=progress))
    unreadable = [image for part in parts for image in part.unreadable]
    return Explanations((one for part in parts for one in part), unreadable, explainer)
