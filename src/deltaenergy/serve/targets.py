"""What images are judged by: a detector of the service, or class names that came with the request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.saved import version_of
from deltaenergy.detector.verdicts import verdict_word
from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.features import check_features
from deltaenergy.scores.base import Scorer
from deltaenergy.scoring import score_encoded
from deltaenergy.serve.schemas import ClassConfidence, DetectorInfo, ImageAnswer


@dataclass(frozen=True, eq=False)
class Target:
    """A classifier and a scorer; with a detector, a threshold too. Targets are told apart by identity."""

    classifier: Classifier
    scorer: Scorer
    detector: Detector | None = None
    name: str | None = None
    version: str | None = None
    patches: bool = field(init=False)

    def __post_init__(self) -> None:
        needs = self.classifier.needs_to_predict | self.scorer.score.needs
        object.__setattr__(self, "patches", bool(needs & {Need.PATCHES, Need.STATES}))

    @classmethod
    def of_detector(cls, name: str, detector: Detector) -> Target:
        """A calibrated detector under a name; what would make answers depend on each other is refused."""
        if detector.classifier.batch_dependent:
            raise InputError(
                f"The detector {name!r} judges an image by those beside it (its classifier is batch-dependent), so "
                "that answers would depend on who else asks. Tune it with serve=train."
            )
        return cls(detector.classifier, detector.prepare().scorer, detector, name, version_of(detector))

    @property
    def model(self) -> TowerModel | None:
        """What encodes its images; None if it holds stored features alone."""
        model = self.classifier.model
        return model if isinstance(model, TowerModel) else None

    @property
    def takes_features(self) -> bool:
        """Whether features are enough."""
        needs = self.classifier.needs_to_predict | self.scorer.score.needs
        return not (needs & {Need.PATCHES, Need.STATES, Need.PIXELS} or self.classifier.prompts_images)

    def judge(self, batch: EncodedBatch, top_k: Sequence[int]) -> list[ImageAnswer]:
        """Answers for encoded images, each with its own number of likeliest classes."""
        scored, similarities = score_encoded(self.classifier, [self.scorer], batch)
        scale, classes = self.classifier.model.logit_scale, self.classifier.classes
        verdicts = self.detector.judge(scored) if self.detector is not None else None
        own = {} if self.detector is None else self.detector.class_thresholds
        answers = []
        for i, item in enumerate(scored.items):
            value = float(scored.values[self.scorer.spec][i])
            shares = torch.softmax(similarities[i].double() * scale, dim=0)
            best = torch.topk(similarities[i], min(top_k[i], len(classes)))
            top = [
                ClassConfidence(label=classes[k], confidence=float(shares[k]), similarity=float(s))
                for k, s in zip(best.indices.tolist(), best.values.tolist())
            ]
            answer = ImageAnswer(
                id=item.id,
                label=classes[int(scored.predicted[i])],
                confidence=float(scored.confidence[i]),
                score=value if math.isfinite(value) else None,
                top=top,
                detector=self.name,
                version=self.version,
            )
            if verdicts is not None and self.detector is not None:
                answer.p_value, answer.is_ood = verdicts[i].p_value, verdicts[i].is_ood
                answer.verdict = verdict_word(verdicts[i].is_ood)
                answer.threshold = own.get(verdicts[i].label, self.detector.threshold)
            answers.append(answer)
        return answers

    def judge_features(self, features: list[list[float]], top_k: int) -> list[ImageAnswer]:
        """Answers for rows of unit features."""
        if not self.takes_features:
            raise InputError(f"The detector {self.name!r} looks at more than features: send images.")
        widths = {len(row) for row in features}
        if len(widths) > 1:
            raise InputError(f"features has rows of {min(widths)} and of {max(widths)} numbers.")
        rows = check_features(torch.tensor(features, dtype=torch.float32), self.classifier.model)
        items = [ImageItem(str(i), b"") for i in range(len(rows))]
        batch = EncodedBatch(items, None, rows.to(self.classifier.model.device), None, [])
        return self.judge(batch, [top_k] * len(rows))

    def info(self) -> DetectorInfo:
        """What may be told of a detector: no path of the server is part of it."""
        assert self.detector is not None and self.name is not None and self.version is not None
        return DetectorInfo(
            name=self.name,
            version=self.version,
            classes=list(self.classifier.classes),
            score=self.scorer.spec,
            method=self.classifier.method.spec,
            threshold=self.detector.threshold,
            keep=None if self.detector.guarantee is None else self.detector.guarantee.keep,
            guarantee=guarantee_of(self.detector),
            calibration_images=len(self.detector.calibration_scores),
            feature_dim=self.classifier.model.feature_dim,
            takes_features=self.takes_features,
            model_fingerprint=self.classifier.model.fingerprint,
        )


def guarantee_of(detector: Detector) -> str | None:
    """What the threshold guarantees, in a sentence."""
    return None if detector.guarantee is None else str(detector.guarantee)
