"""The Detector: classifier + score + threshold."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, check_classifier
from deltaenergy.core.classes import first_of_name
from deltaenergy.core.progress import Progress
from deltaenergy.core.text import HasRepr, some_names
from deltaenergy.data.corruptions import corruption_kinds, half_corrupted
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.calibration import (
    Calibration,
    check_calibration,
    check_numbers,
    class_groups,
    rows_next_to,
    slack_of_changes,
    true_classes,
)
from deltaenergy.detector.class_check import ClassAccuracy, asks_words, class_accuracy, warn_if_unknown
from deltaenergy.detector.guarantee import Guarantee, NoGuarantee
from deltaenergy.detector.names import NamesRule, check_names_score, names_score, rule_from_names
from deltaenergy.detector.reference_images import KeptImages
from deltaenergy.detector.verdicts import Verdicts, VerdictStream
from deltaenergy.errors import InputError, NotFittedError, SkippedImages
from deltaenergy.scores.availability import Given, check_runnable, unlabelled
from deltaenergy.scores.base import FoldScorer, Score, Scorer
from deltaenergy.scores.delta_energy_words import DeltaEnergyWords, words_of
from deltaenergy.scores.negatives.competing import CompetingWords
from deltaenergy.scores.registry import default_score, make_score
from deltaenergy.scoring import (
    NOTHING_SCORED,
    AnyScorer,
    CrossFitted,
    Encoded,
    Scored,
    cross_fit,
    known_images,
    score_all,
    score_images,
    stream_scores,
)
from deltaenergy.source import Source, as_source, require_images
from deltaenergy.stats.thresholds import benjamini_hochberg, check_fdr, percent, slack_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.base import Model

# p-values are fractions with the number of calibration images; text has all their digits.
_SAME_P = 1e-9
# Threads that share a detector compute its texts once.
_BINDING = threading.Lock()


class Detector(HasRepr):
    """Classifies images and rejects those that belong to none of the classes.

    Any number of threads may `predict` and `stream` with one detector at the same time.

    Args:
        classifier: zero-shot or tuned.
        score: a name with optional parameters, such as `"delta-energy(tau=0.1,c=1)"`, or a `Score`; by default
            `delta-energy+words`, or `multi-delta-energy` for a model without a text tower (`scores.registry`).
        state: what the score learned, for a saved detector.
        calibration: the result of `calibrate` or `from_names`.
        kept_images: the stored calibration images.
    """

    def __init__(
        self,
        classifier: Classifier,
        score: str | Score | None = None,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
        calibration: Calibration | NamesRule | None = None,
        kept_images: KeptImages | None = None,
    ) -> None:
        check_classifier(classifier, "A detector")
        self.classifier = classifier
        self.score = make_score(default_score(classifier.model) if score is None else score)
        # The threshold from known images or class names; None before `calibrate`.
        self.calibration = calibration
        # The calibration images, with `keep_images`.
        self.kept_images = kept_images
        # Calibration images that could not be read.
        self.unreadable: list[Unreadable] = []
        # Accuracy on labelled calibration images.
        self.class_accuracy: ClassAccuracy | None = None
        # Bound on first use: negative labels take minutes.
        self._scorer = self.score.bind(classifier, state=state) if state else None

    @classmethod
    def from_names(
        cls, classifier: Classifier, score: str | Score | None = None, *, progress: Progress | None = None
    ) -> Detector:
        """A detector with a threshold from class names (`detector.names`), without a guarantee.

        The score is `delta-energy+words` by default; its parameters can set your own words.
        """
        detector = cls(classifier, names_score(classifier) if score is None else score)
        check_names_score(classifier, detector.score)
        detector.prepare(progress).calibration = rule_from_names(detector.scorer)
        return detector

    def calibrate(
        self,
        images: Any,
        keep: float = 0.95,
        confidence: float | None = None,
        *,
        by_class: bool = False,
        labels: Sequence[str] | None = None,
        trained: bool = False,
        keep_images: bool = False,
        tolerate: str | Sequence[str] = (),
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Detector:
        """Set the threshold on known images, to keep the share `keep` of new images like these.

        The threshold is s_(k), the k-th smallest of the n scores (`thresholds.rank_of`). By default `keep` holds on
        average: k = ⌊(1 − keep)(n + 1)⌋. With a `confidence` such as 0.9, at least the share `keep` of new images is
        kept, with this confidence: k is smaller. See `guarantee`. With too few images the smallest score is the
        threshold, and a `NoGuarantee` warning says how many are needed.

        Their scores also give every later image its conformal p-value (1 + #{i: s_i ≤ s}) / (n + 1): for images
        exchangeable with these, P(p ≤ a) ≤ a (Bates et al., Annals of Statistics 2023).

        A score that learns from images is cross-fitted: it learns from four fifths of them at a time, and each image is
        scored by the scorer that did not see it (`Calibration`). Then there is no single threshold, and the guarantee
        is not exact.

        With `by_class`, each class that has enough images gets its own threshold (see `calibration.Calibration`).
        Classes come from the folder or table; for rows of features pass `labels`. Unreadable images are skipped with a
        warning.

        Pass `trained` if the classifier was trained on these images: then there is no guarantee and there are no
        p-values.

        With `keep_images`, features and thumbnails of the images are stored and saved with the detector, for
        `explanation.why`.

        With `tolerate`, such as `"blur,noise,jpeg"`, each image has an even chance of being corrupted by one of these
        (`data.corruptions`), and the guarantee is for such a mixture: more corrupted images are kept, and fewer unknown
        images are rejected.
        """
        kinds = corruption_kinds(tolerate) if tolerate else ()
        check_calibration(keep, confidence, by_class=by_class)
        given = as_source(images, labels)
        if kinds:
            given = as_source(half_corrupted(require_images(given, "`tolerate`"), kinds))
        check_runnable([self.score], Given.of([given], self.classifier).without(labels=unlabelled(given)))
        scorer = self.unfitted_scorer  # to learn again from these images
        encoded = Encoded(
            self.classifier, [scorer], given, hold=not scorer.fitted, batch_size=batch_size, progress=progress
        )
        fitted: AnyScorer = scorer
        if not scorer.fitted:
            (fitted,) = cross_fit([scorer], known_images([encoded], [scorer]), measured=False)
        keep_features = keep_images or asks_words(self.classifier)
        scored = score_all(encoded, [fitted], known=True, keep_features=keep_features)
        warn_if_unknown(self.classifier, scored.items, scored.predicted, scored.features, stacklevel=2)
        if scored.unreadable:
            first = scored.unreadable[0]
            warnings.warn(
                f"{len(scored.unreadable):,} of the calibration images are unreadable and were skipped, the first is "
                f"{first.id}: {first.reason}",
                SkippedImages,
                stacklevel=2,
            )
        self.calibrate_scored(
            scored,
            keep,
            confidence,
            scorer=fitted,
            by_class=by_class,
            trained=trained,
            keep_images=keep_images,
            tolerate=kinds,
        )
        if encoded.encodes:
            self._widen_slack(scored, fitted)
        if keep < 1 and not self.require_calibration().guarantee.holds:
            warnings.warn(str(self.guarantee), NoGuarantee, stacklevel=2)
        return self

    def calibrate_scored(
        self,
        scored: Scored,
        keep: float = 0.95,
        confidence: float | None = None,
        *,
        scorer: AnyScorer | None = None,
        by_class: bool = False,
        trained: bool = False,
        keep_images: bool = False,
        tolerate: tuple[str, ...] = (),
    ) -> Detector:
        """`calibrate` from scores of known images; a score that learns needs its cross-fitted `scorer`."""
        spec, classes = self.score.spec, self.classifier.classes
        truth = true_classes(scored, classes) if by_class else None
        values, folds = scored.values[spec], None
        if not len(values):
            raise InputError("calibrate needs at least one readable known image.")
        check_numbers(scored, spec)
        if isinstance(scorer, CrossFitted):
            self._scorer, folds = FoldScorer.of(scorer.scorers), scorer.folds
        elif self.score.needs_fit:
            raise InputError(f"calibrate_scored needs the scorer of {spec} that scoring.cross_fit gives.")
        order = np.argsort(values, kind="stable")
        values = values[order]
        folds = None if folds is None else folds[order]
        groups = None
        own: tuple[str, ...] = ()
        pooled: tuple[str, ...] = ()
        if truth is not None:
            groups = class_groups(truth[order], self._first[scored.predicted[order]], keep, confidence)
            positions = sorted(set(self._first.tolist()))
            own = tuple(classes[k] for k in positions if k in groups)
            pooled = tuple(classes[k] for k in positions if k not in groups)
        count_of_folds = 0 if folds is None else 1 + int(folds.max())
        guarantee = Guarantee(keep, confidence, len(values), count_of_folds, trained, own, pooled, tolerate)
        self.calibration = Calibration(values, guarantee, slack_of(values), folds, groups)
        self.unreadable = scored.unreadable
        self.class_accuracy = class_accuracy(classes, scored.items, scored.predicted)
        self.kept_images = KeptImages.of(scored.take(order)) if keep_images else None
        return self

    def _widen_slack(self, scored: Scored, scorer: AnyScorer) -> None:
        """Score the images next to the threshold again, one by one; the slack is several times the change.

        Rounding in an encoder changes some saturated scores far more, relative to their size, than a fixed rule would
        allow.
        """
        spec, known, bounds = self.score.spec, self.require_calibration(), self.bounds()
        values = scored.values[spec]
        near = rows_next_to(values, -np.inf if bounds is None else float(bounds.min()))
        near_items = as_source([scored.items[row] for row in near])
        again = score_images(self.classifier, [self.scorer], near_items, batch_size=1)
        alone = dict(zip((item.id for item in again.items), self.values_of(again)))
        rows = [row for row in near if scored.items[row].id in alone]
        moved = [alone[scored.items[row].id] for row in rows]
        if isinstance(scorer, CrossFitted):  # the number of the fold that did not see the image
            moved = [each[scorer.folds[row]] for each, row in zip(moved, rows)]
        self.calibration = replace(known, slack=max(known.slack, slack_of_changes(values[rows], np.array(moved))))

    def predict(
        self,
        images: Any,
        *,
        fdr: float | None = None,
        top_k: int = 1,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Verdicts:
        """A verdict for every readable image (or row of unit features); `.unreadable` lists the others.

        With `top_k`, each verdict has that many of the closest classes. With `fdr`, the threshold is not used: in
        expectation at most that share of the rejected images is known (`thresholds.benjamini_hochberg` on the p-values
        of all these images).
        """
        stream = self.stream(images, fdr=fdr, top_k=top_k, batch_size=batch_size, progress=progress)
        return Verdicts.concat(stream.batches())

    def control(self, verdicts: Verdicts, fdr: float) -> Verdicts:
        """The same images with new verdicts: in expectation at most the share `fdr` of the rejected images is known."""
        self.check_controls(fdr)
        rejected = benjamini_hochberg(verdicts.p_values, fdr) | np.isnan(verdicts.scores)
        return replace(verdicts, is_ood=rejected, fdr=fdr)

    def check_controls(self, fdr: float) -> None:
        """Raise unless this detector's p-values can control the false discovery rate."""
        check_fdr(fdr)
        known = self.require_calibration()
        if known.groups is not None:
            raise InputError("`fdr` needs one threshold for all classes: calibrate a detector without `by_class`.")
        if known.folds is not None:
            raise InputError(
                f"`fdr` needs exact p-values, and those of {self.score.spec} are not: it learned from the calibration "
                "images. Use a score that does not, such as max-logit."
            )
        if known.guarantee.trained:
            raise InputError(
                "`fdr` needs p-values, which are not valid here: the classifier was trained on the images that set the "
                "threshold. Calibrate the detector on other images."
            )

    def stream(
        self,
        images: Any,
        *,
        fdr: float | None = None,
        top_k: int = 1,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> VerdictStream:
        """The verdicts of `predict` one by one, in bounded memory.

        Wrong arguments raise at once; images are read as the stream is read. With `fdr`, the first verdict comes when
        all images have been scored.
        """
        self.require_threshold()
        source = as_source(images)
        return VerdictStream(self.batches(source, fdr=fdr, top_k=top_k, batch_size=batch_size, progress=progress))

    def batches(
        self,
        source: Source,
        *,
        fdr: float | None = None,
        top_k: int = 1,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Iterator[Verdicts]:
        """The same as tables: an empty one, then one for each batch, or with `fdr` one for all images.

        Without a threshold, `is_ood` is None.
        """
        if fdr is not None:
            self.check_controls(fdr)
        scored = stream_scores(
            self.classifier, [self.scorer], source, top_k=top_k, batch_size=batch_size, progress=progress
        )
        parts = (self.judge(batch, top_k, fdr) for batch in chain([NOTHING_SCORED], scored))
        return parts if fdr is None else self._controlled(parts, fdr)

    def _controlled(self, parts: Iterable[Verdicts], fdr: float) -> Iterator[Verdicts]:
        yield self.control(Verdicts.concat(parts, keep_items=True), fdr)

    def judge(self, scored: Scored, top_k: int = 1, fdr: float | None = None) -> Verdicts:
        """Verdicts from scores; without a threshold, `is_ood` is None.

        `more_like` needs stored features; it is also set for images that `control` may reject at this `fdr`.
        """
        spec, count, known = self.score.spec, len(scored.predicted), self.calibration
        p_values, rejected = np.full(count, np.nan), None if known is None else np.zeros(count, bool)
        if count and known is not None:
            compared, named = self.values_of(scored), self._first[scored.predicted]
            p_values, rejected = known.p_values(compared, named), known.rejects(compared, named)
        more_like = () if rejected is None else self._more_like(scored, rejected | (p_values <= (fdr or 0)))
        verdicts = Verdicts.of(scored, self.classifier.classes, spec, rejected, top_k)
        return replace(verdicts, p_values=p_values, more_like=more_like)

    def _more_like(self, scored: Scored, asked: npt.NDArray[np.bool_]) -> list[str | None]:
        """The word with the largest cosine for each image, if the score has words and features were stored."""
        found: list[str | None] = [None] * len(asked)
        if isinstance(self.score, DeltaEnergyWords) and scored.features is not None and asked.any():
            # In torch: the threads of NumPy's product would keep cores busy for milliseconds after it.
            features = torch.from_numpy(scored.features[asked])
            nearest = (features @ self.scorer.state["negatives"].float().cpu().T).argmax(dim=1)
            for row, position in zip(np.flatnonzero(asked).tolist(), nearest.tolist()):
                found[row] = self.words.kept[position]
        return found

    def values_of(self, scored: Scored) -> npt.NDArray[np.float64]:
        """The scores for `rejects` and `p_values`, with a column per fold if there are folds."""
        return scored.by_fold.get(self.score.spec, scored.values[self.score.spec])

    def rejects(
        self, values: npt.NDArray[np.float64], predicted: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Which scores are below the threshold by more than rounding, or NaN.

        With thresholds by class, pass the position of each image's predicted class.
        """
        return self.require_threshold().rejects(values, None if predicted is None else self._first[predicted])

    def p_values(
        self, values: npt.NDArray[np.float64], predicted: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.float64]:
        """Conformal p-values (1 + #{calibration ≤ score}) / (n + 1); NaN if not valid (`Calibration.p_values`).

        With thresholds by class, only calibration images of the predicted class count.
        """
        return self.require_threshold().p_values(values, None if predicted is None else self._first[predicted])

    @property
    def threshold(self) -> float | None:
        """Images that score below it are rejected; None before `calibrate`, and for a cross-fitted score."""
        return None if self.calibration is None else self.calibration.threshold

    @property
    def guarantee(self) -> Guarantee | NamesRule | None:
        """The guarantee of the threshold for new images (none for a `NamesRule`); None before `calibrate`."""
        return None if self.calibration is None else self.calibration.guarantee

    @property
    def calibration_scores(self) -> npt.NDArray[np.float64]:
        """Scores of the known images, ascending: the reference of p-values."""
        return self.calibration.scores if isinstance(self.calibration, Calibration) else np.zeros(0)

    @property
    def class_thresholds(self) -> dict[str, float]:
        """The thresholds of the classes that have their own."""
        own = self.calibration.by_class if isinstance(self.calibration, Calibration) else {}
        return {self.classifier.classes[k]: one.threshold for k, one in own.items() if one.threshold is not None}

    def bounds(self) -> npt.NDArray[np.float64] | None:
        """The threshold of each class, by position: its own, or the common threshold; None without a threshold."""
        threshold = self.require_threshold().threshold
        if threshold is None:
            return None
        own = self.class_thresholds
        return np.array([own.get(name, threshold) for name in self.classifier.classes])

    @property
    def _first(self) -> npt.NDArray[np.int64]:
        """For each class the first position of the same name: duplicates count as one class."""
        return np.array(first_of_name(self.classifier.classes), dtype=np.int64)

    def predict_proba(self, images: Any, *, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Class probabilities (N, K): softmax at the model's own temperature, without verdicts."""
        return self.classifier.predict_proba(images, batch_size=batch_size)

    def top_k(self, images: Any, k: int = 5, *, batch_size: int = 32) -> list[list[tuple[str, float]]]:
        """The k most probable classes of each image with their probabilities, best first, without verdicts."""
        return self.classifier.top_k(images, k, batch_size=batch_size)

    def check_made(self, verdicts: Verdicts) -> None:
        """Raise `InputError` if the table's p-values are not this detector's for its scores.

        A table without p-values is also refused.
        """
        if isinstance(self.calibration, NamesRule):  # which gives no p-values
            if verdicts.score_name != self.score.spec:
                raise InputError(
                    f"The table has scores of {verdicts.score_name!r}, and the detector {self.score.spec!r}."
                )
            return
        p_values, scores = verdicts.p_values, verdicts.scores
        missing = np.flatnonzero(np.isnan(p_values))
        if len(missing):
            raise InputError(
                f"The table has no p-value for {verdicts.paths[missing[0]]}, so nothing shows that this detector made "
                "it: write it with `deltaenergy score` and this detector."
            )
        wrong = np.flatnonzero(np.abs(self.p_values(scores) - p_values) > _SAME_P)
        if len(wrong):
            raise InputError(
                f"The verdicts of the table are not this detector's: {verdicts.paths[wrong[0]]} has "
                f"p {p_values[wrong[0]]:g}, and the detector gives {self.p_values(scores[wrong[:1]])[0]:g}."
            )

    def plot(self, verdicts: Verdicts | None = None, ax: Any = None) -> Any:
        """Plot a histogram of the calibration scores, the threshold, and the scores of `verdicts`.

        Draws on matplotlib's axes `ax`, or new axes, and returns them.
        """
        from deltaenergy.detector.inline import score_histogram

        groups = {"calibration images": self.calibration_scores}
        if verdicts is not None:
            groups["these images"] = verdicts.scores
        self.require_calibration()
        return score_histogram(groups, self.threshold, self.score.spec, ax)

    def _repr_fields(self) -> dict[str, object]:
        classes = self.classifier.classes
        facts: dict[str, object] = {
            "score": self.score.spec,
            "classes": f"{len(classes)} ({some_names(classes)})",
            "method": self.classifier.method.spec,
            "model": repr(self.classifier.base_model.name),
        }
        if self.calibration is None:
            facts["threshold"] = "none yet, call calibrate"
        elif isinstance(self.calibration, NamesRule):
            facts["threshold"] = f"{self.threshold:.6g}, from class names"
        else:
            keeps = f"keeps {percent(self.calibration.guarantee.keep)} by {len(self.calibration_scores):,} images"
            facts["threshold"] = f"{'none' if self.threshold is None else f'{self.threshold:.6g}'}, {keeps}"
        return facts

    @property
    def scorer(self) -> Scorer:
        """The score bound to the classifier, with what it has learned."""
        self.prepare()
        assert self._scorer is not None
        return self._scorer

    @cached_property
    def words(self) -> CompetingWords:
        """The words that compete with the classes (`.kept`), and which were removed and why (`.removed`)."""
        if not isinstance(self.score, DeltaEnergyWords):
            raise InputError(f"Score {self.score.spec!r} has no list of words: use {DeltaEnergyWords.name}.")
        return words_of(self.scorer)

    @property
    def unfitted_scorer(self) -> Scorer:
        """The same, to learn from other images."""
        scorer = self.scorer.scorers[0] if isinstance(self.scorer, FoldScorer) else self.scorer
        return replace(scorer, fitted=not self.score.needs_fit)

    def prepare(self, progress: Progress | None = None) -> Detector:
        """Compute the score's text features now, not with the first image: negative labels take minutes."""
        if self._scorer is None:
            with _BINDING:
                self._scorer = self._scorer or self.score.bind(self.classifier, progress)
        return self

    @property
    def score_state(self) -> Mapping[str, torch.Tensor]:
        """What the score has learned, by name; empty if it has not been prepared."""
        return {} if self._scorer is None else self._scorer.state

    def save(self, folder: str | Path) -> None:
        """Write the detector to a folder, replacing one that is there: `detector.json` and a safetensors file."""
        from deltaenergy.detector.saved import save_detector

        save_detector(self, folder)

    def push_to_hub(self, repo: str, **options: Any) -> str:
        """Upload it to the Hugging Face Hub as owner/name, with a model card.

        Options are those of `detector.hub.push_detector`: `evaluation` (results for the card), `private`, `with_images`
        and `message`.
        """
        from deltaenergy.detector.hub import push_detector

        return push_detector(self, repo, **options)

    @classmethod
    def load(cls, folder: str | Path, model: Model | None = None, device: str | torch.device = "auto") -> Detector:
        """Read a detector that `save` wrote. `model` replaces the recorded model; both must match.

        `hf:owner/name` reads from the Hugging Face Hub; `hf:owner/name@revision` an earlier version.
        """
        from deltaenergy.detector.saved import load_detector

        return load_detector(folder, model, device)

    def require_threshold(self) -> Calibration | NamesRule:
        """The calibration or rule, or an error that says how to get one."""
        if self.calibration is None:
            raise NotFittedError("This detector has no threshold yet: call calibrate(known_images) first.")
        return self.calibration

    def require_calibration(self) -> Calibration:
        """The calibration, or an error that says to call `calibrate`."""
        known = self.require_threshold()
        if isinstance(known, NamesRule):
            raise NotFittedError(
                "The threshold of this detector is set from class names: call calibrate(known_images) first."
            )
        return known
