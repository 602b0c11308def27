"""The Score: settings, needs and formula of one number per image; and the Scorer.

A `Score` is a frozen dataclass: two detectors can share one. What it learns (from class texts when bound to a
classifier, from known images when fitted) is in a `Scorer`, which is also immutable: fitting gives a new one. So
threads can share a scorer.

    scorer = make_score("react").bind(classifier).fit(known)
    scorer(inputs)                                              # (N,), larger = more in-distribution
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from deltaenergy.classifiers.base import Inputs
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Settings
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.scores.arrays import as_rows

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier, Outputs


_ALWAYS = ("similarities", "features")
# Prefix of the tensors that one fold has learned, before its number and a dot.
FOLD = "fold"


@dataclass(frozen=True)
class ScoreInputs:
    """The inputs of a score for N images. Patches and pixels are set only for scores that need them.

    Attributes:
        similarities: of the classifier (N, K).
        features: unit image features (N, D) of the model.
        patches: unit patch features (N, P, D).
        pixels: preprocessed images (N, 3, H, W).
        outputs: of the classifier, for scores that use its own features or negatives.
        labels: the position of each image's class (N,), only of ID images that a score with `Need.LABELS` learns from.
        compared: the features (N, D) that the classifier compares with its texts, which stay if outputs are not kept;
            the same tensor as `features` if it does not change them.
    """

    similarities: torch.Tensor
    features: torch.Tensor
    patches: torch.Tensor | None = None
    pixels: torch.Tensor | None = None
    outputs: Outputs | None = None
    labels: torch.Tensor | None = None
    compared: torch.Tensor | None = None

    def finite(self, score: Score) -> ScoreInputs:
        """The same in at least single precision; what `score` reads must be finite.

        Patches and pixels, which are large, are checked on use.
        """
        similarities, features = as_rows(self.similarities, "similarities"), self.features
        if score.needs & {Need.FEATURES, Need.PATCHES}:
            features = as_rows(features, "features")
        return replace(self, similarities=similarities, features=features)

    def need(self, what: Need) -> torch.Tensor:
        """The patches or pixels, or an error if they are missing."""
        return self.for_classifier.need(what)

    @property
    def for_classifier(self) -> Inputs:
        """The same images as inputs of a classifier."""
        return Inputs(self.features, self.patches, pixels=self.pixels)

    def take(self, rows: slice | list[int]) -> ScoreInputs:
        """Some of the images."""

        def part(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor[rows]

        outputs = self.outputs and replace(
            self.outputs,
            similarities=self.outputs.similarities[rows],
            features=self.outputs.features[rows],
            # Texts are the same for all images, or each image has its own.
            texts=self.outputs.texts if self.outputs.texts.ndim == 2 else self.outputs.texts[rows],
            negatives=part(self.outputs.negatives),
        )
        similarities, features = self.similarities[rows], self.features[rows]
        # Equal tensors are not stored twice.
        compared = features if self.compared is self.features else part(self.compared)
        return ScoreInputs(
            similarities, features, part(self.patches), part(self.pixels), outputs, part(self.labels), compared
        )

    @staticmethod
    def join(parts: Sequence[ScoreInputs]) -> ScoreInputs:
        """The images of all parts in order, without the classifier's outputs; what one part lacks, the whole lacks."""

        def whole(name: str) -> torch.Tensor | None:
            tensors = [getattr(part, name) for part in parts]
            return None if any(tensor is None for tensor in tensors) else torch.cat(tensors)

        similarities, features = (torch.cat([getattr(part, name) for part in parts]) for name in _ALWAYS)
        patches, pixels, labels = map(whole, ("patches", "pixels", "labels"))
        compared = features if all(part.compared is part.features for part in parts) else whole("compared")
        return ScoreInputs(similarities, features, patches, pixels, labels=labels, compared=compared)


@dataclass(frozen=True)
class Score(Settings):
    """Base of all scores: its fields are the hyper-parameters, with the paper's defaults.

    A subclass implements `compute`. A score with text features (mined negatives) implements `prepare`, a score that is
    fitted on ID data `learn`; both return tensors by name, which `compute` finds in `scorer.state` and which are saved
    with a detector.
    """

    kind: ClassVar[str] = "score"
    # The tuning method whose classifiers it needs, if it is a method's own score.
    own_to: ClassVar[str | None] = None

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs beyond similarities: an attribute of the class, or a property if it depends on parameters."""
        return frozenset()

    @property
    def needs_images(self) -> bool:
        """Whether it needs more than image features."""
        return bool(self.needs & {Need.PATCHES, Need.PIXELS})

    @property
    def needs_fit(self) -> bool:
        """Whether it must be fitted on ID data."""
        return Need.ID_DATA in self.needs

    @property
    def missing(self) -> str | None:
        """A sentence on what the user must provide before this score can run; `all` skips such scores."""
        return None if self.own_to is None else f"Score {self.name!r} is only for classifiers tuned by {self.own_to}."

    @property
    def prompts(self) -> int:
        """How many prompts it encodes when bound to a classifier, in addition to the class names."""
        return 0

    def foreign(self, method: str) -> str:
        """The refusal of a method's own score for a classifier by another method."""
        return (
            f"Score {self.name!r} needs a classifier tuned by {self.own_to}, not by {method}: tune with {self.own_to}, "
            "or use another score, such as mcm."
        )

    def bind(
        self,
        classifier: Classifier,
        progress: Progress | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> Scorer:
        """The score for one classifier, with what depends on its class texts: computed now, or from a saved `state`."""
        if self.own_to not in (None, classifier.method.name):
            raise InputError(self.foreign(classifier.method.name))
        if state and f"{FOLD}0." in "".join(state):
            return FoldScorer.restore(self, classifier, state)
        by_name = dict(state) if state else self.prepare(classifier, progress)
        # Single numbers stay on the CPU, where they are used.
        device = classifier.model.device
        tensors = {name: tensor if tensor.ndim < 2 else tensor.to(device) for name, tensor in by_name.items()}
        return Scorer(self, classifier, tensors, fitted=bool(state) or not self.needs_fit)

    def prepare(self, classifier: Classifier, progress: Progress | None) -> dict[str, torch.Tensor]:
        """Tensors that depend only on the classifier."""
        return {}

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """Tensors learned from ID images."""
        return {}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """N images -> scores (N,), larger = more in-distribution."""
        raise NotImplementedError(f"{type(self).__name__} must implement compute")


@dataclass(frozen=True, eq=False)
class Scorer:
    """A score bound to a classifier, with what it has learned. `score.bind(classifier)` makes one.

    `fitted` is False until it has learned from ID images, if it must.
    """

    score: Score
    classifier: Classifier
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fitted: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", MappingProxyType(dict(self.state)))

    def __reduce__(self) -> tuple[Any, ...]:
        # For other processes of the same program: a read-only mapping cannot be sent.
        return Scorer, (self.score, self.classifier, dict(self.state), self.fitted)

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """N images -> scores (N,), larger = more in-distribution."""
        return self.score.compute(inputs.finite(self.score), self)

    def fit(self, inputs: ScoreInputs) -> Scorer:
        """A scorer that has learned from the similarities and features of ID images; this one is unchanged."""
        return replace(self, state={**self.state, **self.score.learn(inputs.finite(self.score), self)}, fitted=True)

    @property
    def spec(self) -> str:
        """The spec of the score, the name of results."""
        return self.score.spec

    def check_fitted(self) -> None:
        """Raise `NotFittedError` if it must first learn from ID images."""
        if not self.fitted:
            raise self._not_fitted()

    def learned(self, name: str) -> torch.Tensor:
        """What was learned under `name`, or an error that says how to fit."""
        if name not in self.state:
            raise self._not_fitted()
        return self.state[name]

    def compared_features(self, inputs: ScoreInputs) -> torch.Tensor:
        """The image features (N, D) that the classifier compares with its texts, in at least single precision."""
        features = inputs.compared
        if features is None:
            features = (inputs.outputs or self.classifier(inputs.for_classifier)).features
        return features if features.dtype in (torch.float32, torch.float64) else features.float()

    def _not_fitted(self) -> NotFittedError:
        return NotFittedError(f"Score {self.spec!r} learns from known images: calibrate a detector with it.")


@dataclass(frozen=True, eq=False)
class FoldScorer(Scorer):
    """A score that was cross-fitted (`scoring.CrossFitted`), for images that none of its scorers has seen.

    The score of an image is the mean over the folds; the verdict uses each fold (`calibration.Calibration`). `state`
    has what the folds share by name, and the rest as `fold0.name`, `fold1.name` … …
    """

    scorers: tuple[Scorer, ...] = ()

    @classmethod
    def of(cls, scorers: Sequence[Scorer]) -> FoldScorer:
        first, states = scorers[0], [scorer.state for scorer in scorers]
        common = {
            name: tensor for name, tensor in first.state.items() if all(state[name] is tensor for state in states)
        }
        learned = {
            f"{FOLD}{k}.{name}": tensor
            for k, state in enumerate(states)
            for name, tensor in state.items()
            if name not in common
        }
        return cls(first.score, first.classifier, {**common, **learned}, True, tuple(scorers))

    @classmethod
    def restore(cls, score: Score, classifier: Classifier, state: Mapping[str, torch.Tensor]) -> FoldScorer:
        common = {name: tensor for name, tensor in state.items() if not name.startswith(FOLD)}
        learned: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in state.items():
            if name.startswith(FOLD):
                fold, _, own = name.partition(".")
                learned.setdefault(fold, {})[own] = tensor
        folds = [learned.get(f"{FOLD}{k}") for k in range(len(learned))]
        if None in folds:
            raise InputError(f"What {score.spec!r} learned is not complete: a fold is missing.")
        first = score.bind(classifier, state={**common, **(folds[0] or {})})
        shared = {name: first.state[name] for name in common}
        others = [score.bind(classifier, state={**shared, **(fold or {})}) for fold in folds[1:]]
        return cls.of([first, *others])

    def __reduce__(self) -> tuple[Any, ...]:
        return FoldScorer.of, (self.scorers,)

    def each(self, inputs: ScoreInputs) -> torch.Tensor:
        """N images -> scores (N, F) by every fold."""
        return torch.stack([scorer(inputs) for scorer in self.scorers], dim=1)

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        return self.each(inputs).double().mean(dim=1)

    def learned(self, name: str) -> torch.Tensor:
        """The mean of what the folds learned under `name`."""
        return torch.stack([scorer.learned(name).double() for scorer in self.scorers]).mean(dim=0)
