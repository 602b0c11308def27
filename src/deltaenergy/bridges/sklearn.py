"""scikit-learn estimators on image features: a classifier that knows what it does not know, and an outlier detector.

    from deltaenergy.bridges.sklearn import OpenSetClassifier, OutlierDetector

    clf = OpenSetClassifier(unknown="none of these").fit(features, labels)
    clf.predict(new)                        # a label of the training set, or "none of these"
    clf.score_samples(new)                  # larger = more in-distribution

They take features of any kind and scale, of CLIP or not, and go into pipelines and grid searches. Features become unit
vectors, as everything else here wants them, without loss: z = (x − μ) / s, with s the root mean square distance from
the mean, gets a further entry of 1, and is divided by its length.

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
from deltaenergy.source import LabelledFeatures
from deltaenergy.stats.thresholds import least_images
from deltaenergy.tuning.tune import tune

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

__all__ = ["OpenSetClassifier", "OutlierDetector"]


class _Lift:
    """Features of any scale as unit vectors with one entry more."""

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
    return score_images(detector.classifier, [detector.scorer], z, batch_size=1024)


class OpenSetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier on features with a score and a threshold, as `deltaenergy.Detector` has them.

    Args:
        method: how it learns: `linear-probe(c=…)`, logistic regression whose C is chosen by cross-validation if it is
            left out, or `centroids`.
        ood_score: what tells known from unknown: a score of `deltaenergy methods` that looks at features alone.
        keep: the share of new known rows to keep.
        confidence: None: that share is kept on average; 0.9: at least that share, with this confidence.
        held_out: the share of the training rows that set the threshold and are not learned from. With fewer rows than
            the guarantee needs, all rows do both, and nothing is guaranteed.
        unknown: the label that `predict` gives to what is of no class; None: it always names a class.
        random_state: the seed of the split.

    Attributes:
        classes_: the labels.
        threshold_: scores below it are of no class; None for a score that learns from features (it is cross-fitted).
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
        """The label of each row; `unknown`, if that is given, for those of no class."""
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
        """Probabilities (N, K) of the classes among themselves."""
        z = self._features(X)
        shares = np.asarray(self.detector_.classifier.predict_proba(z), dtype=np.float64)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def score_samples(self, X: Any) -> Floats:
        """The score of each row: larger = more in-distribution."""
        return _scored(self.detector_, self._features(X)).values[self.detector_.score.spec]

    def is_known(self, X: Any) -> npt.NDArray[np.bool_]:
        """Whether each row is of one of the classes."""
        return ~self._rejected(self._features(X))

    def _rejected(self, z: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        return self.detector_.rejects(self.detector_.values_of(_scored(self.detector_, z)))

    def _features(self, given: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "detector_")
        return self._lift(validate_data(self, given, dtype=np.float64, reset=False))

    def _split(self, targets: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows to learn from and rows for the threshold: of each class the same share, or all rows for both."""
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
    """Known features in, and whether new ones are like them: the scores on features as an outlier detector.

    Args:
        ood_score: `mahalanobis`, `knn`, or another score that learns from features alone.
        keep: the share of new known rows to keep.
        confidence: None: that share is kept on average; 0.9: at least that share, with this confidence.

    Attributes:
        offset_: 0: `score_samples` is counted from where rows are outliers.
        guarantee_: what the threshold guarantees, a `deltaenergy.detector.guarantee.Guarantee`.
        detector_: the detector.
    """

    def __init__(self, ood_score: str = "mahalanobis", *, keep: float = 0.95, confidence: float | None = None) -> None:
        self.ood_score, self.keep, self.confidence = ood_score, keep, confidence

    def fit(self, X: Any, y: Any = None) -> OutlierDetector:
        """Learn what rows are like, cross-fitted in five folds."""
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._lift = _Lift(x)
        z = self._lift(x)
        apex = np.zeros((1, z.shape[1]), dtype=np.float32)
        apex[0, -1] = 1  # where the mean of all rows lies
        detector = Detector(PrecomputedClassifier(apex, ["known"]), self.ood_score)
        self.detector_ = _calibrated(detector, z, self.keep, self.confidence)
        self.offset_ = 0.0
        self.guarantee_ = self.detector_.guarantee
        return self

    def score_samples(self, X: Any) -> Floats:
        """How far each row is from being an outlier (`Calibration.margins`): larger = more like the training rows."""
        check_is_fitted(self, "detector_")
        scored = _scored(self.detector_, self._lift(validate_data(self, X, dtype=np.float64, reset=False)))
        return self.detector_.require_calibration().margins(self.detector_.values_of(scored))

    def decision_function(self, X: Any) -> Floats:
        """`score_samples`; negative for outliers."""
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """1 for rows like the training rows, −1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)
