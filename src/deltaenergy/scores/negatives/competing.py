"""The words that classes compete with: ImageNet's names and everyday nouns, or a user's own; none of them means a
class.

Removed are the classes, their synonyms and their kinds (`taxonomy.own_words`), and words whose text has a cosine above
0.9 with a class. Broader words ("animal" for dogs) compete: that does no harm. With people among the classes no clothes
compete: an image of a person in a suit is nearer to "suit" than to "person".
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.classes import fill, read_classes
from deltaenergy.core.progress import Progress
from deltaenergy.data.catalogue.class_names import name_list
from deltaenergy.errors import InputError
from deltaenergy.models.towers.text import unit
from deltaenergy.scores.negatives.pools import encode_candidates
from deltaenergy.scores.negatives.taxonomy import own_words

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

# With fewer words than this, unknown images too often match none of them (docs/results/thresholds.md).
FEW_WORDS = 300
TOO_CLOSE = 0.9
PEOPLE = frozenset({
    "adult", "baby", "boy", "child", "children", "face", "girl", "human", "human being", "man", "men", "people",
    "person", "persons", "portrait", "selfie", "woman", "women",
})  # fmt: skip


@dataclass(frozen=True)
class CompetingWords:
    """The words that compete with the classes, and those that were removed, each with the reason."""

    kept: tuple[str, ...]
    removed: Mapping[str, str]

    def pack(self) -> torch.Tensor:
        """As a tensor to save with a detector."""
        text = json.dumps({"kept": self.kept, "removed": dict(self.removed)}, ensure_ascii=False)
        return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8)

    @staticmethod
    def unpack(packed: torch.Tensor) -> CompetingWords:
        found = json.loads(bytes(packed.cpu().numpy()))
        return CompetingWords(tuple(found["kept"]), found["removed"])


@functools.cache
def imagenet_meanings() -> Mapping[str, tuple[int, ...]]:
    """ImageNet's names, each with its synsets as rows of the taxonomy; two names have two classes each."""
    text = resources.files("deltaenergy.scores.negatives").joinpath("data/imagenet-synsets.txt").read_text("utf-8")
    found: dict[str, tuple[int, ...]] = {}
    for name, row in zip(name_list("imagenet").names, map(int, text.split()), strict=True):
        found[name] = (*found.get(name, ()), row)
    return found


@functools.cache
def default_pool() -> tuple[str, ...]:
    """ImageNet's names, then concrete nouns of everyday life that are not among them (dog, person, flower, beach …)."""
    text = resources.files("deltaenergy.scores.negatives").joinpath("data/everyday.txt").read_text("utf-8")
    return tuple(dict.fromkeys([*imagenet_meanings(), *text.splitlines()]))


def candidates(words: str = "") -> tuple[str, ...]:
    """The pool: the default, or `words` instead (a file or names with commas); with a leading plus, both.

    >>> candidates("pizza,beach")
    ('pizza', 'beach')
    >>> len(candidates("+pizza,selfie")) - len(candidates())
    1
    """
    default = default_pool()
    if not words.strip():
        return default
    own = read_classes(words.strip().removeprefix("+"), "words")
    return tuple(dict.fromkeys([*default, *own] if words.strip().startswith("+") else own))


def remove_own(words: Iterable[str], classes: Sequence[str]) -> dict[str, str]:
    """The words that are a class, a synonym or a kind of one, or clothes if people are a class, with the reason."""
    words = list(words)
    own = own_words(words, classes, imagenet_meanings())
    people = next((name for name in classes if name.strip().lower() in PEOPLE), None)
    worn = {} if people is None else own_words(words, ["clothing"], imagenet_meanings())
    return dict.fromkeys(worn, f"clothes, which people wear: {people}") | {
        word: f"a class, a synonym or a kind: {name}" for word, name in own.items()
    }


def competing_words(
    classifier: Classifier, words: str = "", progress: Progress | None = None
) -> tuple[CompetingWords, torch.Tensor]:
    """The words for a classifier, and their unit features (M, D) by the classifier's own templates."""
    pool = candidates(words)
    removed = remove_own(pool, classifier.classes)
    features = _encode(classifier, pool, progress)
    cosines = features @ classifier.text_features.to(features).T
    nearest, position = cosines.max(dim=1)
    close = {
        word: f"cosine {float(nearest[i]):.2f} with the class {classifier.classes[int(position[i])]}"
        for i, word in enumerate(pool)
        if word not in removed and float(nearest[i]) > TOO_CLOSE
    }
    # In a model whose texts are all close together, a cosine does not show equal meaning.
    if 2 * len(close) < len(pool) - len(removed):
        removed |= close
    kept = [i for i, word in enumerate(pool) if word not in removed]
    if not kept:
        raise InputError(
            f"words: all {len(pool)} words are classes, their synonyms or their kinds. Use narrower classes, other "
            "words (words=FILE), or a score without words, such as mcm."
        )
    if len(kept) < FEW_WORDS:
        warnings.warn(
            f"Only {len(kept)} words are left to compete with the classes; with fewer than {FEW_WORDS}, fewer unknown "
            "images are rejected. Use narrower classes, or add words (words=+FILE).",
            stacklevel=2,
        )
    return CompetingWords(tuple(pool[i] for i in kept), removed), features[kept]


def _encode(classifier: Classifier, words: Sequence[str], progress: Progress | None) -> torch.Tensor:
    """Unit features as a zero-shot classifier makes them of class names: one template at a time, then their mean."""
    template = getattr(classifier.method, "template", None)
    templates = classifier.templates if template is None else (template,)
    rows = [
        encode_candidates(classifier.model, [[fill(one, word)] for word in words], progress=progress)
        for one in templates
    ]
    return rows[0] if len(rows) == 1 else unit(torch.stack(rows).mean(dim=0))
