"""`Monitor`: says when what comes in is no longer what a detector was calibrated for, with bounded false alarms.

Two tests look at every verdict, each with half of α: a bet on the rate of flagged images (rate.py), which is wrong with
a probability of at most α/2 + δ at any time, and a conformal martingale (shift.py) for small shifts, at most α/2. So
whatever the number of images, known images like those of the calibration raise an alarm with at most α + δ. Each test
bets one half of its stake from the first image on, and deals out the other over all later ones (restarts.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.core.display import HasRepr
from deltaenergy.detector.detector import Detector, Verdict
from deltaenergy.detector.saved import version_of
from deltaenergy.detector.verdict_tables import check_own, read_rows
from deltaenergy.errors import InputError
from deltaenergy.monitor.history import LONGEST_NAME, History, SeenPicture, changed_since
from deltaenergy.monitor.rate import STAKES, count_below, log_rate_bets, log_rate_evidence
from deltaenergy.monitor.restarts import Restarts, log_halves
from deltaenergy.monitor.shift import EXPONENTS, Cells, log_shift_bets, log_shift_evidence
from deltaenergy.stats.thresholds import percent, upper_share

if TYPE_CHECKING:
    from deltaenergy.core.progress import Progress
    from deltaenergy.data.items import Unreadable

ALPHA, DELTA = 0.04, 0.01
TESTS = ("rate", "shift")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Status:
    """Where a monitor stands; `str()` says it in words.

    Attributes:
        images: how many were looked at.
        flagged: how many of them the detector calls none of these.
        bound: q, the share of known images that are flagged at most, as sure as 1 − δ.
        evidence: of each test, the logarithm to base 10 of what its stake of 1 has become.
        highest: the largest that it ever was.
        bar: where the alarm is raised, log10(2/α).
        alarms: of each test, the number of the image that raised it, or None.
        changed: whether a test has raised an alarm; it stays raised.
        since: about how many images came before the rate rose; None without an alarm.
        most_false: α + δ.
    """

    images: int
    flagged: int
    bound: float
    evidence: dict[str, float]
    highest: dict[str, float]
    bar: float
    alarms: dict[str, int | None]
    changed: bool
    since: int | None
    most_false: float

    @property
    def rate(self) -> float:
        """The share of flagged images; 0 before the first."""
        return self.flagged / max(1, self.images)

    def to_dict(self) -> dict[str, Any]:
        """The fields, the rate and the words, as JSON values."""
        return {**asdict(self), "rate": self.rate, "text": str(self)}

    def __str__(self) -> str:
        if not self.images:
            return "No image has been looked at yet."
        seen = (
            f"{self.flagged:,} of {self.images:,} image{'s' * (self.images != 1)} ({percent(round(self.rate, 3))}) "
            f"{'was' if self.flagged == 1 else 'were'} called none of these, where the calibration allows for up to "
            f"{percent(round(self.bound, 3))}"
        )
        sure = f"a false alarm at any time has a probability of at most {percent(round(self.most_false, 6))}"
        if not self.changed:
            return f"No change found: {seen}; {sure}."
        told = {"rate": "too many are called none of these", "shift": "their scores are lower"}
        raised = [f"{told[test]} (image {number:,})" for test, number in self.alarms.items() if number is not None]
        began = f", probably since about image {self.since + 1:,}" if self.since is not None else ""
        return f"The images have changed{began}: {' and '.join(raised)}. In all {seen}; {sure}."


class Monitor(HasRepr):
    """Looks at a detector's verdicts, one after the other, for a change of what comes in.

    Give every image once, in the order in which they come. An alarm stays: calibrate again with images of the new
    kind, and begin a new monitor.

    Args:
        detector: calibrated, with one threshold for all classes.
        alpha: the share of monitors that may raise a false alarm, ever.
        delta: how probable it may be that the calibration images misled about the rate; added to `alpha`.
        seed: of the lots that the p-values are smoothed with.
    """

    def __init__(self, detector: Detector, *, alpha: float = ALPHA, delta: float = DELTA, seed: int = 0) -> None:
        _check(detector, alpha, delta, seed)
        self.detector, self.alpha, self.delta, self.seed = detector.prepare(), alpha, delta, seed
        # Which detector this is, of which calibration.
        self.version = version_of(detector)
        self._scores = scores = detector.calibration_scores
        self.bound = upper_share(count_below(scores, detector.threshold or 0.0), len(scores), delta)
        self.images = self.flagged = 0
        self.log_p = 0.0
        self.cells = Cells(scores, seed)
        self.restarts = {
            "rate": Restarts(len(STAKES), lambda flagged: log_rate_bets(flagged, self.bound)),
            "shift": Restarts(len(EXPONENTS), log_shift_bets),
        }
        self.history = History()
        self.highest = dict.fromkeys(TESTS, 0.0)
        self.alarms: dict[str, int | None] = dict.fromkeys(TESTS)
        self._adding = threading.Lock()

    @property
    def bar(self) -> float:
        """log(2/α): where each test raises its alarm."""
        return math.log(2 / self.alpha)

    def add(self, verdicts: Iterable[Verdict], *, files: bool = True) -> Monitor:
        """Look at verdicts of this detector, in the order in which they came.

        `files`: whether their ids may be opened as files, to show the pictures on a page.
        """
        found = list(verdicts)
        ids, labels = [verdict.id for verdict in found], [verdict.label for verdict in found]
        return self.observe(ids, labels, np.array([verdict.score for verdict in found]), files=files)

    def watch(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> list[Unreadable]:
        """Judge images by the detector and look at the verdicts; returns those that could not be read."""
        stream = self.detector.stream(images, batch_size=batch_size, progress=progress)
        waiting: list[Verdict] = []
        for verdict in stream:
            waiting.append(verdict)
            if len(waiting) >= batch_size:
                self.add(waiting)
                waiting = []
        self.add(waiting)
        return stream.unreadable

    def read(self, table: Any) -> Monitor:
        """Look at the rows of a table: a file that `score --out` wrote, or a pandas, polars or Arrow table like it.

        Verdicts are formed anew from the scores. A table whose p-values are not this detector's is refused, and so is
        one that has none.
        """
        rows = read_rows(table, self.detector.score.spec)
        check_own(rows, self.detector)
        return self.observe(rows.ids, rows.labels, rows.scores)

    def observe(self, ids: Sequence[str], labels: Sequence[str], scores: Any, *, files: bool = True) -> Monitor:
        """`add` from names, classes and scores."""
        values = np.asarray(scores, dtype=np.float64)
        if values.ndim != 1 or not len(ids) == len(labels) == len(values):
            raise InputError(
                f"observe needs one id, label and score for each image, got {len(ids)} ids, {len(labels)} labels and "
                f"scores of shape {values.shape}."
            )
        known = set(self.detector.classifier.classes)
        strange = next((label for label in labels if label not in known), None)
        if strange is not None:
            raise InputError(f"{strange!r} is no class of this detector: these are the verdicts of another one.")
        if self.detector.calibration_scores is not self._scores:
            raise InputError("The detector was calibrated anew since this monitor began: begin another one.")
        with self._adding:
            self._observe(ids, labels, values, files)
        return self

    def _observe(self, ids: Sequence[str], labels: Sequence[str], values: Any, files: bool) -> None:
        flags = self.detector.rejects(values)
        # Added up one by one, so that batches of any size give the same bits.
        log_p = np.log(self.cells.p_values(values))
        logs = np.cumsum(np.concatenate([[self.log_p], log_p]))[1:]
        shifts = log_shift_evidence(self.images + np.arange(1, len(values) + 1), logs)
        seen = {"rate": flags.astype(np.float64), "shift": log_p}
        later = {test: self.restarts[test].add(seen[test]) for test in TESTS}
        time = datetime.now(UTC).isoformat(timespec="seconds")
        for i, flagged in enumerate(flags.tolist()):
            self.images += 1
            self.flagged += flagged
            now = {
                "rate": log_rate_evidence(self.flagged, self.images, self.bound),
                "shift": float(shifts[i]),
            }
            now = {test: log_halves(now[test], later[test][i]) for test in TESTS}
            for test, evidence in now.items():
                self.highest[test] = max(self.highest[test], evidence)
                if self.alarms[test] is None and evidence >= self.bar:
                    self.alarms[test] = self.images
            self.log_p = float(logs[i])
            picture = SeenPicture(self.images, _name(ids[i]), labels[i], float(values[i]), files)
            self.history.add(picture, flagged, now["rate"], now["shift"], time)

    @property
    def changed(self) -> bool:
        """Whether a test has raised an alarm."""
        return any(number is not None for number in self.alarms.values())

    @property
    def status(self) -> Status:
        """Where it stands now."""
        now = {
            "rate": log_rate_evidence(self.flagged, self.images, self.bound),
            "shift": float(log_shift_evidence(self.images, self.log_p)[0]),
        }
        now = {test: log_halves(now[test], self.restarts[test].log_evidence) for test in TESTS}
        return Status(
            self.images,
            self.flagged,
            self.bound,
            {test: evidence / math.log(10) for test, evidence in now.items()},
            {test: evidence / math.log(10) for test, evidence in self.highest.items()},
            self.bar / math.log(10),
            dict(self.alarms),
            self.changed,
            changed_since(self.history.blocks) if self.changed else None,
            self.alpha + self.delta,
        )

    def save(self, path: str | Path) -> None:
        """Write the state to one small JSON file, in place of a state of the same detector."""
        from deltaenergy.monitor.state import save_state

        save_state(self, path)

    @classmethod
    def load(cls, path: str | Path, detector: Detector) -> Monitor:
        """Go on from a saved state; the detector must be the one that it was saved with."""
        from deltaenergy.monitor.state import load_state

        return load_state(path, detector)

    def _repr_fields(self) -> dict[str, object]:
        return {
            "images": f"{self.images:,}",
            "flagged": f"{self.flagged:,}",
            "changed": "yes" if self.changed else "no",
        }


def _name(text: str) -> str:
    """A name as a file of text can hold it: those that are sent to a service may be anything."""
    return text[:LONGEST_NAME].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _check(detector: Detector, alpha: float, delta: float, seed: int) -> None:
    for name, value in (("alpha", alpha), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
            raise InputError(f"{name} must be above 0 and below 1, such as 0.01, got {value!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed must be a whole number from 0 to {LARGEST_SEED}, got {seed!r}.")
    if not isinstance(detector, Detector):
        raise InputError(f"A monitor needs a Detector, got {type(detector).__name__}.")
    known = detector.require_calibration()
    if known.groups is not None:
        raise InputError("A monitor needs one threshold for all classes: calibrate a detector without by_class.")
    if known.folds is not None:
        raise InputError(
            f"A monitor needs exact p-values, and those of {detector.score.spec} are not: it learned from the "
            "calibration images. Calibrate a detector with a score that does not, such as max-logit."
        )
    if known.guarantee.trained:
        raise InputError(
            "The classifier of this detector was trained on the images that set its threshold, so new images look "
            "changed without any change: calibrate it on other images."
        )
