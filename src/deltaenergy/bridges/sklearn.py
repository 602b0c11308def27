"""scikit-learn estimators on image features: an open-set classifier and an outlier detector.

    from deltaenergy.bridges.sklearn import OpenSetClassifier, OutlierDetector

    clf = OpenSetClassifier(unknown="none of these").fit(features, labels)
    clf.predict(new)                        # a label of the training set, or "none of these"
    clf.score_samples(new)                  # larger = more in-distribution

They accept features of any kind and scale, and work in pipelines and grid searches. Features become unit vectors
without loss: z = (x − μ) / s, with s the root mean square distance from the mean, gets another entry of 1 and is
divided by its length.

This module needs scikit-learn 1.6 or later (`pip install "deltaenergy[sklearn]"`); nothing else imports it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, OutlierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "deltaenergy.bridges.sklearn needs scikit-learn 1.6 or later: pip install 'deltaenergy[sklearn]'."
    ) from error

from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.precomputed import PrecomputedClassifier
from deltaenergy.detector.class_check import UnknownClassesWarning
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.guarantee import NoGuarantee
from deltaenergy.models.precomputed import PrecomputedModel
from deltaenergy.scoring import Scored, score_images
from deltaenergy.source import LabelledFeatures, as_source
from deltaenergy.stats.thresholds import least_images
from deltaenergy.tuning.tune import tune

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

__all__ = ["OpenSetClassifier", "OutlierDetector"]


class _Lift:
    """Features of any scale as unit vectors with one more entry."""

    def __init__(self, x: Floats) -> None:
        self.mean = x.mean(axis=0)
        spread = float(np.sqrt(np.square(x - self.mean).sum(axis=1).mean()))
        self.scale = spread if spread > 0 else 1.0

    def __call__(self, x: Floats) -> npt.NDArray[np.float32]:
        centred = (x - self.mean) / self.scale
        # Divided by the largest entry first: squares of very large numbers would overflow.
        raised = np.concatenate([centred, np.ones((len(x), 1))], axis=1)
        raised /= np.abs(raised).max(axis=1, keepdims=True)
        return np.asarray(raised / np.linalg.norm(raised, axis=1, keepdims=True), dtype=np.float32)


def _calibrated(
    detector: Detector, z: npt.NDArray[np.float32], keep: float, confidence: float | None, trained: bool = False
) -> Detector:
    with warnings.catch_warnings():
        # What the threshold guarantees is in `guarantee_`; class names mean nothing here.
        warnings.simplefilter("ignore", NoGuarantee)
        warnings.simplefilter("ignore", UnknownClassesWarning)
        return detector.calibrate(z, keep, confidence, trained=trained)


def _scored(detector: Detector, z: npt.NDArray[np.float32]) -> Scored:
    return score_images(detector.classifier, [detector.scorer], as_source(z), batch_size=1024)


class OpenSetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier on features with a score and a threshold, as in `deltaenergy.Detector`.

    Args:
        method: `linear-probe(c=…)` (logistic regression; C is chosen by cross-validation by default) or `centroids`.
        ood_score: a score of `deltaenergy methods` that needs only features.
        keep: the share of new known rows to keep.
        confidence: None: that share is kept on average; 0.9: at least that share, with this confidence.
        held_out: share of the training rows that set the threshold and are not learned from. With fewer rows than the
            guarantee needs, all rows do both, and nothing is guaranteed.
        unknown: label that `predict` gives to rejected rows; None to always predict a class.
        random_state: the seed of the split.

    Attributes:
        classes_: the labels.
        threshold_: rows that score below it are rejected; None for a score that learns from features (it is
            cross-fitted).
        guarantee_: what the threshold guarantees, a `deltaenergy.detector.guarantee.Guarantee`.
        detector_: the detector.
    """

    def __init__(
        self,
        method: str = "linear-probe(c=10)",
        ood_score: str = "multi-delta-energy",
        *,
        keep: float = 0.95,
        confidence: float | None = None,
        held_out: float = 0.3,
        unknown: Any = None,
        random_state: int = 0,
    ) -> None:
        self.method, self.ood_score, self.keep, self.confidence = method, ood_score, keep, confidence
        self.held_out, self.unknown, self.random_state = held_out, unknown, random_state

    def fit(self, X: Any, y: Any) -> OpenSetClassifier:
        """Learn the classes from one part of the rows, and set the threshold with the other."""
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        make_method(self.method)
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must be above 0 and below 1, got {self.held_out!r}.")
        self.classes_, targets = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class ({self.classes_[0]!r}); at least two are needed.")
        learn, rest = self._split(targets)
        self._lift = _Lift(x)
        z = self._lift(x)
        names = [f"class {k}" for k in range(len(self.classes_))]
        model = PrecomputedModel(z.shape[1], name="scikit-learn")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownClassesWarning)
            warnings.filterwarnings("ignore", message="Fewer than")  # classes may be of any size here
            data = LabelledFeatures(z[learn], targets[learn].tolist())
            classifier = tune(model, names, data, self.method, shots=int(np.bincount(targets[learn]).max()))
        detector, trained = Detector(classifier, self.ood_score), len(rest) == len(z)
        self.detector_ = _calibrated(detector, z[rest], self.keep, self.confidence, trained)
        self.threshold_, self.guarantee_ = self.detector_.threshold, self.detector_.guarantee
        return self

    def predict(self, X: Any) -> Any:
        """The label of each row; `unknown`, if set, for rejected rows."""
        z = self._features(X)
        found = self.classes_[self.detector_.classifier.predict_proba(z).argmax(axis=1)]
        if self.unknown is None:
            return found
        rejected = self._rejected(z)
        if not np.can_cast(np.min_scalar_type(self.unknown), found.dtype) or isinstance(self.unknown, str):
            found = found.astype(object)
        found[rejected] = self.unknown
        return found

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities (N, K)."""
        z = self._features(X)
        shares = np.asarray(self.detector_.classifier.predict_proba(z), dtype=np.float64)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def score_samples(self, X: Any) -> Floats:
        """The score of each row: larger = more in-distribution."""
        return _scored(self.detector_, self._features(X)).values[self.detector_.score.spec]

    def is_known(self, X: Any) -> npt.NDArray[np.bool_]:
        """Whether each row is known."""
        return ~self._rejected(self._features(X))

    def _rejected(self, z: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        return self.detector_.rejects(self.detector_.values_of(_scored(self.detector_, z)))

    def _features(self, given: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "detector_")
        return self._lift(validate_data(self, given, dtype=np.float64, reset=False))

    def _split(self, targets: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows to learn from and rows for the threshold: the same share of each class, or all rows for both."""
        rows = np.arange(len(targets))
        share = round(self.held_out * len(targets))
        counts = np.bincount(targets)
        if self.keep == 1 or share < least_images(self.keep, self.confidence) or counts.min() < 4:
            return rows, rows
        rng = np.random.default_rng(self.random_state)
        held = np.zeros(len(targets), dtype=bool)
        for k, count in enumerate(counts):
            mine = rng.permutation(rows[targets == k])
            held[mine[: max(1, round(self.held_out * count))]] = True
        return rows[~held], rows[held]


class OutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """An outlier detector from scores that learn from features.

    Args:
        ood_score: `mahalanobis`, `knn`, or another score that learns only from features.
        keep: the share of new known rows to keep.
        confidence: None: that share is kept on average; 0.9: at least that share, with this confidence.

    Attributes:
        offset_: 0, because `score_samples` is below 0 for outliers.
        guarantee_: what the threshold guarantees, a `deltaenergy.detector.guarantee.Guarantee`.
        detector_: the detector.
    """

    def __init__(self, ood_score: str = "mahalanobis", *, keep: float = 0.95, confidence: float | None = None) -> None:
        self.ood_score, self.keep, self.confidence = ood_score, keep, confidence

    def fit(self, X: Any, y: Any = None) -> OutlierDetector:
        """Fit on known rows, cross-fitted in five folds."""
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._lift = _Lift(x)
        z = self._lift(x)
        apex = np.zeros((1, z.shape[1]), dtype=np.float32)
        apex[0, -1] = 1  # the mean of all rows
        detector = Detector(PrecomputedClassifier(apex, ["known"]), self.ood_score)
        self.detector_ = _calibrated(detector, z, self.keep, self.confidence)
        self.offset_ = 0.0
        self.guarantee_ = self.detector_.guarantee
        return self

    def score_samples(self, X: Any) -> Floats:
        """The margin of each row (`Calibration.margins`): larger = more like the training rows."""
        check_is_fitted(self, "detector_")
        scored = _scored(self.detector_, self._lift(validate_data(self, X, dtype=np.float64, reset=False)))
        return self.detector_.require_calibration().margins(self.detector_.values_of(scored))

    def decision_function(self, X: Any) -> Floats:
        """`score_samples`; negative for outliers."""
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """1 for rows like the training rows, −1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)
