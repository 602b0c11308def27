"""What is explained of an image: the similarity of a class, or the score, by the very scorer that gave the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.scores.base import FoldScorer, ScoreInputs, Scorer

CLASS, SCORE = "class", "score"
# What is known of n images -> y of each (n,).
Target = Callable[[ScoreInputs], torch.Tensor]
# Of so many class names, all are told to someone who mistyped one.
_FEW_NAMES = 20


def class_target(positions: torch.Tensor) -> Target:
    """The similarity of each image with its class."""
    return lambda inputs: inputs.similarities.gather(1, positions.to(inputs.similarities.device)[:, None])[:, 0]


def score_target(scorer: Scorer) -> Target:
    """The score. What the scorer learned in inference mode is copied, since such tensors take part in no gradient."""
    if isinstance(scorer, FoldScorer):
        return FoldScorer.of([_outside_inference(one) for one in scorer.scorers])
    return _outside_inference(scorer)


def _outside_inference(scorer: Scorer) -> Scorer:
    state = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in scorer.state.items()}
    return replace(scorer, state=state)


def class_position(name: str, classifier: Classifier, *, scored: bool) -> int:
    """The position of a named class, or an error that suggests near names."""
    if name in classifier.classes:
        return classifier.classes.index(name)
    words = [CLASS, *([SCORE] if scored else [])]
    known: Sequence[str] = [*words, *classifier.classes]
    if len(classifier.classes) > _FEW_NAMES:
        import difflib

        known = [*words, *difflib.get_close_matches(name, classifier.classes, n=5, cutoff=0.4)]
    raise InputError(
        f"Unknown target {name!r}: it is neither {' nor '.join(words)} nor a class.{did_you_mean(name, known)}"
    )
