"""Whether the model knows the classes at all, by its accuracy on labelled images.

Of N labelled images, c are classified correctly; guessing among K classes is right with probability 1/K. The model does
not know the classes if an exact binomial test cannot separate it from guessing, P(Binomial(N, 1/K) ≥ c) ≥ 0.01, or if
it is hardly better: κ = (c/N − 1/K) / (1 − 1/K) < 0.1. There is no verdict with so few images that a model with κ = ½
would not pass the test.

Without labels, images are compared with random words: as many as classes, at most 50. w is the number of images whose
best class name is nearer than their best word, and the model does not know the classes if P(Binomial(N, ½) ≥ w) ≥ 0.01.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.classifiers.zero_shot import ZeroShotClassifier, class_features
from deltaenergy.core.classes import ClassFinder, first_of_name, normal_name
from deltaenergy.scores.negatives.pools import lexicographer_lists
from deltaenergy.stats.thresholds import binomial_tail

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem

SIGNIFICANCE = 0.01
LEAST_KAPPA = 0.1
# Words to compare class names with: visible things. These are enough for any number of classes: more names than words
# favour the names, so the warning is rather missed than wrong.
WORD_FILES = ("noun.artifact", "noun.animal", "noun.food", "noun.plant", "noun.object")
MOST_WORDS = 50
FEWEST_IMAGES = 20


class UnknownClassesWarning(UserWarning):
    """The model does not seem to know the classes."""


@dataclass(frozen=True)
class ClassAccuracy:
    """For each class with labelled images: its name, their number, and how many are classified correctly."""

    rows: tuple[tuple[str, int, int], ...]

    @property
    def images(self) -> int:
        return sum(images for _, images, _ in self.rows)

    @property
    def share(self) -> float:
        """The share that is classified correctly."""
        return sum(correct for _, _, correct in self.rows) / self.images

    def worst(self, count: int) -> list[tuple[str, int, int]]:
        """The least accurate classes that have a mistake; on ties, those with more images."""
        wrong = [row for row in self.rows if row[2] < row[1]]
        return sorted(wrong, key=lambda row: (row[2] / row[1], -row[1]))[:count]


def class_accuracy(
    classes: Sequence[str], items: Sequence[ImageItem], predicted: npt.NDArray[np.int64]
) -> ClassAccuracy | None:
    """How many images of each class are classified correctly; None unless every image is labelled with a class."""
    truth = _positions(classes, items)
    if not truth or None in truth:
        return None
    first = np.array(first_of_name(classes))
    labels = first[np.array(truth, dtype=np.int64)]
    correct = labels == first[predicted]
    return ClassAccuracy(
        tuple((classes[k], int((labels == k).sum()), int(correct[labels == k].sum())) for k in np.unique(labels))
    )


def _positions(classes: Sequence[str], items: Sequence[ImageItem]) -> list[int | None]:
    """The class of each image by its label; None without one, and for labels that are not classes."""
    finder = ClassFinder(classes)
    return [None if item.label is None else finder.find(item.label) for item in items]


def names_by_chance(correct: int, images: int, classes: int) -> bool:
    """Whether this accuracy is compatible with guessing; False if there are too few images to tell."""
    if classes < 2 or images < 1:
        return False
    chance = 1 / classes
    half_way = math.ceil(images * (1 + chance) / 2)
    if binomial_tail(half_way, images, chance) >= SIGNIFICANCE:
        return False
    kappa = (correct / images - chance) / (1 - chance)
    return kappa < LEAST_KAPPA or binomial_tail(correct, images, chance) >= SIGNIFICANCE


def warn_of_chance(correct: int, images: int, classes: int, *, who: str = "The model", stacklevel: int = 2) -> bool:
    """Warn if `who` does not know the classes; returns whether it warned."""
    if not names_by_chance(correct, images, classes):
        return False
    warnings.warn(
        f"{who} names {_percent(correct / images)} of these {images} images correctly; guessing among {classes} "
        f"classes would be right for {_percent(1 / classes)}. It does not seem to know these classes; do not rely on "
        "its verdicts. Reword the class names, use another model, or tune on a few images per class (the method "
        "linear-probe needs no names).",
        UnknownClassesWarning,
        stacklevel=stacklevel + 1,
    )
    return True


def warn_of_guesses(
    classes: Sequence[str], truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], *, stacklevel: int = 2
) -> None:
    """Warn if predictions of labelled images are no better than guesses; duplicate names are one class."""
    first = np.array(first_of_name(classes))
    correct = int((first[truth] == first[predicted]).sum())
    warn_of_chance(correct, len(truth), len(set(first.tolist())), stacklevel=stacklevel + 1)


def warn_if_unknown(
    classifier: Classifier,
    items: Sequence[ImageItem],
    predicted: npt.NDArray[np.int64],
    features: npt.NDArray[np.float32] | None = None,
    *,
    stacklevel: int = 2,
) -> None:
    """Warn if the classes of some images seem unknown: by their labels if all have one, else by random words.

    Labels that are not classes, such as folders by year, are ignored. Words are used if there are features and the
    classifier comes from class names.
    """
    truth = _positions(classifier.classes, items)
    if truth and None not in truth:
        warn_of_guesses(classifier.classes, np.array(truth, dtype=np.int64), predicted, stacklevel=stacklevel + 1)
    elif not any(position is not None for position in truth) and features is not None and asks_words(classifier):
        _warn_by_words(classifier, features, stacklevel=stacklevel + 1)


def asks_words(classifier: Classifier) -> bool:
    """Whether class names can be compared with other words: the classifier is their text features."""
    return isinstance(classifier, ZeroShotClassifier) and classifier.base_model.text is not None


def _warn_by_words(classifier: Classifier, features: npt.NDArray[np.float32], *, stacklevel: int = 2) -> None:
    """Warn if images are no nearer to the class names than to as many random words."""
    if len(features) < FEWEST_IMAGES:
        return
    words = random_words(min(len(set(classifier.classes)), MOST_WORDS), classifier.classes)
    z, own = torch.from_numpy(np.asarray(features)), classifier.text_features.float().cpu()
    other = class_features(classifier.base_model, words, classifier.templates).float().cpu()
    wins = int(((z @ own.T).amax(dim=1) > (z @ other.T).amax(dim=1)).sum())
    if binomial_tail(wins, len(z), 0.5) >= SIGNIFICANCE:
        warnings.warn(
            f"Of these {len(z)} images {wins} are nearer to one of the class names than to one of {len(words)} random "
            "words. The model does not seem to know these classes, or the images show none of them. Check the names "
            "and the images, or use another model.",
            UnknownClassesWarning,
            stacklevel=stacklevel + 1,
        )


def random_words(count: int, names: Sequence[str]) -> list[str]:
    """Words for things, always the same ones, none of them among `names`."""
    lists = lexicographer_lists()
    pool = sorted({word for name in WORD_FILES for word in lists[name]} - {normal_name(name) for name in names})
    return [pool[i] for i in np.random.default_rng(0).choice(len(pool), size=count, replace=False)]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.0995 else f"{100 * share:.1f} %"
