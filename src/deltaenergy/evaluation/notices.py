"""What an evaluation warns of: classes that the model does not know, and what could not be measured."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from deltaenergy.core.labels import first_of_name
from deltaenergy.detector.class_check import warn_of_chance
from deltaenergy.evaluation.results import Evaluation, Group


class NoOpenSet(UserWarning):
    """There are no images of none of the classes, so that detection could not be measured."""


def warn_of_unknown_classes(
    evaluation: Evaluation, classes: Sequence[str], *, who: str = "The model", stacklevel: int = 2
) -> None:
    """Say so if the labelled ID images are named no better than by guessing."""
    known = [one for one in evaluation.sets if one.group is Group.ID]
    correct, told = (int(sum(getattr(one, rows).sum() for one in known)) for rows in ("correct", "labelled"))
    warn_of_chance(correct, told, len(set(first_of_name(classes))), who=who, stacklevel=stacklevel + 1)


def warn_of_no_open_set(evaluation: Evaluation, *, stacklevel: int = 2) -> None:
    """Say so if detection could not be measured for want of images that are none of the classes."""
    if not evaluation.in_group(Group.OPEN):
        warnings.warn(
            "No open set, so no detection metrics: add images that are none of the classes (open_sets in Python, "
            "--open DIR on the command line).",
            NoOpenSet,
            stacklevel=stacklevel + 1,
        )
