"""Which score suits some classes, found from in-distribution images alone."""

from deltaenergy.evaluation.choosing.choice import NEAR_ONLY, Candidate, Choice
from deltaenergy.evaluation.choosing.disagreeing import ChoiceDisagreement, disagreement_of
from deltaenergy.evaluation.choosing.run import (
    CANDIDATES,
    FarUnknowns,
    Labelled,
    candidate_scores,
    choose,
    choose_from_features,
    far_unknowns,
    given_to_choose,
    labelled_features,
)

__all__ = [
    "CANDIDATES",
    "NEAR_ONLY",
    "Candidate",
    "Choice",
    "ChoiceDisagreement",
    "FarUnknowns",
    "Labelled",
    "candidate_scores",
    "choose",
    "choose_from_features",
    "disagreement_of",
    "far_unknowns",
    "given_to_choose",
    "labelled_features",
]
