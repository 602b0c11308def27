"""A monitor of a service's detector: looks at every verdict, keeps its gauges, and saves its state now and then."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from deltaenergy.errors import DeltaEnergyError
from deltaenergy.monitor import Monitor
from deltaenergy.monitor.state import state_of, write_state
from deltaenergy.serve.schemas import ImageAnswer
from deltaenergy.serve.metrics import Metrics

# What a killed process may lose.
SECONDS = 10.0


class Watch:
    """One detector's monitor. The event loop alone calls `look`; the state file is held by whoever made the monitor."""

    def __init__(self, name: str, monitor: Monitor, path: Path, metrics: Metrics) -> None:
        self.name, self.monitor, self.path, self._metrics = name, monitor, path, metrics
        self._saved = time.monotonic()
        metrics.monitor_bound.labels(name).set(monitor.bound)
        metrics.monitor_bar.labels(name).set(monitor.bar / math.log(10))
        self._show()

    def look(self, answers: Sequence[ImageAnswer]) -> bool:
        """Look at those that are verdicts; returns whether there were any."""
        found = [answer for answer in answers if answer.verdict is not None and answer.label is not None]
        if not found:
            return False
        ids, labels = [answer.id for answer in found], [answer.label or "" for answer in found]
        scores = [_score(answer) for answer in found]
        # Whoever asks chooses the names: they must not be taken for files of this disk.
        self.monitor.observe(ids, labels, scores, files=False)
        self._show()
        return True

    def save_soon(self, executor: Executor) -> None:
        """Save in a thread, if the last time is long enough ago."""
        if time.monotonic() - self._saved >= SECONDS:
            self._saved = time.monotonic()
            executor.submit(self._write, state_of(self.monitor))

    def save(self) -> None:
        """Save now."""
        self._write(state_of(self.monitor))

    def _write(self, state: dict[str, object]) -> None:
        try:
            write_state(self.path, state)
        except (OSError, DeltaEnergyError) as error:
            # Answers matter more; the next save may succeed, and the last one is told by its own writer.
            logging.getLogger("deltaenergy.serve").warning("The monitor's state could not be written: %s", error)

    def _show(self) -> None:
        status = self.monitor.status
        self._metrics.monitored.labels(self.name).set(status.images)
        self._metrics.monitor_rate.labels(self.name).set(status.rate)
        self._metrics.monitor_changed.labels(self.name).set(int(status.changed))
        for test, evidence in status.evidence.items():
            self._metrics.monitor_evidence.labels(self.name, test).set(evidence)


def _score(answer: ImageAnswer) -> float:
    """JSON has no infinity: a score that is none, of an image that was kept, was one."""
    if answer.score is None:
        return math.nan if answer.is_ood else math.inf
    return answer.score
