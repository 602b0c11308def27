"""`Monitor`: raises an alarm when images no longer look like the calibration images, with bounded false alarms.

Two tests use every verdict, each with half of α (evidence.py): a bet on the rate of rejected images, which is wrong
with a probability of at most α/2 + δ at any time, and a conformal martingale for small shifts, at most α/2. So known
images like those of the calibration ever raise an alarm with probability at most α + δ.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.core.progress import stage
from deltaenergy.core.text import HasRepr
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.names import NamesRule
from deltaenergy.detector.opening import DetectorSource
from deltaenergy.detector.saved import version_of
from deltaenergy.detector.verdict import Verdict
from deltaenergy.detector.verdicts import Verdicts, holds_verdicts
from deltaenergy.errors import InputError
from deltaenergy.files import check_writable, lock_folder
from deltaenergy.monitor.evidence import (
    EXPONENTS,
    STAKES,
    Restarts,
    ScoreCells,
    count_below,
    log_mean_of_two,
    log_rate_bets,
    log_rate_evidence,
    log_shift_bets,
    log_shift_evidence,
)
from deltaenergy.monitor.state import (
    LONGEST_NAME,
    FlaggedImage,
    History,
    check_version,
    read_state,
    restore,
    state_of,
    write_state,
)
from deltaenergy.stats.thresholds import percent, upper_share

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.models.on import On

ALPHA, DELTA = 0.04, 0.01
TESTS = ("rate", "shift")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Status:
    """State of a monitor; `str()` gives it as text.

    Attributes:
        images: number of images seen.
        flagged: number of rejected images.
        bound: q, the largest share of known images that is rejected, with probability 1 − δ; 1 for a detector from
            class names, which never raises an alarm.
        evidence: log10 of each test's evidence, which starts at 1.
        highest: the largest evidence so far.
        alarm_level: evidence that raises the alarm, log10(2/α).
        alarms: number of the image that raised each test's alarm, or None.
        changed: whether a test has raised an alarm; it stays raised.
        since: about how many images came before the change, estimated at the first alarm; None without an alarm.
        most_false: α + δ.
    """

    images: int
    flagged: int
    bound: float
    evidence: dict[str, float]
    highest: dict[str, float]
    alarm_level: float
    alarms: dict[str, int | None]
    changed: bool
    since: int | None
    most_false: float

    @property
    def rate(self) -> float:
        """The share of flagged images; 0 before the first."""
        return self.flagged / max(1, self.images)

    def to_dict(self) -> dict[str, Any]:
        """The fields, the rate and the text, as JSON values."""
        return {**asdict(self), "rate": self.rate, "text": str(self)}

    def __str__(self) -> str:
        if not self.images:
            return "No image has been seen yet."
        seen = (
            f"{self.flagged:,} of {self.images:,} image{'s' * (self.images != 1)} ({percent(round(self.rate, 3))}) "
            "rejected"
        )
        if self.bound == 1:
            return f"{seen}. There are no known images to compare with: calibrate the detector to detect changes."
        seen += f"; calibration allows up to {percent(round(self.bound, 3))}"
        sure = f"The probability of a false alarm, over all time, is at most {percent(round(self.most_false, 6))}."
        if not self.changed:
            return f"No change found: {seen}. {sure}"
        reasons = {"rate": "too many are rejected", "shift": "their scores are lower"}
        raised = [f"{reasons[test]} (image {number:,})" for test, number in self.alarms.items() if number is not None]
        start = f", probably since about image {self.since + 1:,}" if self.since is not None else ""
        return f"The images have changed{start}: {' and '.join(raised)}. In all, {seen}. {sure}"


class Monitor(HasRepr):
    """Watches a detector's verdicts for a change of the incoming images.

    Pass every image once, in order. Alarms are permanent: recalibrate with images of the new kind and start a new
    monitor.

    Args:
        detector: with one threshold for all classes. For a detector from class names, rejected images are counted, and
            no alarm is raised.
        alpha: the probability of a false alarm, over all time.
        delta: added to `alpha`, to allow for an unlucky calibration sample.
        seed: random seed for breaking ties.
    """

    def __init__(self, detector: Detector, *, alpha: float = ALPHA, delta: float = DELTA, seed: int = 0) -> None:
        _check_settings(alpha, delta, seed)
        _check_detector(detector)
        self.detector, self.alpha, self.delta, self.seed = detector.prepare(), alpha, delta, seed
        # Identifies the detector and its calibration.
        self.version = version_of(detector)
        self._scores = scores = detector.calibration_scores
        self.bound = 1.0
        if len(scores):
            self.bound = upper_share(count_below(scores, detector.threshold or 0.0), len(scores), delta)
        self.images = self.flagged = 0
        self.log_p = 0.0
        self.cells = ScoreCells(scores, seed)
        self.restarts = {
            "rate": Restarts(len(STAKES), lambda flagged: log_rate_bets(flagged, self.bound)),
            "shift": Restarts(len(EXPONENTS), log_shift_bets),
        }
        self.history = History()
        self.highest = dict.fromkeys(TESTS, 0.0)
        self.alarms: dict[str, int | None] = dict.fromkeys(TESTS)
        self.since: int | None = None
        self._adding = threading.Lock()

    @property
    def alarm_level(self) -> float:
        """log(2/α), the evidence that raises an alarm."""
        return math.log(2 / self.alpha)

    def add(self, verdicts: Iterable[Verdict]) -> Monitor:
        """Use verdicts of this detector, in order."""
        rows = [(verdict.path, verdict.label, verdict.score) for verdict in verdicts]
        ids, labels, scores = zip(*rows) if rows else ((), (), ())
        return self.observe(ids, labels, scores)

    def watch(self, images: Any, *, batch_size: int = 32) -> list[Unreadable]:
        """Classify images with the detector, or read a table, and use the verdicts; returns unreadable images."""
        if holds_verdicts(images):
            self.read(images)
            return []
        with stage("Monitoring") as progress:
            stream = self.detector.stream(images, batch_size=batch_size, progress=progress)
            while verdicts := list(islice(stream, max(1, batch_size))):
                self.add(verdicts)
        return stream.unreadable

    def read(self, table: Any) -> Monitor:
        """Use the rows of a table: a file that `score --out` wrote, or a pandas, polars or Arrow table like it.

        Verdicts are computed again from the scores. A table without p-values of this detector is refused.
        """
        rows = Verdicts.from_table(table)
        self.detector.check_made(rows)
        return self.observe(rows.paths, rows.labels, rows.scores)

    def observe(self, ids: Sequence[str], labels: Sequence[str], scores: Any, *, files: bool = True) -> Monitor:
        """`add` from names, classes and scores.

        `files`: whether their ids may be opened as files, to show the images on a page.
        """
        values = np.asarray(scores, dtype=np.float64)
        if values.ndim != 1 or not len(ids) == len(labels) == len(values):
            raise InputError(
                f"observe needs one id, label and score per image, got {len(ids)} ids, {len(labels)} labels and scores "
                f"of shape {values.shape}."
            )
        known = set(self.detector.classifier.classes)
        strange = next((label for label in labels if label not in known), None)
        if strange is not None:
            raise InputError(f"{strange!r} is not a class of this detector: these verdicts come from another detector.")
        if len(self._scores) and self.detector.calibration_scores is not self._scores:
            raise InputError("The detector was recalibrated after this monitor started: start a new one.")
        with self._adding:
            flags = self.detector.rejects(values)
            # Added one by one, so batches of any size give the same bits.
            log_p = np.log(self.cells.p_values(values)) if len(self._scores) else np.zeros(len(values))
            logs = np.cumsum(np.concatenate([[self.log_p], log_p]))[1:]
            shifts = log_shift_evidence(self.images + np.arange(1, len(values) + 1), logs)
            seen = {"rate": flags.astype(np.float64), "shift": log_p}
            restarts = {test: self.restarts[test].add(seen[test]) for test in TESTS}
            time = datetime.now(UTC).isoformat(timespec="seconds")
            for i, flagged in enumerate(flags.tolist()):
                self.images += 1
                self.flagged += flagged
                first = {"rate": log_rate_evidence(self.flagged, self.images, self.bound), "shift": float(shifts[i])}
                now = {test: log_mean_of_two(first[test], restarts[test][0][i]) for test in TESTS}
                for test, evidence in now.items():
                    self.highest[test] = max(self.highest[test], evidence)
                    if self.alarms[test] is None and evidence >= self.alarm_level:
                        if not self.changed:
                            # Decided once: later images may have other changes.
                            self.since = int(restarts[test][1][i])
                        self.alarms[test] = self.images
                self.log_p = float(logs[i])
                image = FlaggedImage(self.images, _name(ids[i]), labels[i], float(values[i]), files)
                self.history.add(image, flagged, now["rate"], now["shift"], time)
        return self

    @property
    def changed(self) -> bool:
        """Whether a test has raised an alarm."""
        return any(number is not None for number in self.alarms.values())

    @property
    def status(self) -> Status:
        """The evidence and alarms so far."""
        first = {
            "rate": log_rate_evidence(self.flagged, self.images, self.bound),
            "shift": float(log_shift_evidence(self.images, self.log_p)[0]),
        }
        now = {test: log_mean_of_two(first[test], self.restarts[test].log_evidence) for test in TESTS}
        return Status(
            self.images,
            self.flagged,
            self.bound,
            {test: evidence / math.log(10) for test, evidence in now.items()},
            {test: evidence / math.log(10) for test, evidence in self.highest.items()},
            self.alarm_level / math.log(10),
            dict(self.alarms),
            self.changed,
            self.since,
            self.alpha + self.delta,
        )

    def save(self, path: str | Path) -> None:
        """Write the state to a small JSON file; replaces only a state of the same detector."""
        with _lock_of(path):
            if os.path.lexists(path):
                check_version(read_state(path), self.version, path)
            write_state(path, state_of(self))

    @classmethod
    def load(cls, path: str | Path, detector: Detector) -> Monitor:
        """Resume from a saved state of the same detector."""
        state = read_state(path)
        monitor = cls(detector, alpha=state["alpha"], delta=state["delta"], seed=state["seed"])
        check_version(state, monitor.version, path)
        restore(monitor, state)
        return monitor

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        state: str | Path,
        detector: Detector | str | Path,
        *,
        alpha: float | None = None,
        delta: float | None = None,
        seed: int | None = None,
        on: str | On = "auto",
    ) -> Iterator[Monitor]:
        """Open or create the monitor of a state file; the file is locked for the block and written after it.

        A detector given as a folder is loaded as `on` says. Settings come from the file; arguments must agree with it.
        If the block fails, the state is still written: those images were seen.
        """
        settings = {"alpha": alpha, "delta": delta, "seed": seed}
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        _check_settings(**{"alpha": ALPHA, "delta": DELTA, "seed": 0, **given})
        check_writable(state, argument="state")
        source = DetectorSource.of(detector, on, "monitor")
        with _lock_of(state):
            detector = source.detector()
            if os.path.lexists(state):
                monitor = cls.load(state, detector)
                for name, value in given.items():
                    if value != getattr(monitor, name):
                        raise InputError(
                            f"{state} was started with {name} {getattr(monitor, name):g}, not {value:g}: it cannot "
                            f"change later. Remove `{name}`, or start another state file."
                        )
            else:
                monitor = cls(detector, **given)
            before = monitor.images
            try:
                yield monitor
            except BaseException:
                if monitor.images > before:
                    write_state(state, state_of(monitor))
                raise
            write_state(state, state_of(monitor))

    def _repr_fields(self) -> dict[str, object]:
        return {
            "images": f"{self.images:,}",
            "flagged": f"{self.flagged:,}",
            "changed": "yes" if self.changed else "no",
        }


def _lock_of(path: str | Path) -> AbstractContextManager[None]:
    return lock_folder(Path(os.path.realpath(path)).parent)


def _name(text: str) -> str:
    """A name that a text file can contain: names sent to a service may be anything."""
    return text[:LONGEST_NAME].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _check_settings(alpha: float, delta: float, seed: int) -> None:
    for name, value in (("alpha", alpha), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
            raise InputError(f"`{name}` must be above 0 and below 1, such as 0.01, got {value!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"`seed` must be a whole number from 0 to {LARGEST_SEED}, got {seed!r}.")


def _check_detector(detector: Detector) -> None:
    if not isinstance(detector, Detector):
        raise InputError(f"A monitor needs a Detector, got {type(detector).__name__}.")
    known = detector.require_threshold()
    if isinstance(known, NamesRule):
        return
    if known.groups is not None:
        raise InputError("A monitor needs one threshold for all classes: calibrate a detector without by_class.")
    if known.folds is not None:
        raise InputError(
            f"A monitor needs exact p-values, and those of {detector.score.spec} are not: it learned from the "
            "calibration images. Calibrate a detector with a score that does not, such as max-logit."
        )
    if known.guarantee.trained:
        raise InputError(
            "The classifier of this detector was trained on the images that set its threshold, so new images would "
            "look changed: calibrate it on other images."
        )
