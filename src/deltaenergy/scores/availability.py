"""Which scores can run on the given data, checked before any work: `all` skips the others, a named score is refused.

A score declares what it needs, and how many prompts it encodes before it can score. This is compared with what the
images and the classifier have: a feature store has no pixels and perhaps no patches, a model of precomputed features no
text tower.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.zero_shot import ZeroShot
from deltaenergy.core.needs import OF_IMAGES, Lack, Need
from deltaenergy.core.specs import split
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, TowerModel
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.registry import SCORES, make_score
from deltaenergy.source import Source, is_unlabelled

# `all` skips scores that encode more prompts than this first: minutes without a GPU.
MOST_PROMPTS = 10_000
ALL = "all"


@dataclass(frozen=True)
class Given:
    """What a run has for its scores: the needs that it cannot meet, and the method of its classifier."""

    lacks: Mapping[Need, Lack] = field(default_factory=dict)
    method: str = ZeroShot.name

    @classmethod
    def of(
        cls,
        sources: Iterable[Source] = (),
        classifier: Classifier | None = None,
        *,
        model: Model | None = None,
        method: str = ZeroShot.name,
    ) -> Given:
        """What images and a classifier have for scores.

        Without a classifier, the one that `method` will make of `model`; without a model, a complete one.
        """
        if classifier is not None:
            model, method = classifier.model, classifier.method.name
        lacks: dict[Need, Lack] = {}
        if model is not None and model.text is None:
            lacks[Need.TEXTS] = Lack(
                f"{model.name!r} has no text encoder",
                f"{model.name!r} has precomputed features and cannot encode text. Load the model itself with "
                "load_model.",
            )
        if model is not None and not isinstance(model, TowerModel):
            lacks |= dict.fromkeys(OF_IMAGES, Lack("features were given", "pass images, not features."))
        closed = closed_tower(model.backend, model.precision) if isinstance(model, TowerModel) else None
        if closed is not None:
            lacks[Need.PIXELS] = closed
        for source in sources:
            lacks |= source.lacks
        return cls(lacks, method)

    def without(self, **lacks: Lack | None) -> Given:
        """The same without some needs, as in `pixels=Lack(…)`; None changes nothing."""
        more = {Need[name.upper()]: lack for name, lack in lacks.items() if lack is not None}
        return Given({**self.lacks, **more}, self.method)


def closed_tower(backend: str | None, precision: str = "auto") -> Lack | None:
    """What a score with gradients lacks on a backend, or in 8 bits; None on torch."""
    if precision == "int8" and backend in (None, "torch"):
        return Lack(
            "int8 has no gradients",
            "it needs gradients through the image encoder, which int8 does not have. Use `precision='fp32'`.",
        )
    if backend in (None, "torch"):
        return None
    return Lack(
        f"the backend {backend} has no gradients",
        f"it needs gradients through the image encoder, which {backend!r} does not have. Use `backend='torch'`.",
    )


def unlabelled(source: Source) -> Lack | None:
    """What a score that learns from classes lacks on this source; None if it may have classes."""
    if not is_unlabelled(source):
        return None
    return Lack(
        "no image has a class",
        "none of the known images has a class. Pass a folder with one subfolder per class, or a feature store.",
    )


def obstacle(score: Score, given: Given) -> tuple[str, str] | None:
    """Why a score cannot run, in brief and as a sentence with the remedy; None if it can."""
    if score.own_to is not None:
        if score.own_to != given.method:
            return "for classifiers tuned by the method of that name", score.foreign(given.method)
    elif score.missing is not None:
        return score.missing.removeprefix(f"Score {score.name!r} ").rstrip("."), score.missing
    for need in sorted(score.needs & given.lacks.keys(), key=lambda need: need.value):
        why, remedy = given.lacks[need]
        return f"needs {need.value}: {why}", f"Score {score.spec!r} needs {need.value}: {remedy}"
    return None


def check_runnable(scores: Iterable[Score | Scorer], given: Given) -> None:
    """Raise `InputError`, by name and with the remedy, if one of the scores cannot run."""
    for score in scores:
        problem = obstacle(score.score if isinstance(score, Scorer) else score, given)
        if problem is not None:
            raise InputError(problem[1])


def chosen_scores(
    scores: str | Score | Scorer | Iterable[str | Score | Scorer], given: Given
) -> tuple[list[Score | Scorer], str | None]:
    """Scores as a user names them, each once; and one line on those that `all` skipped, if any.

    A string names one or several between commas; `all` means every score and named setting that can run and is cheap. A
    named score that cannot run is refused.
    """
    several = [scores] if isinstance(scores, str | Score | Scorer) else list(scores)
    chosen: dict[str, Score | Scorer] = {}
    left_out = None
    for one in several:
        for part in split(one, ",", "score") if isinstance(one, str) else [one]:
            if part == ALL:
                usable, left_out = runnable_scores(given)
                chosen |= {score.spec: score for score in usable if score.spec not in chosen}
                continue
            made = part if isinstance(part, Scorer) else make_score(part)
            check_runnable([made], given)
            chosen.setdefault(made.spec, made)
    if not chosen:
        raise InputError("`scores` is empty: name at least one score. `deltaenergy methods` lists them.")
    return list(chosen.values()), left_out


def every_score() -> list[Score]:
    """Every score with its defaults, and every named setting of one, whether it can run or not."""
    specs = [":".join(filter(None, (name, preset))) for name, cls in SCORES.items() for preset in ("", *cls.presets)]
    return list({score.spec: score for score in map(make_score, specs)}.values())


def runnable_scores(given: Given) -> tuple[list[Score], str | None]:
    """The scores that can run and are cheap; and one line on the others, if there are any.

    A score is cheap if it encodes at most `MOST_PROMPTS` prompts first; others must be named.
    """
    usable, left_out = [], dict[str, list[str]]()
    for score in every_score():
        problem = obstacle(score, given)
        if problem is None and score.prompts > MOST_PROMPTS:
            problem = (f"{score.prompts:,} prompts to encode first; name it to include it", "")
        if problem is None:
            usable.append(score)
        else:
            left_out.setdefault(problem[0], []).append(score.spec)
    groups = [f"{', '.join(specs)} ({reason})" for reason, specs in left_out.items()]
    return usable, f"Not part of all: {'; '.join(groups)}." if groups else None
