"""`python -m tests.mutants [--list] [PART OF A NAME …]`: put each listed fault into a copy of the package, run tests.

Ends with 1 if a fault cannot be applied any more, if its tests fail without it, or if fewer than 95 % are noticed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tests.mutants.harness import Mutant, NotApplicable, Run, sources_with
from tests.mutants.listed import MUTANTS

LEAST = 0.95


def main(arguments: list[str]) -> int:
    """The exit code."""
    parts = [part for part in arguments if part != "--list"]
    chosen = [one for one in MUTANTS if not parts or any(part in f"{one.name}: {one.fault}" for part in parts)]
    if len(parts) < len(arguments):
        print(*(f"- `{one.name}`: {one.fault}" for one in chosen), sep="\n")
        return 0
    gone = []
    for mutant in chosen:
        try:
            mutant.place()
        except NotApplicable as error:
            gone.append(str(error))
    if gone:
        print("These mutants no longer apply. Write them for the code as it is:", *gone, sep="\n  ")
        return 1
    _import_once()
    files = dict.fromkeys(test for mutant in chosen for test in mutant.tests)
    for (_, tests), passed, printed in _results([(None, (file,)) for file in files]):
        if not passed:
            print(printed, f"{tests[0]} fails without any mutant.", sep="\n")
            return 1
    killed = 0
    for (mutant, _), passed, _ in _results([(mutant, mutant.tests) for mutant in chosen]):
        assert mutant is not None
        print(f"{'SURVIVED' if passed else 'killed':9}{mutant.name}: {mutant.fault}", flush=True)
        killed += not passed
    print(f"{killed} of {len(chosen)} mutants are killed.")
    return 0 if killed >= LEAST * len(chosen) else 1


Task = tuple[Mutant | None, tuple[str, ...]]


def _results(tasks: Sequence[Task]) -> Iterator[tuple[Task, bool, str]]:
    """For each task, as they end: whether its tests passed, and what they printed. JOBS of them run at a time."""
    asked = os.environ.get("JOBS", "auto")
    waiting, jobs = list(tasks), int(asked) if asked.isdigit() else os.cpu_count() or 1
    running: list[tuple[Task, Run, ExitStack]] = []
    with ExitStack() as all_folders:
        while waiting or running:
            while waiting and len(running) < jobs:
                task, stack = waiting.pop(0), all_folders.enter_context(ExitStack())
                running.append((task, Run(stack.enter_context(sources_with(task[0])), task[1]), stack))
            time.sleep(0.05)
            for one in list(running):
                task, run, stack = one
                passed = run.passed()
                if passed is None:
                    continue
                yield task, passed, run.printed()
                stack.close()
                running.remove(one)


def _import_once() -> None:
    """What forks of this process share, and would each import: all that takes long but the package itself."""
    import hypothesis
    import numpy
    import pytest
    import scipy.special
    import torch
    import transformers

    imported = (hypothesis, numpy, pytest, scipy.special, torch, transformers)
    assert "deltaenergy" not in sys.modules, imported


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
