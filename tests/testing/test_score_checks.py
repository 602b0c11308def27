"""The checks of scores: a sound score passes all; each check notices a score that breaks its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from deltaenergy import Score
from deltaenergy.core.needs import Need
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.registry import SCORES, register_score
from deltaenergy.testing import SCORE_CHECKS, check_score


@dataclass(frozen=True)
class Sound(Score):
    """A score that keeps every rule."""

    name = "sound"
    summary = "the largest similarity"
    formula = "max_k s_k"
    paper = "nobody"
    scale: float = 1.0

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        return self.scale * inputs.similarities.float().amax(dim=1)


@dataclass(frozen=True)
class NoFormula(Sound):
    """It does not say what it computes."""

    formula = ""


@dataclass(frozen=True)
class Ranks(Sound):
    """It ranks images within their batch."""

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        values = super().compute(inputs, scorer)
        return values - values.mean() if len(values) else values


@dataclass(frozen=True)
class InPlace(Sound):
    """It scales the similarities that it was given."""

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        super().compute(inputs, scorer)
        return inputs.similarities.mul_(2).amax(dim=1).float()


@dataclass(frozen=True)
class Imprecise(Sound):
    """It computes in half precision."""

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        super().compute(inputs, scorer)
        return inputs.similarities.bfloat16().amax(dim=1)


@dataclass(frozen=True)
class SecondClass(Sound):
    """It takes for granted that there are two classes."""

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        super().compute(inputs, scorer)
        return inputs.similarities.float()[:, 1]


@dataclass(frozen=True)
class Upside(Sound):
    """It is larger for unknown images."""

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        return -super().compute(inputs, scorer)


@dataclass(frozen=True)
class Forgetful(Sound):
    """It takes 0 for what it has not learned, instead of saying that it must be fitted."""

    needs = frozenset({Need.ID_DATA})

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """The mean."""
        return {"mean": inputs.similarities.mean()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        return super().compute(inputs, scorer) - float(scorer.state.get("mean", torch.tensor(0.0)))


REMEMBERED: dict[str, float] = {}


@dataclass(frozen=True)
class Remembers(Forgetful):
    """It keeps what it learned outside of its scorer."""

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """The mean."""
        REMEMBERED["mean"] = float(inputs.similarities.mean())
        return {"mean": inputs.similarities.mean()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        scorer.learned("mean")
        return Sound.compute(self, inputs, scorer) - REMEMBERED["mean"]


SCRATCH: list[torch.Tensor] = []


@dataclass(frozen=True)
class SharesScratch(Sound):
    """It keeps an intermediate result where other threads find it."""

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        import time

        SCRATCH[:] = [super().compute(inputs, scorer)]
        time.sleep(0.002)
        return SCRATCH[0][: len(inputs.similarities)]


@dataclass(frozen=True)
class RoundsBySize(Sound):
    """Its result depends on how many images come together, by far more than rounding."""

    needs = frozenset({Need.PIXELS})  # so that it sees them as they come

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        return super().compute(inputs, scorer) + 0.01 * len(inputs.similarities)


@pytest.fixture
def only_here(request: pytest.FixtureRequest) -> Callable[[type[Score]], Score]:
    """Register a score under the common name for one test."""

    def make(cls: type[Score]) -> Score:
        request.addfinalizer(lambda: SCORES._entries.pop("sound", None))
        register_score(cls)
        return cls()

    return make


def test_a_sound_score_passes(only_here: Callable[[type[Score]], Score]) -> None:
    check_score(only_here(Sound))


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (NoFormula, "describes_itself"),
        (Ranks, "does_not_depend_on_batch_or_order"),
        (InPlace, "leaves_its_inputs_alone"),
        (Imprecise, "needs_no_double_precision"),
        (SecondClass, "takes_one_class_and_repeated_classes"),
        (Upside, "is_larger_for_known_images"),
        (Forgetful, "says_when_it_must_be_fitted"),
        (Remembers, "serves_several_detectors"),
        (SharesScratch, "runs_in_several_threads"),
        (RoundsBySize, "accepts_what_it_was_calibrated_on"),
    ],
)
def test_a_check_notices_what_it_is_for(
    cls: type[Score], check: str, only_here: Callable[[type[Score]], Score]
) -> None:
    chosen = next(one for one in SCORE_CHECKS if one.__name__ == check)
    with pytest.raises((AssertionError, IndexError)):
        chosen(only_here(cls))


def test_a_score_that_fails_is_told_the_rule_it_breaks(only_here: Callable[[type[Score]], Score]) -> None:
    with pytest.raises(AssertionError, match=r"describes_itself.*docstring"):
        check_score(only_here(NoFormula))


def test_what_is_no_score_cannot_be_registered() -> None:
    class NotFrozen(Sound):
        pass

    @dataclass(frozen=True)
    class NoDefault(Score):
        name, summary, formula, paper = "no-default", "s", "f", "p"
        tau: float

    @dataclass(frozen=True)
    class Unnamed(Score):
        name = "unnamed"

    for cls, message in (
        (NotFrozen, "dataclass"),
        (NoDefault, "tau needs a default"),
        (Unnamed, "summary"),
        (3, "Score"),
    ):
        with pytest.raises(TypeError, match=message):
            SCORES.add(getattr(cls, "name", "three"), cls)  # type: ignore[arg-type]
