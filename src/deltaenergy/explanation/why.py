"""Why not: what a detector can say of an image that it rejects.

- *Nearest classes.* How similar the image is to each, and how that compares with the calibration images that were named
  so: p = (1 + #{i named k: s_i ≤ s}) / (n_k + 1), small where hardly any of them was so far off.
- *Scores.* Its p-value by the detector's score, and by others that are calibrated on the kept images.
- *Nearest calibration images*, by the cosine of their features.
- *Loudest words*, for scores with negative labels: the share of word w is e^{s_w/T} / (Σ_k e^{s_k/T} + Σ_w e^{s_w/T}).

All but the detector's own p-value and the words need calibration images, which a detector keeps if it was asked to
(`calibrate(…, keep_images=True)`); what is lacking is said in `notes`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.core.labels import first_of_name
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.verdict import Verdict
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.explanation.words import LoudWord, loudest_words, negative_words
from deltaenergy.models.base import require_towers
from deltaenergy.models.features import check_features, is_feature_array
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scoring import score_encoded, score_images, score_inputs
from deltaenergy.stats.thresholds import conformal_p_values

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.detector.reference_images import KeptImages

# Scores that need nothing beyond similarities, beside the detector's own.
OTHER_SCORES = ("delta-energy", "mcm", "max-logit", "energy")
CLASSES, NEIGHBOURS, WORDS = 3, 5, 5
# With fewer calibration images of a class, their range says nothing.
LEAST_IMAGES = 5


@dataclass(frozen=True)
class NearClass:
    """A class, how similar the image is to it, and how similar calibration images are that were named so.

    `usual` is their 5 %, 50 % and 95 % quantile; with it, `p_value` is None where they are too few, or were not kept.
    """

    name: str
    similarity: float
    images: int = 0
    usual: tuple[float, float, float] | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class NearImage:
    """A calibration image: its name, the cosine with it, the class it was named, its score, and a JPEG or b""."""

    name: str
    cosine: float
    named: str
    score: float
    thumbnail: bytes


@dataclass(frozen=True)
class ScoreReason:
    """What one score says of an image, and its p-value against the calibration images; None where none is valid."""

    spec: str
    value: float
    p_value: float | None


@dataclass(frozen=True)
class WhyNot:
    """All that is known of one image; `notes` say what is lacking, and how to get it."""

    id: str
    verdict: Verdict
    classes: tuple[NearClass, ...]
    scores: tuple[ScoreReason, ...]
    images: tuple[NearImage, ...]
    words: tuple[LoudWord, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without the pictures."""
        images = [{key: value for key, value in vars(one).items() if key != "thumbnail"} for one in self.images]
        return {
            "id": self.id,
            "verdict": asdict(self.verdict),
            "classes": [{**vars(one), "usual": None if one.usual is None else list(one.usual)} for one in self.classes],
            "scores": [vars(one) for one in self.scores],
            "images": images,
            "words": [vars(one) for one in self.words],
            "notes": list(self.notes),
        }


class Reasons:
    """What a detector can say of images; all that takes time is done once, when it is made.

    Args:
        detector: a calibrated one; with kept images it can say more.
        scores: others to give a p-value for, beside its own. They must work on features.
    """

    def __init__(self, detector: Detector, scores: Sequence[str] = OTHER_SCORES) -> None:
        self.detector, self.kept = detector, detector.kept_images
        self.notes: list[str] = []
        self._others: list[Detector] = []
        if self.kept is None:
            self.notes.append(
                "This detector kept no calibration images, so that there are no neighbours, no usual similarities, "
                "and no other scores: calibrate it with keep_images=True (--keep-images)."
            )
        else:
            self._others = self._calibrated([spec for spec in scores if spec != detector.score.spec], self.kept)
        self.words: tuple[str, ...] | None = None
        try:
            self.words = negative_words(detector.scorer)
        except DeltaEnergyError as error:
            self.notes.append(f"The negative words cannot be told: {error}")
        self._first = np.array(first_of_name(detector.classifier.classes), dtype=np.int64)

    def _calibrated(self, specs: Sequence[str], kept: KeptImages) -> list[Detector]:
        """Detectors of the same classifier by other scores, calibrated on the kept images."""
        detector = self.detector
        found = []
        for spec in specs:
            other = Detector(detector.classifier, spec)
            try:
                with warnings.catch_warnings():
                    # Only p-values are used, not the threshold.
                    warnings.simplefilter("ignore")
                    found.append(other.calibrate(kept.features, progress=lambda *_: None))
            except InputError as error:
                self.notes.append(f"There is no p-value by {spec}: {error}")
        return found

    def of(self, verdicts: Sequence[Verdict], similarities: Any, features: Any) -> list[WhyNot]:
        """The reasons of images with these verdicts, similarities (N, K) and unit features (N, D)."""
        classifier = self.detector.classifier
        device = classifier.model.device
        inputs = ScoreInputs(
            torch.as_tensor(np.asarray(similarities), dtype=torch.float32, device=device),
            torch.as_tensor(np.asarray(features), dtype=torch.float32, device=device),
        )
        rows = inputs.similarities.cpu().double().numpy()
        if len(verdicts) != len(rows) or len(verdicts) != len(inputs.features):
            raise InputError(
                f"There must be a verdict, similarities and a feature for each image, got {len(verdicts)}, "
                f"{len(rows)} and {len(inputs.features)}."
            )
        if not len(rows):
            return []
        scored = score_inputs([other.scorer for other in self._others], inputs)
        others = {
            other.score.spec: (values, other.p_values(values))
            for other in self._others
            for values in [scored[other.score.spec]]
        }
        words = self._words(inputs)
        neighbours = self._neighbours(inputs.features.cpu().numpy())
        return [
            WhyNot(
                id=verdict.path,
                verdict=verdict,
                classes=self._near_classes(rows[i]),
                scores=(
                    ScoreReason(self.detector.score.spec, verdict.score, verdict.p_value),
                    *(ScoreReason(spec, float(values[i]), float(p[i])) for spec, (values, p) in others.items()),
                ),
                images=neighbours[i],
                words=words[i],
                notes=tuple(self.notes),
            )
            for i, verdict in enumerate(verdicts)
        ]

    def _near_classes(self, similarities: npt.NDArray[np.float64]) -> tuple[NearClass, ...]:
        order = np.argsort(-similarities, kind="stable")[:CLASSES]
        return tuple(self._near_class(int(k), float(similarities[k])) for k in order)

    def _near_class(self, k: int, similarity: float) -> NearClass:
        name = self.detector.classifier.classes[k]
        if self.kept is None:
            return NearClass(name, similarity)
        usual = np.sort(self.kept.similarity[self._first[self.kept.named] == self._first[k]].astype(np.float64))
        if len(usual) < LEAST_IMAGES:
            return NearClass(name, similarity, len(usual))
        low, middle, high = np.quantile(usual, [0.05, 0.5, 0.95]).tolist()
        p = float(conformal_p_values(usual, np.array([similarity]))[0])
        return NearClass(name, similarity, len(usual), (low, middle, high), p)

    def _neighbours(self, features: npt.NDArray[np.float32]) -> list[tuple[NearImage, ...]]:
        kept, detector = self.kept, self.detector
        if kept is None:
            return [()] * len(features)
        cosines = features.astype(np.float64) @ kept.features.T.astype(np.float64)
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
        return [
            tuple(
                NearImage(
                    kept.names[j],
                    float(cosines[i, j]),
                    detector.classifier.classes[kept.named[j]],
                    float(detector.calibration_scores[j]),
                    kept.thumbnails[j],
                )
                for j in found.tolist()
            )
            for i, found in enumerate(nearest)
        ]

    def _words(self, inputs: ScoreInputs) -> list[tuple[LoudWord, ...]]:
        if self.words is None:
            return [()] * len(inputs.features)
        with torch.inference_mode():
            return loudest_words(self.detector.scorer, self.words, inputs, WORDS)


def why_not(
    detector: Detector,
    images: Any,
    *,
    scores: Sequence[str] = OTHER_SCORES,
    rejected_only: bool = True,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[WhyNot]:
    """The reasons of every rejected image, or of all with `rejected_only=False`; unreadable images are left out."""
    reasons, classifier = Reasons(detector, scores), detector.classifier
    found: list[WhyNot] = []

    def add(verdicts: Sequence[Verdict], similarities: Any, features: Any) -> None:
        rows = [i for i, verdict in enumerate(verdicts) if verdict.is_ood or not rejected_only]
        found.extend(reasons.of([verdicts[i] for i in rows], similarities[rows], features[rows]))

    if is_feature_array(images):
        features = check_features(images, classifier.model).float().cpu().numpy()
        scored = score_images(classifier, [detector.scorer], features, progress=progress)
        add(detector.judge(scored), classifier.similarities(features), features)
        return found
    needs = classifier.needs_to_predict | detector.score.needs
    model = require_towers(classifier.model, "why_not")
    for batch in model.stream(images, patches=Need.PATCHES in needs, batch_size=batch_size, progress=progress):
        if batch.items:
            scored, similarities = score_encoded(classifier, [detector.scorer], batch)
            add(detector.judge(scored), similarities.float().cpu().numpy(), batch.features.float().cpu().numpy())
    return found
