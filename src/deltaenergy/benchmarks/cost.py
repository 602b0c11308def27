"""The cost of scores and tuners, measured: time, images per second, and peak memory.

Images are encoded once, which costs the same for every score; then each score is timed over the features, and
`seconds` is the sum of both for all images. A score that needs patches or pixels is timed over the images. For a tuner
`seconds` is its training, from images to classifier. Peak memory is that of the process (of the GPU if there is one)
while the method ran.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from deltaenergy.benchmarks.plan import PlannedCase
from deltaenergy.benchmarks.results import Cell
from deltaenergy.benchmarks.rows import BenchmarkRow
from deltaenergy.benchmarks.runner import Runner
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.models.base import require_towers
from deltaenergy.models.encoding import EncodedImages
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import Encoded, fit, known_images, score_images
from deltaenergy.source import as_source

# A fast score is repeated for this long; the fastest repetition counts.
MEASURED_SECONDS = 0.2


class CostRunner(Runner):
    """Measures instead of testing: scores on cases without training images, tuners on the others."""

    _encoded: tuple[list[ImageItem], tuple[EncodedImages, float, dict[str, float]]] | None = None

    def measure(
        self, planned: PlannedCase, identities: Mapping[BenchmarkRow, dict[str, Any]]
    ) -> Iterator[tuple[list[Cell], float]]:
        """The cell of each method, and the seconds to measure it."""
        for method, identity in identities.items():
            self.announce(f"{planned.case.name}: measuring {method.label}")
            start = time.perf_counter()
            with self.skipping(planned.case.name, f"method {method.label}"):
                items = [item for images in planned.closed for item in images.items]
                measured = self.score_cost if method.method is None else self.tuner_cost
                place = {"closed": planned.closed[0].name, "kind": "id", "open": None}
                counts = {"n_closed": len(items), "n_open": 0}
                rows = [
                    {**place, "metric": name, "value": value, **counts}
                    for name, value in measured(planned, method, items).items()
                ]
                yield [Cell(identity, rows, [])], time.perf_counter() - start

    def score_cost(self, planned: PlannedCase, row: BenchmarkRow, items: list[ImageItem]) -> dict[str, float]:
        """Seconds to encode and to score all images, and the peak memory of both."""
        classifier, score = self.classifier(planned, row), make_score(row.score)
        scorer = score.bind(classifier)
        encoded, encoding, encoding_peak = self.encoded(items)
        images = as_source(encoded.items if score.needs_images else encoded.features)
        with peak_memory(self.model.device) as peak:
            if not scorer.fitted:
                known = Encoded(classifier, [scorer], images, batch_size=self.batch_size)
                (scorer,) = fit([scorer], known_images([known], [scorer]))
            scoring = fastest(lambda: score_images(classifier, [scorer], images, batch_size=self.batch_size))
        # A score that needs images also encodes them.
        seconds = scoring if score.needs_images else encoding + scoring
        found = {"seconds": seconds, "encoding_seconds": encoding, "scoring_seconds": scoring}
        highest = {name: max(value, encoding_peak.get(name, 0.0)) for name, value in peak.items()}
        return {**found, "images_per_second": len(items) / seconds, **highest}

    def encoded(self, items: list[ImageItem]) -> tuple[EncodedImages, float, dict[str, float]]:
        """Features, the seconds and the peak memory to get them: measured once, for all scores of a run."""
        if self._encoded is None or self._encoded[0] != items:
            with peak_memory(self.model.device) as peak:
                start = time.perf_counter()
                features = require_towers(self.model, "bench").encode(items, batch_size=self.batch_size)
                seconds = time.perf_counter() - start
            self._encoded = (items, (features, seconds, peak))
        return self._encoded[1]

    def tuner_cost(self, planned: PlannedCase, method: BenchmarkRow, items: list[ImageItem]) -> dict[str, float]:
        """Seconds to tune, from images to classifier, and the peak memory."""
        from deltaenergy.tuning.tune import tune

        sample = planned.train
        if sample is None or method.method is None:
            raise InputError(f"{method.label} needs training images.")
        recipe = {**dict(self.spec.recipe), **method.recipe}
        with peak_memory(self.model.device) as peak:
            start = time.perf_counter()
            tune(self.model, planned.names, sample, method.method, shots=sample.shots, seed=sample.seed, recipe=recipe)
            seconds = time.perf_counter() - start
        return {"seconds": seconds, **peak}


def fastest(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of several repetitions, in seconds."""
    times: list[float] = []
    while sum(times) < MEASURED_SECONDS:
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Yields a dictionary that has `peak_mb` after the block, if the platform reports it."""
    found: dict[str, float] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        found["peak_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # not on Linux
        yield found
        return
    yield found
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    found["peak_mb"] = int(line.split()[1]) / 1024
