"""What a threshold guarantees for new images, as numbers and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from deltaenergy.core.text import listed
from deltaenergy.errors import ResultWarning
from deltaenergy.stats.thresholds import CONFIDENCE, kept_at_least, least_images, percent, rank_of


class NoGuarantee(ResultWarning):
    """There were too few images for the guarantee that was requested."""


@dataclass(frozen=True)
class Guarantee:
    """What a threshold guarantees for new images like those it was set on; `str()` gives it as text.

    Attributes:
        keep: the share of known images to keep.
        confidence: None: that share is kept on average. A number: at least that share is kept, with this confidence.
        images: number of images that set the threshold.
        folds: number of folds of a cross-fitted score; 0 for a score that does not learn.
        trained: whether the classifier was trained on these images; then nothing is guaranteed.
        own: classes with their own threshold.
        pooled: classes with too few images for one.
        tolerate: kinds of corruption that half of the images had (`data.corruptions`).
    """

    keep: float
    confidence: float | None
    images: int
    folds: int = 0
    trained: bool = False
    own: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    tolerate: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The k of the threshold s_(k); 0 with too few images: then the smallest score is the threshold."""
        return rank_of(self.images, self.keep, self.confidence)

    @property
    def holds(self) -> bool:
        """Whether `keep` is guaranteed as requested."""
        return self.rank > 0 and not self.trained

    @property
    def average(self) -> float:
        """The share of new images that s_(k) keeps on average, 1 − k / (n + 1)."""
        return 1 - max(1, self.rank) / (self.images + 1)

    @property
    def at_least(self) -> float | None:
        """The share that is kept with 90% confidence (`kept_at_least`); None if it does not apply."""
        exact = self.holds and self.confidence is None and not self.folds
        return kept_at_least(self.images, self.rank) if exact else None

    def __str__(self) -> str:
        sentences = [self._overall()]
        if self.tolerate:
            sentences.append(
                f"About half of these images were corrupted ({', '.join(self.tolerate)}): fewer unknown images "
                "are rejected than without."
            )
        if (self.own or self.pooled) and not self.trained:
            sentences.append(self._classes())
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """The fields and the text, as JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("own", "pooled", "tolerate")}
        more = {**lists, "at_least": self.at_least, "text": str(self)}
        return {**asdict(self), **more}

    def _overall(self) -> str:
        count = f"{self.images:,} image{'s' * (self.images != 1)}"
        if self.trained:
            return f"The classifier was trained on these {count}: nothing is guaranteed for new images."
        average = percent(round(self.average, 3))
        if not self.rank:
            rule = (
                "An image is rejected if it scores below all of"
                if self.folds
                else "The threshold is the lowest score of"
            )
            smallest = f"{rule} the {count}, which keeps about {average} of new images like these on average."
            if self.keep == 1:
                return f"{smallest} No number of images can guarantee that all new images are kept."
            wanted = f"{percent(self.keep)}{self._sure(' ')}"
            return f"{smallest} A guarantee of {wanted} needs {least_images(self.keep, self.confidence):,} images."
        if self.folds:
            made = f"(set on {count}, the score cross-fitted in {self.folds} folds)"
            if self.confidence is None:
                return f"About {percent(self.keep)} of new images like these are kept on average {made}."
            return (
                f"About {average} of new images like these are kept on average {made}. At least {percent(self.keep)}"
                f"{self._sure(' ')} is not proven for a cross-fitted score."
            )
        if self.confidence is not None:
            kept = f"At least {percent(self.keep)} of new images like these are kept{self._sure(', ')}"
            return f"{kept} (set on {count})."
        assert self.at_least is not None
        sure = f"at least {percent(round(self.at_least, 3))} with {percent(CONFIDENCE)} confidence"
        return f"{percent(self.keep)} of new images like these are kept on average, {sure} (set on {count})."

    def _sure(self, before: str) -> str:
        return "" if self.confidence is None else f"{before}with {percent(self.confidence)} confidence"

    def _classes(self) -> str:
        least = least_images(self.keep, self.confidence)
        if not self.own:
            return f"No class has its own threshold, which needs {least:,} correctly classified images."
        which = "each class" if not self.pooled else listed(self.own, 8)
        kept = f"{percent(self.keep)}{self._sure(' ')}"
        text = f"By class: {kept} also holds within {which}, for images that are classified correctly."
        if self.pooled:
            text += f" {listed(self.pooled, 8)}: fewer than {least:,} such images, judged by the threshold of all."
        return text
