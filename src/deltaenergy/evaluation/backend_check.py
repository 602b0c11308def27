"""Whether a model on another backend gives the same labels and verdicts as on torch.

Both towers get the same pixels, in turns. Class texts, score and class list are the same. Every other known image sets
thresholds, one on torch's features and one on the backend's; the rest, and the open set, get three verdicts: torch by
its threshold, the backend by torch's threshold, the backend by its own.

They are equal only if no label and no verdict differs among enough images. If k of n images differ, at most the share p
of new images like these differs, with 95% confidence, where

    P(Binomial(n, p) ≤ k) = 0.05        (Clopper & Pearson, Biometrika 1934);   for k = 0:  p = 1 − 0.05^(1/n)

and p must be at most 1%: 299 images without a difference.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
from deltaenergy.core.classes import class_names
from deltaenergy.core.progress import Progress, stage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import one_score
from deltaenergy.detector.verdict import Verdict
from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.encoding import decode_ahead
from deltaenergy.models.on import On
from deltaenergy.scores.availability import Given, check_runnable
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import DEFAULT_SCORE
from deltaenergy.source import Features, require_images
from deltaenergy.stats.metrics import Estimate, auroc, paired_differences
from deltaenergy.stats.thresholds import upper_share

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

CONFIDENCE, MOST_SHARE = 0.95, 0.01
# A threshold on fewer images would be one image's score.
LEAST_IMAGES = 4


@dataclass(frozen=True)
class BackendAgreement:
    """The result. Differences are of the backend against torch.

    Attributes:
        images: readable images, known and open; each has a label from both.
        judged: images that did not set thresholds; each has verdicts from both.
        known: the known images among `images`.
        labels_differ: of the known images.
        open_labels_differ: of the open set, whose labels mean little.
        verdicts_differ: of the judged images, by torch's threshold.
        own_verdicts_differ: of the judged images, the backend by its own threshold.
        judged_differ: judged images with another label or any other verdict.
        largest_score_difference: of one image, by the score that was fitted on torch.
        score_deviation: the standard deviation of torch's scores, for comparison.
        least_cosine: between the two features of one image.
        auroc, difference: of torch; the backend's minus that, with its paired 95% interval. None without an open set.
        milliseconds: per image, of torch and of the backend, tower only.
        ratios: torch's time over the backend's, of each batch.
    """

    model: str
    backend: str
    precision: str
    score: str
    images: int
    known: int
    judged: int
    labels_differ: int
    open_labels_differ: int
    verdicts_differ: int
    own_verdicts_differ: int
    judged_differ: int
    thresholds: tuple[float | None, float | None]
    largest_score_difference: float
    score_deviation: float
    least_cosine: float
    milliseconds: tuple[float, float]
    ratios: tuple[float, ...]
    auroc: float | None = None
    difference: Estimate | None = None
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """At most this share of new images like these differs, with 95% confidence."""
        return upper_share(self.judged_differ, self.judged, 1 - CONFIDENCE)

    @property
    def differs(self) -> bool:
        """Whether any label or verdict differs."""
        return bool(self.labels_differ or self.open_labels_differ or self.judged_differ)

    @property
    def equal(self) -> bool:
        """Whether no label or verdict differs, among enough images."""
        return not self.differs and self.bound <= MOST_SHARE

    @property
    def speed(self) -> float:
        """Speed relative to torch."""
        return self.milliseconds[0] / self.milliseconds[1]

    def conclusion(self) -> str:
        """One sentence: equal, different, or not enough images to say."""
        share = f"with 95% confidence at most {self.bound:.2%} of images like these would get another label or verdict"
        if self.equal:
            return f"Equal: no label and no verdict differs, and {share}."
        if not self.differs:
            needed = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - MOST_SHARE))
            return (
                f"Not shown to be equal: nothing differs among {self.judged} images, but {share}. {needed} images "
                "would be enough."
            )
        differ = self.judged_differ
        if not differ:
            return f"Not equal: {self.labels_differ} of the images that set thresholds get another label."
        return f"Not equal: {differ} of {self.judged} images get another label or verdict; {share}."

    def to_dict(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name not in ("unreadable", "difference")}
        change = None if self.difference is None else self.difference._asdict()
        ours = {"bound": self.bound, "equal": self.equal, "speed": self.speed, "conclusion": self.conclusion()}
        unreadable = [{"path": image.id, "reason": image.reason} for image in self.unreadable]
        return {**found, "auroc_difference": change, **ours, "unreadable": unreadable}


def check_model(
    model: str | Path,
    images: Any,
    open_images: Any = None,
    *,
    on: str | On,
    score: str | Score | None = None,
    calibration_images: Any = None,
) -> BackendAgreement:
    """Load a model on torch in fp32 and as `on` says, and compare both (`check_agreement`).

    The class folders of `images` name the classes.
    """
    on = On.of(on)
    if on.backend in (None, "torch") and on.precision in ("auto", "fp32"):
        raise InputError("`on` must name another backend or precision: this compares with torch in fp32.")
    on.check(calibration_images)
    known, unknown = (
        [] if given is None else list(require_images(given, "check_model")) for given in (images, open_images)
    )
    names = class_names(known)
    if not names:
        raise InputError(f"`images` {images}: the images have no classes. Sort them into class folders.")
    chosen = one_score(DEFAULT_SCORE if score is None else score)
    with stage("Loading the model"):
        candidate = on.load_model(model, calibration_images)
        reference = On(device=str(candidate.device), precision="fp32").load_model(model)
    return check_agreement(reference, candidate, names, known, unknown, score=chosen, batch_size=on.batch_size)


def check_agreement(
    reference: TowerModel,
    candidate: TowerModel,
    classes: Sequence[str],
    known: Sequence[ImageItem],
    unknown: Sequence[ImageItem] = (),
    *,
    score: Score,
    keep: float = 0.95,
    batch_size: int = 32,
) -> BackendAgreement:
    """Run both models on the same images and compare labels, verdicts and speed.

    Args:
        reference: on torch.
        candidate: the same weights on another backend.
        classes: for zero-shot labels.
        known: known images.
        unknown: of none of the classes, for the AUROC and for more verdicts.
        score: one that works on features.
        keep: share of known images that thresholds keep.
        batch_size: images per step of both towers.
    """
    base = reference.fingerprint
    if reference.backend != "torch" or not candidate.fingerprint.startswith(f"{base}+"):
        raise InputError(
            "check_agreement compares a model on torch with the same weights on another backend; these are "
            f"{reference.fingerprint} and {candidate.fingerprint}."
        )
    check_runnable([score], Given.of([Features(np.zeros((1, reference.feature_dim)))], model=reference))
    classifier = ZeroShotClassifier(reference, classes)
    both = _SideBySide(reference, candidate, batch_size)
    with stage("Encoding on both") as progress:
        readable = both.encode(known, progress)
        if readable < LEAST_IMAGES:
            raise InputError(f"Agreement needs at least {LEAST_IMAGES} readable known images, got {readable}.")
        opened = np.arange(readable + both.encode(unknown, progress)) >= readable
    ours, theirs = (np.concatenate(part) for part in both.features)
    known_at = np.flatnonzero(~opened)
    calibrating, judged = known_at[::2], np.concatenate([known_at[1::2], np.flatnonzero(opened)])
    on_torch = Detector(classifier, score).calibrate(ours[calibrating], keep, None)
    on_backend = Detector(classifier, score).calibrate(theirs[calibrating], keep, None)
    plain, carried = on_torch.predict(ours[judged]), on_torch.predict(theirs[judged])
    own = on_backend.predict(theirs[judged])
    labels = [np.asarray(classifier.similarities(part)).argmax(1) for part in (ours, theirs)]
    other_label = labels[0] != labels[1]
    other, other_own = _other(plain, carried), _other(plain, own)
    values, moved = (np.array([verdict.score for verdict in verdicts]) for verdicts in (plain, carried))
    outside = opened[judged]
    measured = bool(outside.any())
    pairs = [(scores[~outside], scores[outside]) for scores in (values, moved)] if measured else []
    return BackendAgreement(
        model=reference.name,
        backend=candidate.backend,
        precision=candidate.precision,
        score=score.spec,
        images=len(ours),
        known=len(known_at),
        judged=len(judged),
        labels_differ=int(other_label[known_at].sum()),
        open_labels_differ=int(other_label[opened].sum()),
        verdicts_differ=int(other.sum()),
        own_verdicts_differ=int(other_own.sum()),
        judged_differ=int((other_label[judged] | other | other_own).sum()),
        thresholds=(on_torch.threshold, on_backend.threshold),
        largest_score_difference=float(np.abs(values - moved).max()),
        score_deviation=float(values.std()),
        least_cosine=float((ours.astype(np.float64) * theirs).sum(1).min()),
        milliseconds=both.milliseconds(),
        ratios=both.ratios(),
        auroc=auroc(*pairs[0]) if measured else None,
        difference=paired_differences(pairs[0], pairs[1])["auroc"] if measured else None,
        unreadable=both.unreadable,
    )


def _other(first: Sequence[Verdict], second: Sequence[Verdict]) -> npt.NDArray[np.bool_]:
    return np.array([one.is_ood != two.is_ood for one, two in zip(first, second)], dtype=bool)


@dataclass
class _SideBySide:
    """Features of the same pixels by both towers, each timed, alternating which is first."""

    reference: TowerModel
    candidate: TowerModel
    batch_size: int
    features: tuple[list[Array], list[Array]] = field(default_factory=lambda: ([], []))
    unreadable: list[Unreadable] = field(default_factory=list)
    # Of each batch: its images, and the seconds of either tower.
    times: list[tuple[int, float, float]] = field(default_factory=list)

    def encode(self, items: Sequence[ImageItem], progress: Progress) -> int:
        """Encode images by both, a batch at a time; how many could be read."""
        readable = 0
        with contextlib.closing(decode_ahead(self.reference, items, 2 * self.batch_size)) as decoded:
            for start in range(0, len(items), self.batch_size):
                batch = list(itertools.islice(decoded, self.batch_size))
                self.unreadable += [Unreadable(item.id, pixels) for item, pixels in batch if isinstance(pixels, str)]
                readable += self._run([pixels for _, pixels in batch if not isinstance(pixels, str)])
                progress(start + len(batch), len(items))
        return readable

    @torch.inference_mode()
    def _run(self, images: Sequence[Array]) -> int:
        if not images:
            return 0
        pixels = torch.from_numpy(np.stack(images)).to(self.reference.device)
        models = (self.reference, self.candidate)
        if not self.times:  # the first run of a shape also sets it up
            for model in models:
                model.image_features(pixels)
        seconds = [0.0, 0.0]
        for position in (0, 1) if len(self.times) % 2 else (1, 0):
            began = time.perf_counter()
            features = models[position].image_features(pixels).float().cpu()  # waits for a GPU
            seconds[position] = time.perf_counter() - began
            self.features[position].append(features.numpy())
        self.times.append((len(images), seconds[0], seconds[1]))
        return len(images)

    def milliseconds(self) -> tuple[float, float]:
        """Per image, over all batches."""
        images = sum(count for count, _, _ in self.times)
        return tuple(1000 * sum(times[i] for times in self.times) / images for i in (1, 2))  # type: ignore[return-value]

    def ratios(self) -> tuple[float, ...]:
        """Of each full batch; the last may be too small."""
        whole = self.times[0][0]
        return tuple(first / second for count, first, second in self.times if count == whole)
