"""Why an image was rejected.

- *Scores.* How many known images score as low, by the detector's score and by other scores: k of n, which is the
  p-value (1 + k) / (n + 1).
- *Nearest classes.* How similar the image is to each, compared with the calibration images of that predicted class: p =
  (1 + #{i classified as k: s_i ≤ s}) / (n_k + 1), small if hardly any of them was as far off.
- *Nearest calibration images*, by the cosine of their features.
- *Negative words*, for scores that have them: the probability of a word among all classes and words, as in NegLabel
  (ICLR 2024), with the score's temperature T: share of w = e^{s_w/T} / ( Σ_k e^{s_k/T} + Σ_w e^{s_w/T} ).

All but the detector's score and the words need calibration images, which a detector stores on request (`calibrate(…,
keep_images=True)`); `notes` say what is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.core.classes import first_of_name
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.detector.calibration import Calibration
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.verdict import Verdict
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.delta_energy_words import DeltaEnergyWords, words_of
from deltaenergy.scores.neglabel import MinedScore
from deltaenergy.scores.negrefine import NegRefine, refined_words
from deltaenergy.scoring import Encoded, score_encoded, score_inputs
from deltaenergy.source import as_source
from deltaenergy.stats.thresholds import conformal_p_values

# Scores that need only similarities, to compare with the detector's own.
OTHER_SCORES = ("delta-energy", "mcm", "max-logit", "energy")
CLASSES, NEIGHBOURS, WORDS = 3, 5, 5
# With fewer calibration images of a class, their range means nothing.
LEAST_IMAGES = 5
# Features of one word agree this closely, however they were computed.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class NearClass:
    """A class, the image's similarity with it, and that of the calibration images of that predicted class.

    `usual` is their 5%, 50% and 95% quantile; it and `p_value` are None with too few or no stored images.
    """

    name: str
    similarity: float
    images: int = 0
    usual: tuple[float, float, float] | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class NearImage:
    """A calibration image: its name, the cosine with it, its predicted class, its score, and a JPEG or b""."""

    name: str
    cosine: float
    named: str
    score: float
    thumbnail: bytes


@dataclass(frozen=True)
class ScoreReason:
    """One score of an image and its p-value among known `images`; None if no p-value is valid."""

    spec: str
    value: float
    p_value: float | None
    images: int

    @property
    def as_low(self) -> int | None:
        """How many of them score as low: k in p = (1 + k) / (n + 1), also with folds or classes."""
        return None if self.p_value is None else round(self.p_value * (self.images + 1)) - 1


@dataclass(frozen=True)
class NegativeWord:
    """A negative word, the image's similarity with it, and its probability among all classes and words."""

    word: str
    similarity: float
    share: float


@dataclass(frozen=True)
class WhyRejected:
    """The reasons for one image; `notes` say what is missing and how to get it."""

    id: str
    verdict: Verdict
    classes: tuple[NearClass, ...]
    scores: tuple[ScoreReason, ...]
    images: tuple[NearImage, ...]
    words: tuple[NegativeWord, ...]
    notes: tuple[str, ...]


class RejectionReasons:
    """Finds the reasons for a detector's verdicts; slow work is done once, at creation.

    Args:
        detector: calibrated; with `keep_images` there are more reasons.
        scores: other scores to compare; they must work on features.
    """

    def __init__(self, detector: Detector, scores: Sequence[str] = OTHER_SCORES) -> None:
        self.detector, self.kept = detector, detector.kept_images
        self.notes: list[str] = []
        self._others: list[Detector] = []
        self._first = np.array(first_of_name(detector.classifier.classes), dtype=np.int64)
        if self.kept is None:
            self.notes.append(
                "This detector kept no calibration images, so there are no neighbours, no usual similarities and no "
                "other scores: calibrate it with keep_images=True."
            )
        elif not detector.classifier.needs_to_predict - {Need.FEATURES}:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # only p-values are used, not the threshold
                self._others = [
                    Detector(detector.classifier, spec).calibrate(self.kept.features, progress=lambda *_: None)
                    for spec in scores
                    if spec != detector.score.spec
                ]
        self.words: tuple[str, ...] | None = None
        try:
            self.words = negative_words(detector.scorer)
        except DeltaEnergyError as error:
            self.notes.append(f"The negative words cannot be listed: {error}")

    def of(self, verdicts: Sequence[Verdict], similarities: Any, features: Any) -> list[WhyRejected]:
        """The reasons for images with these verdicts, similarities (N, K) and unit features (N, D)."""
        if not len(verdicts):
            return []
        device = self.detector.classifier.model.device
        inputs = ScoreInputs(
            torch.as_tensor(np.asarray(similarities), dtype=torch.float32, device=device),
            torch.as_tensor(np.asarray(features), dtype=torch.float32, device=device),
        )
        rows = inputs.similarities.cpu().double().numpy()
        scores = [[self._own_score(verdict)] for verdict in verdicts]
        values = score_inputs([other.scorer for other in self._others], inputs)
        for other in self._others:
            spec, known = other.score.spec, len(other.calibration_scores)
            for found, value, p in zip(scores, values[spec], other.p_values(values[spec])):
                found.append(ScoreReason(spec, float(value), float(p), known))
        order = np.argsort(-rows, axis=1, kind="stable")[:, :CLASSES]
        near, words = self._neighbours(inputs.features.cpu().numpy()), self._words(inputs)
        return [
            WhyRejected(
                id=verdict.path,
                verdict=verdict,
                classes=tuple(self._near_class(int(k), float(rows[i, k])) for k in order[i]),
                scores=tuple(scores[i]),
                images=near[i],
                words=words[i],
                notes=tuple(self.notes),
            )
            for i, verdict in enumerate(verdicts)
        ]

    def _own_score(self, verdict: Verdict) -> ScoreReason:
        known, images = self.detector.require_threshold(), 0
        if isinstance(known, Calibration):
            own = known.by_class.get(self.detector.classifier.classes.index(verdict.label), known)
            images = len(own.scores)
        return ScoreReason(self.detector.score.spec, verdict.score, verdict.p_value, images)

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

    def _words(self, inputs: ScoreInputs) -> list[tuple[NegativeWord, ...]]:
        """The words with the largest share for each image, largest first."""
        if self.words is None:
            return [()] * len(inputs.features)
        scorer = self.detector.scorer
        with torch.inference_mode():
            features = scorer.compared_features(inputs)
            similarities = features @ scorer.state["negatives"].to(features).T
            temperature = getattr(scorer.score, "temperature", getattr(scorer.score, "tau", 0.01))
            temperature = temperature or 1 / scorer.classifier.model.logit_scale
            logits = torch.cat([inputs.similarities.to(similarities), similarities], dim=1).double() / temperature
            shares = torch.softmax(logits, dim=1)[:, inputs.similarities.shape[1] :]
            top = similarities.topk(min(WORDS, len(self.words)), dim=1).indices
        return [
            tuple(NegativeWord(self.words[j], float(similarities[i, j]), float(shares[i, j])) for j in row)
            for i, row in enumerate(top.tolist())
        ]


def negative_words(scorer: Scorer) -> tuple[str, ...] | None:
    """The words behind a score's negatives, in their order; None for a score without negative labels.

    They are mined again (or read from the cache on disk) and compared with the saved features.
    """
    score = scorer.score
    if "negatives" not in scorer.state:
        return None
    if scorer.classifier.needs_to_predict - {Need.FEATURES}:
        raise InputError(f"a classifier by {scorer.classifier.method.name} uses more than features.")
    if isinstance(score, NegRefine):
        return tuple(refined_words(scorer))
    if isinstance(score, DeltaEnergyWords):
        return words_of(scorer).kept
    if not isinstance(score, MinedScore):
        raise InputError(f"{score.name} does not keep which words it chose.")
    mined, saved = score.mined(scorer.classifier, None), scorer.state["negatives"]
    if mined.features.shape != saved.shape or not torch.allclose(mined.features.to(saved), saved, atol=_ROUNDING):
        raise InputError(f"the words that {score.name} mines today are not those that this detector was saved with.")
    return mined.phrases or mined.words


def why_rejected(
    detector: Detector,
    images: Any,
    *,
    scores: Sequence[str] = OTHER_SCORES,
    rejected_only: bool = True,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[WhyRejected]:
    """The reasons for every rejected image, or for all with `rejected_only=False`; unreadable images are skipped."""
    reasons, classifier = RejectionReasons(detector, scores), detector.classifier
    found: list[WhyRejected] = []
    encoded = Encoded(classifier, [detector.score], as_source(images), batch_size=batch_size, progress=progress)
    for batch in encoded.batches([detector.scorer]):
        if batch.items:
            scored, similarities = score_encoded(classifier, [detector.scorer], batch)
            verdicts = detector.judge(scored)
            rows = [i for i, verdict in enumerate(verdicts) if verdict.is_ood or not rejected_only]
            found += reasons.of(
                [verdicts[i] for i in rows],
                similarities[rows].float().cpu().numpy(),
                batch.features[rows].float().cpu().numpy(),
            )
    return found
