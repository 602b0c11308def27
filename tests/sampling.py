"""Which cases of a long list the default suite runs; the others carry the marker `campaign` (`make test-all`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int) -> int:
    """So many examples of a campaign; fewer, in the same ratio as elsewhere, of the default suite (conftest.py)."""
    return max(1, round(count * settings.default.max_examples / 100))


def sampled(
    cases: Iterable[Any], every: int, *, kind: Callable[[Any], object] = lambda case: None, start: int = 0
) -> list[Any]:
    """All cases as parameters; of each `kind`, the first and every few after it run by default.

    `start` moves the choice by so many cases, so that two lists of the same cases keep others.
    """
    seen: Counter[object] = Counter()
    parameters = []
    for case in cases:
        number = seen[kind(case)]
        seen[kind(case)] += 1
        left_out = (number - start) % every != 0 and not (number == 0 and start == 0)
        parameters.append(pytest.param(case, marks=[pytest.mark.campaign] if left_out else []))
    return parameters


def spread(rows: Iterable[Any], columns: Iterable[Any], every: int) -> list[Any]:
    """All pairs as parameters; one of `every` few runs by default, spread evenly over each row and each column."""
    columns = list(columns)
    return [
        pytest.param(row, column, marks=[pytest.mark.campaign] if (i + j) % every else [])
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
